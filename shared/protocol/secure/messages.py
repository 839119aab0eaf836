"""Messages of a secure round. Bytes travel as hexadecimal text; masked tensors never as JSON.

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
    """Returns the least threshold: more than two thirds of the clients, and three.

    Two lists of survivors, each signed by as many, have an honest signer in common as long as at most a third of the
    clients lie, and an honest client signs one list a round (Bonawitz et al. 2017, section 6, active adversaries).
    """
    return max(FEWEST_CLIENTS, 2 * clients // 3 + 1)


def hidden_scalars(declaration: Declaration) -> tuple[str, ...]:
    """Lists the declared scalars that are summed under masks, sorted."""
    return tuple(sorted(set(declaration.scalars) - visible_scalars(declaration)))


def visible_scalars(declaration: Declaration) -> frozenset[str]:
    """Returns the declared scalars that are readable beside a masked vector."""
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


Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", examples=["5e" * 32])]
Scalar = Annotated[Hex32, Field(examples=["0e" * 32]), AfterValidator(_is_scalar)]
Signature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$", examples=["1b" * 64])]
SEALED_BYTES = NONCE_BYTES + SHARE_PAIR_BYTES + TAG_BYTES
Sealed = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * SEALED_BYTES}}}$", examples=["77" * SEALED_BYTES])]
Names = Annotated[tuple[ClientName, ...], Field(max_length=MOST_CLIENTS), AfterValidator(_is_ascending)]
SharesOf = Annotated[Mapping[ClientName, Scalar], Field(max_length=MOST_CLIENTS)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
UNSIGNED = "0" * 128


class RoundMessage(Message):
    """Message of a round, with its version, run and round."""

    version: Literal[2] = Field(2, description="of these messages")
    run: RunName
    round: int = Field(ge=1, le=100_000, description="the round that the message belongs to")


class ClientMessage(RoundMessage):
    client: ClientName


class SignedClientMessage(ClientMessage):
    """Message with its sender's signature, which others can check too: see `proofs`."""

    signature: Signature = Field(UNSIGNED, description="the client's, over the rest of the message")


class CommonTerms(Message):
    """Terms that every client of a round must have been told alike.

    Digests are sha256 in hexadecimal: see `common`.
    """

    aggregator: Hex32 = Field(description="the key that its answers are signed with")
    start: Hex32 = Field(description="digest of the parameters that the round begins with, before Eq. 14")
    method: Hex32 = Field(description="digest of the run's settings")
    seed: int = Field(ge=0, lt=1 << 32, description="the run's")
    rounds: int = Field(ge=1, le=100_000, description="the run's")
    anchor: Hex32 = Field(description="digest of what K^R follows from")
    changing_members: bool = Field(False, description="may a single client leave or join between rounds?")


class RoundTerms(RoundMessage):
    """Terms of a round, which each client compares with its own."""

    threshold: int = Field(ge=FEWEST_CLIENTS, le=MOST_CLIENTS, description="shares that restore a secret")
    declaration: Declaration = Field(description="all that a client may send")
    common: CommonTerms = Field(description="what every client must have been told alike")


def require_round(terms: RoundMessage, message: RoundMessage) -> None:
    """Raises ProtocolError for a message of another run or round."""
    if (message.run, message.round) != (terms.run, terms.round):
        raise ProtocolError(f"expected round {terms.round} of {terms.run}, got round {message.round} of {message.run}")


class Possession(Message):
    """Proof that the sender knows the secret of a key: see `proofs`."""

    challenge: Scalar = Field(description="the proof's first half")
    response: Scalar = Field(description="the proof's second half")


class PublicKeys(SignedClientMessage):
    """Message of phase `keys`. All keys are points of the group except `identity`."""

    identity: Hex32 = Field(description="the Ed25519 key that the client is known by")
    deal: Hex32 = Field(description="key for the shares that the client seals")
    possession: Possession = Field(description="proof that it has the secret of `deal`")
    cipher: Hex32 = Field(description="key for the shares that are sealed for it")
    mask: Hex32 = Field(description="key for the pairwise masks, and at once the commitment to its own secret")
    commitment: Hex32 = Field(description="to the seed of the client's own mask")
    common: CommonTerms = Field(description="what the client was told of the round")
    noised: bool = Field(False, description="what it sends is differentially private")
    changing_members: bool = Field(False, description="the silo's word that it bears a change of itself alone")
    stamp: Hex32 | None = Field(
        None, description="basis runs: the same as long as the silo's data are", exclude_if=lambda stamp: stamp is None
    )
    catalogue: Hex32 | None = Field(
        None,
        description="basis runs: sha256 of what the sum is over, such as the list of items, all members' alike; that of"
        " the words 'nothing to add' where the part is zeros",
        exclude_if=lambda one: one is None,
    )


