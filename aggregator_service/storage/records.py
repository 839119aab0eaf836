"""What the rows of the database hold, as the rest of the service knows it. Times are seconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from shared.method.declaration import Counts
from shared.method.parameters import Scalars
from shared.protocol.schemas import Cause

Call = Literal["join", "update", "keys", "shares", "checks", "consents", "answers", "other"]


@dataclass(frozen=True)
class JoinedClient:
    """A client of the federation. Its public key lies in the folder of registered keys."""

    name: str
    counts: Counts | None
    joined_at: float


@dataclass(frozen=True)
class Quarantine:
    """One client shut out. `run` and `round`: where that came about, if in a run."""

    client: str
    cause: Cause
    reason: str
    since: float
    run: str | None = None
    round: int | None = None


@dataclass(frozen=True)
class Receipt:
    """One accepted update. `digest`: sha256 of its body in hex; `size`: bytes of its body."""

    run: str
    round: int
    client: str
    digest: str
    size: int
    received_at: float


@dataclass(frozen=True)
class StoredUpdate:
    """An accepted update; `blob`: the file with its body, None once retention has deleted it."""

    receipt: Receipt
    scalars: Scalars
    blob: str | None


@dataclass(frozen=True)
class StoredState:
    """The aggregator's memory after a round, and when that round opened and closed.

    `latest`: the scalars that each client has sent last; `blob`: the file with its arrays, None once deleted.
    """

    run: str
    round: int
    digest: str
    latest: dict[str, Scalars]
    blob: str | None
    opened_at: float
    closed_at: float


@dataclass(frozen=True)
class Anchor:
    """K^R, where the size of G_R came from, and that size; None where an earlier version has drawn it."""

    kernel: tuple[float, ...]
    source: str
    size: Counts | None


@dataclass(frozen=True)
class UncoveredSum:
    """The members of a secure sum, and the parameters, method and seed that it began with."""

    start: str
    method: str
    seed: int
    run: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class Arrival:
    """A request with a body, from whom, and what was answered.

    run, round: of the path; code: of a refusal; nonce: of the signature; head: the fields of a `HeadOut`.
    """

    client: str
    call: Call
    run: str | None
    round: int | None
    size: int
    digest: str
    status: int
    code: str | None
    nonce: str | None
    head: dict[str, Any]


def instant(seconds: float) -> str:
    """Seconds since the epoch as UTC, ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()
