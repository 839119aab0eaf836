"""Messages of a secure round. Bytes travel as hexadecimal text; masked tensors never as JSON.

A round: PublicKeys -> Roster -> SealedShares -> Delivery -> ShareCheck -> Sharers -> MaskedHeader and vector ->
UnmaskRequest -> Consent -> Consents -> UnmaskAnswer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, Field, model_validator

from shared.errors import ProtocolError
from shared.message import Message
from shared.method.declaration import Declaration
from shared.protocol.schemas import ClientName, GraphBounds, RunName
from shared.protocol.secure.fixed_point import MOST_CLIENTS
from shared.protocol.secure.group import BYTES, ORDER
from shared.protocol.secure.hash_tree import HASH_BYTES, HashTree
from shared.protocol.secure.keys import NONCE_BYTES, PROTOCOL, TAG_BYTES, Context
from shared.strategies import find_strategy

VERSION = 4
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
HIGHEST_TREE = (MOST_CLIENTS - 1).bit_length()  # levels above the leaves of the most holders
TreePath = Annotated[
    str, Field(pattern=rf"^(?:[0-9a-f]{{{2 * HASH_BYTES}}}){{0,{HIGHEST_TREE}}}$", examples=["3c" * HASH_BYTES])
]
Tag = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", examples=["7a" * 16])]
Tags = Annotated[Mapping[ClientName, Tag], Field(max_length=MOST_CLIENTS)]


def _tags(description: str) -> Any:
    """Declares tags of a graph's round, which a round without a graph leaves out."""
    return Field(default_factory=dict, description=f"on a graph: {description}", exclude_if=lambda tags: not tags)


class RoundMessage(Message):
    """Message of a round, with its version, run and round."""

    version: Literal[4] = Field(4, description="version of the protocol")
    run: RunName
    round: int = Field(ge=1, le=100_000, description="number of the round")


class ClientMessage(RoundMessage):
    client: ClientName


class SignedClientMessage(ClientMessage):
    """Message with its sender's signature, which others can check too: see `proofs`."""

    signature: Signature = Field(UNSIGNED, description="the client's signature over the rest of the message")


class GraphPlan(Message):
    """Size of the graph of a round's neighbours, which follows from its bounds."""

    degree: int = Field(ge=2, le=MOST_CLIENTS, description="number of neighbours who hold each client's shares")
    threshold: int = Field(ge=2, le=MOST_CLIENTS, description="number of shares that restore a secret")
    masks: int = Field(ge=1, le=MOST_CLIENTS, description="number of clients that each draws to mask with")


class CommonTerms(Message):
    """Terms of a round that must be the same for every client.

    Digests are sha256 in hexadecimal: see `common`.
    """

    aggregator: Hex32 = Field(description="the aggregator's public key, which verifies its answers")
    start: Hex32 = Field(description="digest of the parameters that the round begins with, before Eq. 14")
    method: Hex32 = Field(description="digest of the run's settings")
    seed: int = Field(ge=0, lt=1 << 32, description="seed of the run")
    rounds: int = Field(ge=1, le=100_000, description="number of rounds of the run")
    anchor: Hex32 = Field(description="digest of all that determines the anchor's kernel K^R")
    changing_members: bool = Field(False, description="whether a single client may leave or join between rounds")
    graph: GraphBounds | None = Field(
        None,
        description="bounds on the graph of neighbours; none: everybody is everybody's neighbour",
        exclude_if=lambda graph: graph is None,
    )