def possession_label(terms: RoundMessage, client: str) -> bytes:
    """Returns the label that binds a proof of possession to a client and round."""
    return f"{PROTOCOL}\npossession\n{terms.version}\n{terms.run}\n{terms.round}\n{client}\n".encode()


class Roster(Message):
    """Public keys of all clients of the round."""

    terms: RoundTerms = Field(description="what all must agree on")
    members: tuple[PublicKeys, ...] = Field(max_length=MOST_CLIENTS, description="in ascending order of their names")

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
        """Context of the round, with the digest of this roster."""
        transcript = hashlib.sha256(self.model_dump_json().encode()).hexdigest()
        return Context(self.terms.version, self.terms.run, self.terms.round, transcript)


class SealedShare(Message):
    """Shares of a dealer's two secrets, sealed for one holder, with commitments."""

    sealed: Sealed = Field(description="both shares, for the holder alone")
    key_commitment: Hex32 = Field(description="to the share of the mask's secret")
    seed_commitment: Hex32 = Field(description="to the share of the seed")
    signature: Signature = Field(
        UNSIGNED, description="the dealer's, for this holder in this round with this roster: see `identities`"
    )


class SealedShares(ClientMessage):
    """Message of phase `shares`: sealed shares for every other client.

    And commitments to the shares that the sender keeps.
    """

    transcript: Hex32 = Field(description="digest of the roster")
    shares: Mapping[ClientName, SealedShare] = Field(max_length=MOST_CLIENTS, description="by holder")
    key_commitment: Hex32 = Field(description="to the sender's own share of the mask's secret")
    seed_commitment: Hex32 = Field(description="to the sender's own share of the seed")


class Delivery(RoundMessage):
    """Shares that every other sharer has sealed for one client."""

    shares: Mapping[ClientName, SealedShare] = Field(max_length=MOST_CLIENTS, description="by dealer")


class Complaint(Message):
    """Complaint about a dealer's shares, with a proof.

    The point that the dealer's and the holder's keys agree on: with it the sealed shares can be opened, to see that
    they are not what the dealer committed to.
    """

    point: Hex32 = Field(description="on which both keys agree")
    challenge: Scalar = Field(description="the proof's first half")
    response: Scalar = Field(description="the proof's second half")


class ShareCheck(SignedClientMessage):
    """Message of phase `checks`: the shares are valid, except those complained about."""

    transcript: Hex32 = Field(description="digest of the roster")
    complaints: Mapping[ClientName, Complaint] = Field(max_length=MOST_CLIENTS, description="by dealer")


class ExpulsionEvidence(Message):
    """Evidence against an expelled dealer: its signed shares and a holder's complaint."""

    dealer: ClientName = Field(description="who is put out")
    holder: ClientName = Field(description="who complains")
    share: SealedShare = Field(description="what the dealer has signed for the holder")
    complaint: Complaint = Field(description="the holder's, by which everybody can open the share")


class Sharers(RoundMessage):
    """Clients that mask with each other, and evidence against those expelled."""

    sharers: Names = Field(description="who masks in this round")
    evidence: tuple[ExpulsionEvidence, ...] = Field((), max_length=MOST_CLIENTS, description="against who is put out")


class MaskedHeader(ClientMessage):
    """Header of a masked vector, with the open scalars."""

    digest: Hex32
    scalars: Annotated[Mapping[str, Finite], Field(max_length=20)]


class UnmaskRequest(RoundMessage):
    """Lists of survivors and drop-outs, for the survivors to sign."""

    survivors: Names = Field(description="whose vectors are in the sum")
    dropped: Names = Field(description="who dropped out before sending one")


class Consent(SignedClientMessage):
    """Message of phase `consents`: the only lists that the sender signs in this round."""

    transcript: Hex32 = Field(description="digest of the roster")
    survivors: Names = Field(description="whose vectors are in the sum")
    dropped: Names = Field(description="who dropped out before sending one")


class Consents(RoundMessage):
    """Signatures of the survivors under the same lists."""

    signatures: Mapping[ClientName, Signature] = Field(max_length=MOST_CLIENTS, description="by survivor")


class UnmaskAnswer(ClientMessage):
    """Message of phase `answers`: shares of survivors' seeds and drop-outs' mask keys."""

    seeds: SharesOf = Field(description="by survivor")
    keys: SharesOf = Field(description="by client that dropped out")
