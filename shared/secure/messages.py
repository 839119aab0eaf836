"""The messages of a secure round. Bytes travel as hexadecimal text; masked tensors never as JSON.

A round: PublicKeys -> Roster -> SealedShares -> Delivery -> MaskedHeader and vector -> UnmaskRequest -> UnmaskAnswer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from shared.errors import ProtocolError
from shared.schemas import ClientName, Declaration, Message, RunName
from shared.secure.fixed_point import MOST_CLIENTS
from shared.secure.keys import NONCE_BYTES, TAG_BYTES, Context
from shared.secure.shamir import PRIME, SHARE_BYTES

FEWEST_CLIENTS = 3  # in a sum of two, each knows the other's part


def least_threshold(clients: int) -> int:
    """How many of the round's clients must at least be needed to restore a secret: more than two thirds, and three.

    The method's figure against an aggregator that lies. Told different lists of survivors, n honest clients give at
    most n (n - t) shares of mask keys, and to uncover one client takes t (t - 1) of them, or both kinds of its own
    shares, hence 2 t of n. More than half would rule out only the latter: with 3 of 5 the former is possible.
    """
    return max(FEWEST_CLIENTS, 2 * clients // 3 + 1)


def _in_field(share: str) -> str:
    if int(share, 16) >= PRIME:
        raise ValueError("expected an element of the field")
    return share


def _ascending(names: tuple[str, ...]) -> tuple[str, ...]:
    if any(first >= second for first, second in pairwise(names)):
        raise ValueError("expected different names in ascending order")
    return names


Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Share = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * SHARE_BYTES}}}$"), AfterValidator(_in_field)]
Sealed = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * (NONCE_BYTES + 2 * SHARE_BYTES + TAG_BYTES)}}}$")]
Names = Annotated[tuple[ClientName, ...], Field(max_length=MOST_CLIENTS), AfterValidator(_ascending)]
SealedBy = Annotated[Mapping[ClientName, Sealed], Field(max_length=MOST_CLIENTS)]
SharesOf = Annotated[Mapping[ClientName, Share], Field(max_length=MOST_CLIENTS)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class OfRound(Message):
    """Every message names its version and round."""

    version: Literal[1] = 1
    run: RunName
    round: int = Field(ge=1, le=100_000)


class FromClient(OfRound):
    client: ClientName


class Terms(OfRound):
    """What all must agree on before the round. A client holds `declaration` and `hidden` against its own."""

    threshold: int = Field(ge=FEWEST_CLIENTS, le=MOST_CLIENTS, description="shares that restore a secret")
    declaration: Declaration
    hidden: tuple[str, ...] = Field((), max_length=20, description="scalars that are summed masked, sorted")

    @model_validator(mode="after")
    def _hides_what_is_declared(self) -> Terms:
        if not set(self.hidden) <= set(self.declaration.scalars) or list(self.hidden) != sorted(set(self.hidden)):
            raise ValueError(f"expected hidden scalars among {list(self.declaration.scalars)}, sorted")
        return self

    @property
    def visible(self) -> frozenset[str]:
        """Scalars that the aggregator sees of each client."""
        return frozenset(self.declaration.scalars) - set(self.hidden)


def require_round(terms: Terms, message: OfRound) -> None:
    """ProtocolError for a message of another run or round."""
    if (message.run, message.round) != (terms.run, terms.round):
        raise ProtocolError(f"expected round {terms.round} of {terms.run}, got round {message.round} of {message.run}")


class PublicKeys(FromClient):
    """Phase `keys`. `cipher` is for the shares on their way, `mask` for the pairwise masks; `commitment` to the seed of
    the client's own mask lets the aggregator see whether it has restored the right one."""

    cipher: Hex32
    mask: Hex32
    commitment: Hex32


class Roster(Message):
    """All public keys of the round. A client cannot check by itself whose they are: docs/secure-aggregation.md."""

    terms: Terms
    members: tuple[PublicKeys, ...] = Field(max_length=MOST_CLIENTS)

    @model_validator(mode="after")
    def _members_of_one_round(self) -> Roster:
        _ascending(self.names)
        if any((one.run, one.round) != (self.terms.run, self.terms.round) for one in self.members):
            raise ValueError("expected the keys of one round")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.client for one in self.members)

    @property
    def keys(self) -> dict[str, PublicKeys]:
        return {one.client: one for one in self.members}

    @property
    def points(self) -> dict[str, int]:
        """x of each client's shares."""
        return {name: x for x, name in enumerate(self.names, start=1)}

    @property
    def context(self) -> Context:
        """The round, with a digest of this roster: clients can compare or sign it."""
        transcript = hashlib.sha256(self.model_dump_json().encode()).hexdigest()
        return Context(self.terms.version, self.terms.run, self.terms.round, transcript)


class SealedShares(FromClient):
    """Phase `shares`: for every other client of the roster one share of each of the sender's two secrets, sealed."""

    sealed: SealedBy


class Delivery(OfRound):
    """What the aggregator passes on to one client: who has shared, and what they sealed for it."""

    sharers: Names
    sealed: SealedBy


class MaskedHeader(FromClient):
    """Phase `masked`: what goes with a masked vector. `scalars` are the open ones."""

    digest: Hex32
    scalars: Mapping[str, Finite] = Field(max_length=20)


class UnmaskRequest(OfRound):
    """All who have shared, as two lists: whose vectors are in the sum, and who dropped out before sending one."""

    survivors: Names
    dropped: Names


class UnmaskAnswer(FromClient):
    """Phase `answers`: shares of the survivors' seeds and of the mask keys of those who dropped out."""

    seeds: SharesOf
    keys: SharesOf
