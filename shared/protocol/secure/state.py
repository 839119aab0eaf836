"""Client's state in each phase of a secure round and its form on disk; secret.

One record for each phase, so that a step out of order is a type error.
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
    """Secret scalars of one round, of the four points of `PublicKeys`."""

    deal: Scalar = Field(repr=False)
    cipher: Scalar = Field(repr=False)
    mask: Scalar = Field(repr=False)
    seed: Scalar = Field(repr=False)


class SharePair(Message):
    """Share of a client's mask key, and share of its own mask's seed."""

    key: Scalar = Field(repr=False)
    seed: Scalar = Field(repr=False)

    def encode(self) -> bytes:
        """Encodes both shares for sealing."""
        return bytes.fromhex(self.key + self.seed)

    @staticmethod
    def decode(content: bytes) -> SharePair:
        """Decodes two shares; raises ProtocolError for bytes that are no two scalars."""
        text = content.hex()
        try:
            return SharePair(key=text[: 2 * BYTES], seed=text[2 * BYTES :])
        except ValidationError:
            raise ProtocolError("expected two shares in a sealed message, got something else") from None


class BegunState(Message):
    """State after `begin_secure_round`: keys are made and signed."""

    phase: Literal["begun"] = "begun"
    client: ClientName
    terms: RoundTerms
    secrets: Secrets
    message: PublicKeys


class SharingState(Message):
    """State after `share_secrets`: the roster is accepted and the secrets are shared.

    own: this client's shares of its own secrets. message: the others' shares, to be sent again after a restart:
    another split of the same secrets would not fit what was sent before.
    """

    phase: Literal["sharing"] = "sharing"
    client: ClientName
    secrets: Secrets
    roster: Roster
    own: SharePair
    message: SealedShares


class CheckedState(Message):
    """State after `check_shares`: valid shares by dealer; `message` complains about the others."""

    phase: Literal["checked"] = "checked"
    client: ClientName
    secrets: Secrets
    roster: Roster
    shares: Mapping[ClientName, SharePair] = Field(repr=False)
    message: ShareCheck


class ReadyState(Message):
    """State after `mask_update`: it is fixed which clients mask with each other.

    shares: of each sharer whose shares this client holds. listed: on a graph all sharers, of whom it holds few.
    masks_with: on a graph those with whom it shares a mask. sent: the digest of what was masked. proven: clients
    expelled by evidence that this client has checked. consent: the only pair of lists that it has signed.
    """

    phase: Literal["ready"] = "ready"
    client: ClientName
    secrets: Secrets
    roster: Roster
    shares: Mapping[ClientName, SharePair] = Field(repr=False)
    listed: Names | None = Field(None, exclude_if=lambda listed: listed is None)
    masks_with: Names | None = Field(None, exclude_if=lambda names: names is None)
    sent: Hex32
    proven: Names = ()
    consent: Consent | None = None

    @property
    def sharers(self) -> tuple[str, ...]:
        """Clients that mask in this round, itself included, sorted."""
        return tuple(sorted(self.shares)) if self.listed is None else self.listed


State = BegunState | SharingState | CheckedState | ReadyState
_STATE: TypeAdapter[State] = TypeAdapter(Annotated[State, Field(discriminator="phase")])


def write_state(state: State) -> str:
    """Writes the state as JSON, with its secrets."""
    if isinstance(state, BegunState):
        return state.model_dump_json()
    return f'{state.model_dump_json(exclude={"roster"})[:-1]},"roster":{state.roster.text}}}'


def read_state(text: str) -> State:
    """Reads a state that `write_state` wrote; raises DataError, without its text, for another."""
    try:
        return _STATE.validate_json(text)
    except ValidationError:
        raise DataError("expected the saved state of a secure round, got other content") from None


def find_terms(state: State) -> RoundTerms:
    """Returns the terms that the round began with."""
    return state.terms if isinstance(state, BegunState) else state.roster.terms