class RoundTerms(RoundMessage):
    """Terms of a round, which each client compares with its own."""

    threshold: int = Field(ge=FEWEST_CLIENTS, le=MOST_CLIENTS, description="number of shares that restore a secret")
    declaration: Declaration = Field(description="all that a client may send")
    common: CommonTerms = Field(description="terms that must be the same for every client")


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

    identity: Hex32 = Field(description="the client's registered Ed25519 key")
    deal: Hex32 = Field(description="key for the shares that the client seals")
    possession: Possession = Field(description="proof that the client knows the secret of `deal`")
    cipher: Hex32 = Field(description="key for the shares that are sealed for the client")
    mask: Hex32 = Field(description="key for the pairwise masks, which is also the commitment to its own secret")
    commitment: Hex32 = Field(description="commitment to the seed of the client's own mask")
    common: CommonTerms = Field(description="terms of the round, as the client has received them")
    noised: bool = Field(False, description="whether the client's update is differentially private")
    changing_members: bool = Field(
        False, description="whether the silo allows that it alone leaves or joins between rounds"
    )
    stamp: Hex32 | None = Field(
        None,
        description="basis runs: fingerprint of the silo's data, the same until they change",
        exclude_if=lambda stamp: stamp is None,
    )
    catalogue: Hex32 | None = Field(
        None,
        description="basis runs: sha256 of the basis of the sum, such as the list of items, the same for all members;"
        " sha256 of the words 'nothing to add' where the part is zeros",
        exclude_if=lambda one: one is None,
    )
    draw: Hex32 | None = Field(
        None,
        description="on a graph: commitment to the number that draws the client's neighbours",
        exclude_if=lambda draw: draw is None,
    )


def possession_label(terms: RoundMessage, client: str) -> bytes:
    """Returns the label that binds a proof of possession to a client and round."""
    return f"{PROTOCOL}\npossession\n{terms.version}\n{terms.run}\n{terms.round}\n{client}\n".encode()


class DerivedMessage(Message):
    """Message with parts that follow from its fields, computed once."""

    def __copy__(self) -> Self:
        """Copies the fields alone, because other parts follow from those of a changed copy."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return cast(Self, type(self).model_construct(self.model_fields_set, **fields))


class Roster(DerivedMessage):
    """Public keys of all clients of the round."""

    terms: RoundTerms = Field(description="terms of the round")
    members: tuple[PublicKeys, ...] = Field(
        max_length=MOST_CLIENTS, description="public keys of each client, in ascending order of names"
    )
    graph: GraphPlan | None = Field(
        None,
        description="size of the graph of neighbours; none: everybody is everybody's neighbour",
        exclude_if=lambda graph: graph is None,
    )

    @model_validator(mode="after")
    def _members_of_one_round(self) -> Roster:
        _is_ascending(self.names)
        if any((one.run, one.round) != (self.terms.run, self.terms.round) for one in self.members):
            raise ValueError("expected the keys of one round")
        return self

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(one.client for one in self.members)

    @cached_property
    def keys(self) -> dict[str, PublicKeys]:
        return {one.client: one for one in self.members}

    @cached_property
    def points(self) -> dict[str, int]:
        """Place of each client among the members, from 1 on."""
        return {name: x for x, name in enumerate(self.names, start=1)}

    @property
    def share_threshold(self) -> int:
        """Number of shares that restore a secret."""
        return self.terms.threshold if self.graph is None else self.graph.threshold

    @property
    def fewest(self) -> int:
        """Smallest number of clients that may go on to the sum."""
        bounds, threshold = self.terms.common.graph, self.terms.threshold
        if self.graph is None or bounds is None:
            return threshold
        return max(threshold, len(self.members) - bounds.count_dropouts(len(self.members)))

    @cached_property
    def text(self) -> str:
        """This roster as JSON, written once.

        It is long, and in several answers and states.
        """
        return self.model_dump_json()

    @cached_property
    def context(self) -> Context:
        """Context of the round, with the digest of this roster."""
        transcript = hashlib.sha256(self.text.encode()).hexdigest()
        return Context(self.terms.version, self.terms.run, self.terms.round, transcript)


class SharingProof(Message):
    """Proof that a sharing is of a published point's secret: see `shamir`."""

    head: Hex32 = Field(description="point of the secret that blinds the responses")
    response: Scalar = Field(description="response for the secret itself, at x = 0")


