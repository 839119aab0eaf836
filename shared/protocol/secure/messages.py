"""The messages of a secure round. Bytes travel as hexadecimal text; masked tensors never as JSON.

A round: PublicKeys -> Roster -> SealedShares -> Delivery -> ShareCheck -> Sharers -> MaskedHeader and vector ->
UnmaskRequest -> Consent -> Consents -> UnmaskAnswer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from shared.errors import ProtocolError
from shared.message import Message
from shared.method.declaration import Declaration
from shared.protocol.schemas import ClientName, RunName
from shared.protocol.secure.fixed_point import MOST_CLIENTS
from shared.protocol.secure.group import BYTES, ORDER
from shared.protocol.secure.keys import NONCE_BYTES, PROTOCOL, TAG_BYTES, Context
from shared.strategies import find_strategy

VERSION = 2
FEWEST_CLIENTS = 3  # in a sum of two, each knows the other's part
SHARE_PAIR_BYTES = 2 * BYTES


def least_threshold(clients: int) -> int:
    """How many of the round's clients must at least be needed to restore a secret: more than two thirds, and three.

    Two lists of survivors, each signed by so many, have an honest signer in common as long as at most a third of the
    clients lie, and an honest client signs one list a round (Bonawitz et al. 2017, section 6, active adversaries).
    """
    return max(FEWEST_CLIENTS, 2 * clients // 3 + 1)


def hidden_scalars(declaration: Declaration) -> tuple[str, ...]:
    """The declared scalars that are summed under masks, sorted."""
    return tuple(sorted(set(declaration.scalars) - visible_scalars(declaration)))


def visible_scalars(declaration: Declaration) -> frozenset[str]:
    """The declared scalars that lie open beside a masked vector."""
    scalars = find_strategy(declaration).scalars
    return frozenset(name for name in declaration.scalars if name in scalars and scalars[name].visible)


def _is_scalar(text: str) -> str:
    if int(text, 16) >= ORDER:
        raise ValueError("expected a scalar below the group's order")
    return text


def _is_ascending(names: tuple[str, ...]) -> tuple[str, ...]:
    if any(first >= second for first, second in pairwise(names)):
        raise ValueError("expected different names in ascending order")
    return names


Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Scalar = Annotated[Hex32, AfterValidator(_is_scalar)]
Signature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
Sealed = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * (NONCE_BYTES + SHARE_PAIR_BYTES + TAG_BYTES)}}}$")]
Names = Annotated[tuple[ClientName, ...], Field(max_length=MOST_CLIENTS), AfterValidator(_is_ascending)]
SharesOf = Annotated[Mapping[ClientName, Scalar], Field(max_length=MOST_CLIENTS)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
UNSIGNED = "0" * 128


class OfRound(Message):
    """Every message names its version and round."""

    version: Literal[2] = 2
    run: RunName
    round: int = Field(ge=1, le=100_000)


class FromClient(OfRound):
    client: ClientName


class SignedByClient(FromClient):
    """A message that others than its receiver may have to hold its sender to: see `identities`."""

    signature: Signature = UNSIGNED


class CommonTerms(Message):
    """What every client of a round must have been told alike. Digests are sha256 in hexadecimal: see `common`.

    aggregator: the key that its answers are signed with; start: the parameters that the round begins with, before
    Eq. 14; method, seed, rounds: the run's; anchor: what K^R follows from; changing_members: the operator's word that
    a single client may leave or join between rounds.
    """

    aggregator: Hex32
    start: Hex32
    method: Hex32
    seed: int = Field(ge=0, lt=1 << 32)
    rounds: int = Field(ge=1, le=100_000)
    anchor: Hex32
    changing_members: bool = False


class RoundTerms(OfRound):
    """What all must agree on before the round. A client holds them against its own."""

    threshold: int = Field(ge=FEWEST_CLIENTS, le=MOST_CLIENTS, description="shares that restore a secret")
    declaration: Declaration
    common: CommonTerms


def require_round(terms: OfRound, message: OfRound) -> None:
    """ProtocolError for a message of another run or round."""
    if (message.run, message.round) != (terms.run, terms.round):
        raise ProtocolError(f"expected round {terms.round} of {terms.run}, got round {message.round} of {message.run}")


class Possession(Message):
    """A proof that the sender knows the secret of a key: see `proofs`."""

    challenge: Scalar
    response: Scalar


class PublicKeys(SignedByClient):
    """Phase `keys`. All keys are points of the group but `identity`, the Ed25519 key that the client is known by.

    deal, cipher: for the shares that the client seals, and for those sealed for it; possession: of the first one's
    secret; mask: for the pairwise masks, and at once the commitment to its own secret; commitment: to the seed of the
    client's own mask. noised: what it sends is differentially private; changing_members: the silo's word that it bears
    a change of itself alone. stamp: in a basis run, the same as in earlier ones as long as the silo's data are.
    catalogue: in a basis run, sha256 of the list of items that all members must have alike.
    """

    identity: Hex32
    deal: Hex32
    possession: Possession
    cipher: Hex32
    mask: Hex32
    commitment: Hex32
    common: CommonTerms
    noised: bool = False
    changing_members: bool = False
    stamp: Hex32 | None = Field(None, exclude_if=lambda stamp: stamp is None)
    catalogue: Hex32 | None = Field(None, exclude_if=lambda catalogue: catalogue is None)


def possession_label(terms: OfRound, client: str) -> bytes:
    """What the proof of possession of a client's key is bound to: nobody else can give it, nor in another round."""
    return f"{PROTOCOL}\npossession\n{terms.version}\n{terms.run}\n{terms.round}\n{client}\n".encode()


