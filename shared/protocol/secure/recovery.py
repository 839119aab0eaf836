"""Masked vectors and the clients' answers -> the mean (Eq. 13) of the survivors, and no single one's vector.

Goes through the vectors tensor by tensor, and through a tensor block by block: at no time does it hold more than one
tensor's sum and one block of a client's tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shared.errors import ProtocolError
from shared.method.exchanged import Parameters
from shared.method.parameters import STORED, Array, Form, blocks, part
from shared.protocol.secure import group, keys, masks, shamir, vector
from shared.protocol.secure.masks import MaskStream
from shared.protocol.secure.messages import Roster, SharesOf
from shared.protocol.secure.server import SecureRound, require_answers, roster
from shared.protocol.secure.vector import Vector


def mean(state: SecureRound, vectors: Mapping[str, Vector]) -> Parameters:
    """Mean arrays and mean hidden scalars of the survivors. `vectors`: theirs by client, lazily read.

    UnavailableError with fewer answers than the threshold; ProtocolError if they restore other secrets than published.
    """
    if set(vectors) != set(state.survivors):
        raise ProtocolError(f"expected the vectors of {len(state.survivors)} survivors, got {len(vectors)} or others'")
    left = restore_masks(state)
    return vector.mean(state.terms.declaration, _unmask(state, vectors, left), len(vectors))


def _unmask(
    state: SecureRound, vectors: Mapping[str, Vector], left: tuple[MaskStream, ...]
) -> Iterator[tuple[str, Array]]:
    for piece, (name, form) in enumerate(vector.layout(state.terms.declaration).items()):
        total = sum_piece(name, form, [vectors[client] for client in state.survivors])
        masks.add_to_flat(total, left, piece=piece)
        yield name, total.reshape(form.shape)


def sum_piece(name: str, form: Form, vectors: Sequence[Vector]) -> Array:
    """The sum of one tensor, still masked, in one dimension."""
    total = np.zeros(form.size, dtype=STORED[form.dtype])
    for begin, end in blocks(form.size):
        for one in vectors:
            total[begin:end] += part(one, name, begin, end)
    return total


def restore_masks(state: SecureRound) -> tuple[MaskStream, ...]:
    """What stands between the sum and the truth, with the sign that takes it away: the survivors' own masks, and those
    that they have with clients who dropped out after checking their shares."""
    require_answers(state)
    everybody = roster(state)
    points, context, members = everybody.points, everybody.context, everybody.keys
    chosen = sorted(state.answers)[: state.terms.threshold]
    weights = shamir.lagrange_weights([points[name] for name in chosen])
    seeds = {points[name]: state.answers[name].seeds for name in chosen}
    mask_keys = {points[name]: state.answers[name].keys for name in chosen}
    own = (
        MaskStream(keys.derive_self_mask(_restore(name, members[name].commitment, seeds, weights), context, name), -1)
        for name in state.survivors
    )
    lost = {name: _restore(name, members[name].mask, mask_keys, weights) for name in state.dropped}
    return (*own, *_restore_pairwise(everybody, lost, state.survivors))


def _restore(name: str, published: str, shares: Mapping[int, SharesOf], weights: Mapping[int, int]) -> int:
    """A client's secret, which is the one to the point that it has published."""
    secret = shamir.restore({x: int(held[name], 16) for x, held in shares.items()}, weights)
    if group.multiply_base(secret).hex() != published:
        raise ProtocolError(f"expected shares of the secret that {name!r} has published a point of, got others")
    return secret


def _restore_pairwise(roster: Roster, lost: Mapping[str, int], survivors: tuple[str, ...]) -> Iterator[MaskStream]:
    """The masks that the survivors have with those who dropped out, of whom the mask keys were restored."""
    context, public = roster.context, {name: bytes.fromhex(member.mask) for name, member in roster.keys.items()}
    for name, private in lost.items():
        for other in survivors:
            seed = keys.agree_on_mask(private, public[other], context, name, other)
            yield MaskStream(seed, masks.sign_of(name, other))
