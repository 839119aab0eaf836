"""Masked vectors and the clients' answers -> the mean (Eq. 13) of the survivors, and no single one's vector.

Goes through the vectors tensor by tensor: at no time does it hold more than one tensor's sum and one client's tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from shared.errors import ProtocolError
from shared.secure import keys, masks, shamir, vector
from shared.secure.fixed_point import Ring
from shared.secure.masks import Mask
from shared.secure.messages import Roster, Share
from shared.secure.server import SecureRound, require_answers, roster
from shared.secure.vector import Vector
from shared.strategy import Parameters


def mean(state: SecureRound, vectors: Mapping[str, Vector]) -> Parameters:
    """Mean arrays and mean hidden scalars of the survivors. `vectors`: theirs by client, lazily read.

    UnavailableError with fewer answers than the threshold; ProtocolError if they restore other secrets than published.
    """
    if set(vectors) != set(state.survivors):
        raise ProtocolError(f"expected the vectors of {len(state.survivors)} survivors, got {len(vectors)} or others'")
    left = leftover(state)
    return vector.mean(state.terms, _unmasked(state, vectors, left), len(vectors))


def _unmasked(state: SecureRound, vectors: Mapping[str, Vector], left: tuple[Mask, ...]) -> Iterator[tuple[str, Ring]]:
    for piece, name in enumerate(vector.layout(state.terms)):
        total = _sum(name, [vectors[client] for client in state.survivors])
        yield name, masks.added(total, left, piece=piece)


def _sum(name: str, vectors: list[Vector]) -> Ring:
    total = np.array(vectors[0][name], dtype=np.uint64)
    for other in vectors[1:]:
        np.add(total, other[name], out=total)
    return total


def leftover(state: SecureRound) -> tuple[Mask, ...]:
    """What stands between the sum and the truth, with the sign that takes it away: the survivors' own masks, and those
    that they have with clients who dropped out after sharing."""
    require_answers(state)
    chosen = sorted(state.answers)[: state.terms.threshold]
    everybody = roster(state)
    points = everybody.points
    weights = shamir.weights([points[name] for name in chosen])
    seeds = {points[n]: state.answers[n].seeds for n in chosen}
    mask_keys = {points[n]: state.answers[n].keys for n in chosen}
    own = (Mask(_seed(state, name, _restored(name, seeds, weights)), -1) for name in state.survivors)
    lost = {name: _restored(name, mask_keys, weights) for name in state.dropped}
    pairwise = _pairwise(everybody, lost, state.survivors)
    return (*own, *pairwise)


def _restored(name: str, shares: Mapping[int, Mapping[str, Share]], weights: Mapping[int, int]) -> bytes:
    return shamir.restore({x: int(held[name], 16) for x, held in shares.items()}, weights)


def _seed(state: SecureRound, name: str, seed: bytes) -> bytes:
    if keys.commitment(seed) != state.keys[name].commitment:
        raise ProtocolError(f"expected shares of the seed that {name!r} has committed to, got others")
    return seed


def _pairwise(roster: Roster, lost: Mapping[str, bytes], survivors: tuple[str, ...]) -> Iterator[Mask]:
    """The masks that the survivors have with those who dropped out, of whom the mask keys were restored."""
    context, public = roster.context, {name: bytes.fromhex(member.mask) for name, member in roster.keys.items()}
    for name, private in lost.items():
        if keys.public(private) != public[name]:
            raise ProtocolError(f"expected shares of the mask key that {name!r} has published, got others")
        for other in survivors:
            seed = keys.pair_seed(private, public[other], context, name, other)
            yield Mask(seed, masks.sign_of(name, other))
