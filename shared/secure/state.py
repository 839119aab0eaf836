"""What a client knows in each phase of a secure round, and its form on disk. All of it is secret.

A record for each phase, so that a step out of order is a type error and not a surprise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from shared.errors import DataError
from shared.schemas import ClientName, Message
from shared.secure.messages import Hex32, Roster, SealedShares, Share, Terms, UnmaskRequest


class Secrets(Message):
    """Two X25519 private keys and the seed of the client's own mask, of one round."""

    cipher: Hex32 = Field(repr=False)
    mask: Hex32 = Field(repr=False)
    seed: Hex32 = Field(repr=False)


class SharePair(Message):
    """One share of each of a client's two secrets."""

    seed: Share = Field(repr=False)
    key: Share = Field(repr=False)


class Begun(Message):
    """After `begin`: keys are made."""

    phase: Literal["begun"] = "begun"
    client: ClientName
    secrets: Secrets
    terms: Terms


class Sharing(Message):
    """After `share`: the roster is accepted; `own` are this client's shares of its own secrets, `message` has the
    others', to be sent again after a restart: another split of the same secrets would not fit what was sent before."""

    phase: Literal["sharing"] = "sharing"
    client: ClientName
    secrets: Secrets
    roster: Roster
    own: SharePair
    message: SealedShares


class Ready(Message):
    """After `take`: shares of everybody who has shared are here. `sent`: the digest of what was masked, once it was;
    `answered`: the one request that was answered."""

    phase: Literal["ready"] = "ready"
    client: ClientName
    secrets: Secrets
    roster: Roster
    shares: Mapping[ClientName, SharePair] = Field(repr=False)
    sent: Hex32 | None = None
    answered: UnmaskRequest | None = None


State = Begun | Sharing | Ready
_STATE: TypeAdapter[State] = TypeAdapter(Annotated[State, Field(discriminator="phase")])


def written(state: State) -> str:
    """The state as JSON. It holds secrets."""
    return state.model_dump_json()


def read(text: str) -> State:
    """What `written` wrote; DataError, without any of the text, if it is something else."""
    try:
        return _STATE.validate_json(text)
    except ValidationError:
        raise DataError("expected the state of a secure round as it was written, got something else") from None