class CommittedShares(Message):
    """Commitments to a holder's shares of both secrets, and responses about them."""

    key_commitment: Hex32 = Field(description="commitment to the share of the mask's secret")
    seed_commitment: Hex32 = Field(description="commitment to the share of the seed")
    key_response: Scalar = Field(description="response for the share of the mask's secret")
    seed_response: Scalar = Field(description="response for the share of the seed")


class SealedShare(CommittedShares):
    """Shares of a dealer's two secrets, sealed for one holder, with commitments."""

    sealed: Sealed = Field(description="both shares, sealed for the holder")

    def hash_for(self, holder: str, dealer: str, challenge: str, context: Context) -> bytes:
        """Computes the hash of this share, bound to dealer, holder and the round's roster."""
        parts = self.key_commitment, self.seed_commitment, self.key_response, self.seed_response, challenge
        content = bytes.fromhex(self.sealed + "".join(parts))
        return hashlib.sha256(context.label("signed share", dealer, holder) + content).digest()


class DeliveredShare(SealedShare):
    """Share as its holder gets it, with the evidence that the dealer has signed it."""

    challenge: Scalar = Field(description="challenge that follows from all commitments of the dealer")
    path: TreePath = Field(description="hashes that lead from this share to the root of all shares of the dealer")
    signature: Signature = Field(UNSIGNED, description="the dealer's signature under the root: see `proofs`")


class SealedShares(ClientMessage, DerivedMessage):
    """Message of phase `shares`: sealed shares for every neighbour.

    It also has commitments to the shares that the sender keeps.
    """

    transcript: Hex32 = Field(description="digest of the roster")
    shares: Mapping[ClientName, SealedShare] = Field(
        min_length=1, max_length=MOST_CLIENTS, description="sealed shares by holder"
    )
    own: CommittedShares = Field(description="commitments to the shares that the sender keeps")
    challenge: Scalar = Field(description="challenge that follows from all commitments")
    key_proof: SharingProof = Field(description="proof that the shares of a key are of the mask's secret")
    seed_proof: SharingProof = Field(description="proof that the shares of a seed are of the committed one")
    signature: Signature = Field(UNSIGNED, description="the sender's signature under the root of all sealed shares")
    draw: Hex32 | None = Field(
        None,
        description="on a graph: number that has drawn the sender's neighbours",
        exclude_if=lambda draw: draw is None,
    )

    @cached_property
    def tree(self) -> HashTree:
        """Tree over the hashes of the sealed shares, in the order of their holders."""
        context = Context(self.version, self.run, self.round, self.transcript)
        given = sorted(self.shares.items())
        return HashTree([share.hash_for(name, self.client, self.challenge, context) for name, share in given])

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Place of each holder's share in the tree."""
        return {name: place for place, name in enumerate(sorted(self.shares))}

    def deliver(self, holder: str) -> DeliveredShare:
        """Returns a holder's share with the evidence that the sender has signed it."""
        path = self.tree.find_path(self.places[holder]).hex()
        signed = {"challenge": self.challenge, "path": path, "signature": self.signature}
        return DeliveredShare(**self.shares[holder].__dict__, **signed)

    @property
    def holders(self) -> tuple[str, ...]:
        """Holders of the sender's shares, itself among them, in the order of their x."""
        return tuple(sorted({self.client, *self.shares}))

    def committed_to(self, holder: str) -> CommittedShares:
        """Returns the commitments to the shares of a holder."""
        return self.own if holder == self.client else self.shares[holder]

    def reaches(self, client: str) -> bool:
        """Tells whether a client holds shares of the sender."""
        return client in self.shares or client == self.client

    def count_holders(self, clients: Set[str]) -> int:
        """Counts those of the clients that hold shares of the sender."""
        return len(clients & self.shares.keys()) + (self.client in clients)


