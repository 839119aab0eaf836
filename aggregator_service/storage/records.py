"""Records of the database's rows; times are seconds since the epoch."""

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
    """Client of the federation; its public key lies in the folder of registered keys."""

    name: str
    counts: Counts | None
    joined_at: float


@dataclass(frozen=True)
class Quarantine:
    """Quarantine of one client; `run` and `round`: where it arose, if in a run."""

    client: str
    cause: Cause
    reason: str
    since: float
    run: str | None = None
    round: int | None = None


@dataclass(frozen=True)
class Receipt:
    """One accepted update; `digest`: sha256 of its body in hex; `size`: in bytes."""

    run: str
    round: int
    client: str
    digest: str
    size: int
    received_at: float


@dataclass(frozen=True)
class StoredUpdate:
    """Accepted update; `blob`: file with its body, None once retention has deleted it.

    parts: digests of its parts (`body_parts`), if they were counted and are asked for.
    """

    receipt: Receipt
    scalars: Scalars
    blob: str | None
    parts: bytes | None = None


@dataclass(frozen=True)
class StoredState:
    """State of the aggregator after a round, and the times of that round.

    latest: last scalars of each client. blob: file with the arrays, None once deleted.
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
    """Anchor kernel K^R, the source of the size of G_R, and that size.

    The size is None if an earlier version has drawn it.
    """

    kernel: tuple[float, ...]
    source: str
    size: Counts | None


@dataclass(frozen=True)
class UncoveredSum:
    """Members of an opened secure sum, with its initial parameters, method and seed."""

    start: str
    method: str
    seed: int
    run: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class Arrival:
    """Request that the audit log records, with its client and its answer.

    run, round: of the path. code: of a refusal. nonce: of the signature. head: fields of a `HeadOut`.
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
    """Formats seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()
