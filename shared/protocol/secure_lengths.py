"""A kind of message of a secure round, and how many clients there are -> how long an honest one can be as JSON."""

from __future__ import annotations

from functools import cache
from typing import Any

from shared.method.declaration import Declaration
from shared.protocol.lengths import LONGEST_NAME, longest_join
from shared.protocol.secure.group import BYTES
from shared.protocol.secure.keys import NONCE_BYTES, TAG_BYTES
from shared.protocol.secure.messages import (
    SHARE_PAIR_BYTES,
    UNSIGNED,
    CommonTerms,
    Complaint,
    Consent,
    FromClient,
    Possession,
    PublicKeys,
    SealedShare,
    SealedShares,
    ShareCheck,
    UnmaskAnswer,
)

RUN, ROUND, SEED = f"run-{'9' * 9}", 100_000, (1 << 32) - 1
HEX = "0" * 2 * BYTES


def longest_message(kind: type[FromClient], clients: int) -> int:
    """Bytes, where every name is as long as a name may be."""
    alone, with_one = _length(kind, 0), _length(kind, 1)
    return alone + clients * (with_one - alone + len(","))


def longest_relayed(declaration: Declaration, clients: int) -> int:
    """Of whatever the aggregator passes on to one client: a roster, or what all others have sealed, said or signed."""
    each = sum(_length(kind, 1) for kind in (PublicKeys, SealedShares, ShareCheck))
    return longest_join(declaration) + clients * each


@cache
def _length(kind: type[FromClient], clients: int) -> int:
    """Of a message that speaks of none or of one client."""
    content: Any = {"version": 2, "run": RUN, "round": ROUND, "client": LONGEST_NAME}
    return len(kind.model_construct(**content, **_content(kind, (LONGEST_NAME,) * clients)).model_dump_json())


def _content(kind: type[FromClient], names: tuple[str, ...]) -> dict[str, Any]:
    if kind is PublicKeys:
        points = dict.fromkeys(("identity", "deal", "cipher", "mask", "commitment"), HEX)
        proof = Possession(challenge=HEX, response=HEX)
        return points | {"possession": proof, "common": _common(), "signature": UNSIGNED}
    if kind is SealedShares:
        return {"transcript": HEX, "shares": dict.fromkeys(names, _share()), **_commitments()}
    if kind is ShareCheck:
        complaint = Complaint(point=HEX, challenge=HEX, response=HEX)
        return {"transcript": HEX, "complaints": dict.fromkeys(names, complaint), "signature": UNSIGNED}
    if kind is Consent:
        return {"transcript": HEX, "survivors": names, "dropped": (), "signature": UNSIGNED}
    if kind is UnmaskAnswer:
        return {"seeds": dict.fromkeys(names, HEX), "keys": {}}
    raise TypeError(f"expected a message of a secure round, got {kind.__name__}")


def _common() -> CommonTerms:
    digests = dict.fromkeys(("aggregator", "start", "method", "anchor"), HEX)
    return CommonTerms(**digests, seed=SEED, rounds=ROUND, changing_members=False)


def _share() -> SealedShare:
    return SealedShare(sealed="0" * 2 * (NONCE_BYTES + SHARE_PAIR_BYTES + TAG_BYTES), **_commitments())


def _commitments() -> dict[str, str]:
    return {"key_commitment": HEX, "seed_commitment": HEX}