class Delivery(RoundMessage):
    """Shares that every other sharer has sealed for one client."""

    shares: Mapping[ClientName, DeliveredShare] = Field(max_length=MOST_CLIENTS, description="sealed shares by dealer")


class Complaint(Message):
    """Complaint about a dealer's shares, with a proof.

    With the point, which the dealer's and the holder's keys agree on, everybody can open the sealed shares and see
    that they differ from the dealer's commitments.
    """

    point: Hex32 = Field(description="point that both keys agree on")
    challenge: Scalar = Field(description="the proof's first half")
    response: Scalar = Field(description="the proof's second half")


class ShareCheck(SignedClientMessage):
    """Message of phase `checks`: the shares are valid, except those complained about."""

    transcript: Hex32 = Field(description="digest of the roster")
    complaints: Mapping[ClientName, Complaint] = Field(max_length=MOST_CLIENTS, description="complaints by dealer")
    tags: Tags = _tags("by member, the tag under the roster that the sender has seen")


class ExpulsionEvidence(Message):
    """Evidence against an expelled dealer: its signed shares and a holder's complaint."""

    dealer: ClientName = Field(description="name of the expelled client")
    holder: ClientName = Field(description="name of the client that complains")
    share: DeliveredShare = Field(description="shares that the dealer has signed for the holder")
    complaint: Complaint = Field(description="the holder's complaint, with which everybody can open the shares")


class Sharers(RoundMessage):
    """Clients that mask with each other, and evidence against those expelled."""

    sharers: Names = Field(description="names of the clients that mask in this round")
    evidence: tuple[ExpulsionEvidence, ...] = Field(
        (), max_length=MOST_CLIENTS, description="evidence against each expelled client"
    )
    draws: Mapping[ClientName, Hex32] = Field(
        default_factory=dict,
        max_length=MOST_CLIENTS,
        description="on a graph: number that has drawn the neighbours of each sharer",
        exclude_if=lambda draws: not draws,
    )
    tags: Tags = _tags("by sharer, its tag for the receiver under the roster that it has seen")


class MaskedHeader(ClientMessage):
    """Header of a masked vector, with the open scalars."""

    digest: Hex32
    scalars: Annotated[Mapping[str, Finite], Field(max_length=20)]
    peers: Signature | None = Field(
        None,
        description="on a graph: signature under the list of sharers that the client was told",
        exclude_if=lambda peers: peers is None,
    )


class UnmaskRequest(RoundMessage):
    """Lists of survivors and drop-outs, for the survivors to sign."""

    survivors: Names = Field(description="clients whose vectors are in the sum")
    dropped: Names = Field(description="clients that dropped out before sending a vector")


class Consent(SignedClientMessage):
    """Message of phase `consents`: the only lists that the sender signs in this round."""

    transcript: Hex32 = Field(description="digest of the roster")
    survivors: Names = Field(description="clients whose vectors are in the sum")
    dropped: Names = Field(description="clients that dropped out before sending a vector")
    tags: Tags = _tags("by survivor, the tag under the same lists")


class Consents(RoundMessage):
    """Signatures of the survivors under the same lists."""

    signatures: Mapping[ClientName, Signature] = Field(max_length=MOST_CLIENTS, description="signatures by survivor")
    tags: Tags = _tags("by survivor, its tag for the receiver under the same lists")
    peers: Mapping[ClientName, Signature] = Field(
        default_factory=dict,
        max_length=MOST_CLIENTS,
        description="on a graph: of each survivor without consent whose shares the receiver holds, its signature under"
        " the sharers",
        exclude_if=lambda peers: not peers,
    )


class UnmaskAnswer(ClientMessage):
    """Message of phase `answers`: shares of survivors' seeds and drop-outs' mask keys."""

    seeds: SharesOf = Field(description="shares of the survivors' seeds, by survivor")
    keys: SharesOf = Field(description="shares of the drop-outs' mask keys, by client")
