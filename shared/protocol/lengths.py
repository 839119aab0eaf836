"""Longest messages of a declaration: an honest message's length with some room.

The room is there so that a message that is nearly right gets an error about its fault, not about its length.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from shared.method.declaration import Counts, Declaration
from shared.protocol.masked_wire import body_forms
from shared.protocol.schemas import GraphBounds, JoinIn
from shared.protocol.secure import messages, tags
from shared.protocol.secure.group import BYTES
from shared.protocol.secure.keys import NONCE_BYTES, TAG_BYTES
from shared.protocol.wire import LENGTH_BYTES, body_head_with, require_short_head, scalars_text

MOST_UPDATE_BYTES = 160 << 20  # by default; sums of all pairs of the longest list for them, 8,192 items, are 134 MB
ROOM_FACTOR = 2
ROOM_BYTES = 16 << 10
UPDATE_ROOM_BYTES = 256 << 10
LONGEST_NAME = "n" * 63
RUN, ROUND, SEED = f"run-{'9' * 9}", 100_000, (1 << 32) - 1
HEX = "0" * 2 * BYTES
TWO_NAMES = (LONGEST_NAME, "z" * len(LONGEST_NAME))
LONGEST_SHARE = 2.2250738585072014e-308  # no number from 0 to 1 has more digits
TAG = "0" * 2 * tags.TAG_BYTES
GREATEST, LONGEST_NUMBER = (1 << 40) - 1, -2.2250738585072014e-308


def add_room(length: int) -> int:
    return ROOM_FACTOR * length + ROOM_BYTES


def longest_join(declaration: Declaration) -> int:
    """Returns the most bytes of a join message, with counts."""
    counts = Counts(users=GREATEST, items=GREATEST, edges=GREATEST)
    return add_room(len(JoinIn(client=LONGEST_NAME, declaration=declaration, counts=counts).model_dump_json()))


def longest_update(declaration: Declaration) -> int:
    """Returns the most bytes of an update, declared or masked."""
    pieces = body_forms(declaration)
    return ROOM_FACTOR * sum(form.bytes for form in pieces.values()) + longest_head(declaration) + UPDATE_ROOM_BYTES


def least_update(declaration: Declaration) -> int:
    """Returns the bytes of an update's tensors; no honest update is shorter."""
    return sum(form.bytes for form in body_forms(declaration).values())


def longest_head(declaration: Declaration) -> int:
    """Returns the most bytes of the header of an update's safetensors body."""
    scalars = scalars_text(dict.fromkeys(declaration.scalars, LONGEST_NUMBER))
    return add_room(len(body_head_with(body_forms(declaration), {"scalars": scalars})))


def require_head(declaration: Declaration, path: str | Path) -> None:
    """Raises ProtocolError for a stored body whose header is too long for the declaration."""
    with open(path, "rb") as file:
        require_short_head(file.read(LENGTH_BYTES), longest_head(declaration))


def longest_message(kind: type[messages.ClientMessage], clients: int) -> int:
    """Returns the most bytes of a secure round's JSON message, with the longest names."""
    with_one, with_two = _length(kind, 1), _length(kind, 2)
    return with_one + (clients - 1) * (with_two - with_one)


def longest_relayed(declaration: Declaration, clients: int) -> int:
    """Returns the most bytes of a message that the aggregator relays to one client.

    That is a roster, or all others' shares, checks or signatures.
    """
    each = sum(_length(kind, 1) for kind in (messages.PublicKeys, messages.SealedShares, messages.ShareCheck))
    return longest_join(declaration) + clients * each


@cache
def _length(kind: type[messages.ClientMessage], clients: int) -> int:
    """Returns the bytes of a message about one or two clients."""
    content: Any = {"version": messages.VERSION, "run": RUN, "round": ROUND, "client": LONGEST_NAME}
    return len(kind.model_construct(**content, **_content(kind, TWO_NAMES[:clients])).model_dump_json())


def _content(kind: type[messages.ClientMessage], names: tuple[str, ...]) -> dict[str, Any]:
    if kind is messages.PublicKeys:
        points = dict.fromkeys(("identity", "deal", "cipher", "mask", "commitment"), HEX)
        proof = messages.Possession(challenge=HEX, response=HEX)
        of_basis = {"stamp": HEX, "catalogue": HEX, "draw": HEX}
        return points | of_basis | {"possession": proof, "common": _common(), "signature": messages.UNSIGNED}
    if kind is messages.SealedShares:
        return {"transcript": HEX, "shares": dict.fromkeys(names, _share()), **_sharing(), "draw": HEX}
    if kind is messages.ShareCheck:
        complaint = messages.Complaint(point=HEX, challenge=HEX, response=HEX)
        told = dict.fromkeys(names, TAG)
        return {
            "transcript": HEX,
            "complaints": dict.fromkeys(names, complaint),
            "tags": told,
            "signature": messages.UNSIGNED,
        }
    if kind is messages.Consent:
        lists = {"survivors": names, "dropped": (), "tags": dict.fromkeys(names, TAG)}
        return {"transcript": HEX, **lists, "signature": messages.UNSIGNED}
    if kind is messages.UnmaskAnswer:
        return {"seeds": dict.fromkeys(names, HEX), "keys": {}}
    raise TypeError(f"expected a message of a secure round, got {kind.__name__}")


def _common() -> messages.CommonTerms:
    digests = dict.fromkeys(("aggregator", "start", "method", "anchor"), HEX)
    bounds = GraphBounds(colluders=LONGEST_SHARE, dropouts=LONGEST_SHARE)
    return messages.CommonTerms(**digests, seed=SEED, rounds=ROUND, changing_members=False, graph=bounds)


def _share() -> messages.SealedShare:
    return messages.SealedShare(
        sealed="0" * 2 * (NONCE_BYTES + messages.SHARE_PAIR_BYTES + TAG_BYTES), **_commitments()
    )


def _sharing() -> dict[str, Any]:
    proof = messages.SharingProof(head=HEX, response=HEX)
    own = messages.CommittedShares(**_commitments())
    return {"own": own, "challenge": HEX, "key_proof": proof, "seed_proof": proof, "signature": messages.UNSIGNED}


def _commitments() -> dict[str, str]:
    return {f"{kind}_{what}": HEX for kind in ("key", "seed") for what in ("commitment", "response")}
