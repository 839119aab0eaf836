"""What a client knows in each phase of a secure round, and its form on disk. All of it is secret.

A record for each phase, so that a step out of order is a type error and not a surprise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from shared.errors import DataError, ProtocolError
from shared.message import Message
from shared.protocol.schemas import ClientName
from shared.protocol.secure.group import BYTES
from shared.protocol.secure.messages import (
    Consent,
    Hex32,
    Names,
    PublicKeys,
    Roster,
    RoundTerms,
    Scalar,
    SealedShares,
    ShareCheck,
)


class Secrets(Message):
    """The secret scalars of one round, to the four points of `PublicKeys`."""

    deal: Scalar = Field(repr=False)
    cipher: Scalar = Field(repr=False)
    mask: Scalar = Field(repr=False)
    seed: Scalar = Field(repr=False)


class SharePair(Message):
    """One share of each of a client's two secrets: the mask key, and the seed of its own mask."""

    key: Scalar = Field(repr=False)
    seed: Scalar = Field(repr=False)

    def encode(self) -> bytes:
        """As it is sealed."""
        return bytes.fromhex(self.key + self.seed)

    @staticmethod
    def decode(content: bytes) -> SharePair:
        """ProtocolError for bytes that are no two scalars."""
        text = content.hex()
        try:
            return SharePair(key=text[: 2 * BYTES], seed=text[2 * BYTES :])
        except ValidationError:
            raise ProtocolError("expected two shares in a sealed message, got something else") from None


class BegunRound(Message):
    """After `begin`: keys are made and signed."""

    phase: Literal["begun"] = "begun"
    client: ClientName
    terms: RoundTerms
    secrets: Secrets
    message: PublicKeys


class Sharing(Message):
    """After `share`: the roster is accepted; `own` are this client's shares of its own secrets, `message` has the
    others', to be sent again after a restart: another split of the same secrets would not fit what was sent before."""

    phase: Literal["sharing"] = "sharing"
    client: ClientName
    secrets: Secrets
    roster: Roster
    own: SharePair
    message: SealedShares


class Checked(Message):
    """After `check`: the shares that could be opened, by dealer; `message` complains of the others."""

    phase: Literal["checked"] = "checked"
    client: ClientName
    secrets: Secrets
    roster: Roster
    shares: Mapping[ClientName, SharePair] = Field(repr=False)
    message: ShareCheck


class Ready(Message):
    """After `mask`: it is fixed who masks with whom. `sent`: the digest of what was masked; `proven`: who was put out
    by evidence that this client has checked; `consent`: the one pair of lists that it has signed."""

    phase: Literal["ready"] = "ready"
    client: ClientName
    secrets: Secrets
    roster: Roster
    shares: Mapping[ClientName, SharePair] = Field(repr=False)
    sent: Hex32
    proven: Names = ()
    consent: Consent | None = None

    @property
    def sharers(self) -> tuple[str, ...]:
        """With whom this client has a mask, itself included, sorted."""
        return tuple(sorted(self.shares))


State = BegunRound | Sharing | Checked | Ready
_STATE: TypeAdapter[State] = TypeAdapter(Annotated[State, Field(discriminator="phase")])


def state_json(state: State) -> str:
    """The state as JSON. It holds secrets."""
    return state.model_dump_json()


def read(text: str) -> State:
    """What `written` wrote; DataError, without any of the text, if it is something else."""
    try:
        return _STATE.validate_json(text)
    except ValidationError:
        raise DataError("expected the state of a secure round as it was written, got something else") from None


def terms_of(state: State) -> RoundTerms:
    """What the round was begun on."""
    return state.terms if isinstance(state, BegunRound) else state.roster.terms