class Roster(Message):
    """All public keys of the round."""

    terms: RoundTerms
    members: tuple[PublicKeys, ...] = Field(max_length=MOST_CLIENTS)

    @model_validator(mode="after")
    def _members_of_one_round(self) -> Roster:
        _is_ascending(self.names)
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
        """The round, with the digest of this roster."""
        transcript = hashlib.sha256(self.model_dump_json().encode()).hexdigest()
        return Context(self.terms.version, self.terms.run, self.terms.round, transcript)


class SealedShare(Message):
    """What one dealer has sealed for one holder: a share of each of its two secrets, with commitments to both.

    The signature is the dealer's, for this holder in this round with this roster: see `identities`.
    """

    sealed: Sealed
    key_commitment: Hex32
    seed_commitment: Hex32
    signature: Signature = UNSIGNED


class SealedShares(FromClient):
    """Phase `shares`: what is sealed for every other client, and commitments to the shares that the sender keeps."""

    transcript: Hex32
    shares: Annotated[Mapping[ClientName, SealedShare], Field(max_length=MOST_CLIENTS)]
    key_commitment: Hex32
    seed_commitment: Hex32


class Delivery(OfRound):
    """What the aggregator passes on to one client: what every other sharer has sealed for it."""

    shares: Annotated[Mapping[ClientName, SealedShare], Field(max_length=MOST_CLIENTS)]


class Complaint(Message):
    """The point that a dealer's and a holder's keys agree on, with a proof that it is: whoever has it can open what
    the dealer has sealed for this holder, and sees that it is not what the dealer committed to."""

    point: Hex32
    challenge: Scalar
    response: Scalar


class ShareCheck(SignedByClient):
    """Phase `checks`: the sender holds what every sharer owes it, but for those that it complains of."""

    transcript: Hex32
    complaints: Annotated[Mapping[ClientName, Complaint], Field(max_length=MOST_CLIENTS)]


class ExpulsionEvidence(Message):
    """Why a dealer was put out of the round: what it has signed for a holder, and that holder's complaint about it."""

    dealer: ClientName
    holder: ClientName
    share: SealedShare
    complaint: Complaint


class Sharers(OfRound):
    """Who masks with whom: all who have checked, without those that are put out by evidence."""

    sharers: Names
    evidence: Annotated[tuple[ExpulsionEvidence, ...], Field(max_length=MOST_CLIENTS)] = ()


class MaskedHeader(FromClient):
    """Phase `masked`: what goes with a masked vector. `scalars` are the open ones."""

    digest: Hex32
    scalars: Annotated[Mapping[str, Finite], Field(max_length=20)]


class UnmaskRequest(OfRound):
    """All sharers, as two lists: whose vectors are in the sum, and who dropped out before sending one."""

    survivors: Names
    dropped: Names


class Consent(SignedByClient):
    """Phase `consents`: the sender has seen these two lists, and signs no others in this round."""

    transcript: Hex32
    survivors: Names
    dropped: Names


class Consents(OfRound):
    """The survivors' signatures under one and the same pair of lists."""

    signatures: Annotated[Mapping[ClientName, Signature], Field(max_length=MOST_CLIENTS)]


class UnmaskAnswer(FromClient):
    """Phase `answers`: shares of the survivors' seeds and of the mask keys of those who dropped out."""

    seeds: SharesOf
    keys: SharesOf
