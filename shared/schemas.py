"""The JSON messages of both services. Tensors never travel as JSON; see wire.py for them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.settings import MethodSettings

ClientName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="given by the operator")]
RunName = Annotated[str, Field(pattern=r"^run-[0-9]{1,9}$")]


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorSpec(Message):
    """One declared tensor: little-endian float32 of this shape."""

    name: str = Field(pattern=r"^[a-z0-9_.]{1,120}$")
    dtype: Literal["F32"] = "F32"
    shape: tuple[Annotated[int, Field(ge=0, le=1 << 30)], ...] = Field(max_length=8)


class Declaration(Message):
    """All that a strategy may send: these tensors, at most these scalars, nothing else."""

    strategy: str = Field(max_length=60)
    tensors: tuple[TensorSpec, ...] = Field(max_length=10_000)
    scalars: tuple[str, ...] = Field(max_length=20)


class Counts(Message):
    """Graph sizes that a client may agree to give for the anchor (opt-in)."""

    users: int = Field(ge=1, lt=1 << 40)
    items: int = Field(ge=1, lt=1 << 40)
    edges: int = Field(ge=1, lt=1 << 40)


class JoinIn(Message):
    """Client -> aggregator. The name must be the one whose key has signed this call."""

    client: ClientName
    declaration: Declaration
    counts: Counts | None = None


class JoinOut(Message):
    client: ClientName
    clients: int = Field(description="clients enrolled in the federation")
    warnings: tuple[str, ...] = ()


class RunIn(Message):
    """Operator -> aggregator: start a run."""

    rounds: int = Field(10, ge=1, le=100_000)
    seed: int = Field(0, ge=0, lt=1 << 32)
    clients: int = Field(2, ge=1, le=10_000, description="round 1 opens when so many have joined")
    quorum: int | None = Field(None, ge=1, description="updates a round needs at its deadline; default: clients")
    deadline_seconds: float = Field(3600.0, gt=0, le=30 * 86400, description="longest wait in any one phase")
    method: MethodSettings = MethodSettings()


Phase = Literal["waiting", "open", "aggregated", "finished", "failed"]
Standing = Literal["expected", "received", "absent"]


class RunOut(Message):
    """Aggregator -> client: where the federation stands, and this client in it. Others are only counted."""

    sequence: int = Field(description="grows with every change; hand it back as ?after= to wait for the next")
    run: RunName | None = None
    phase: Phase | None = None
    round: int = 0
    rounds: int = 0
    seed: int = 0
    seconds_left: float | None = None
    standing: Standing = Field("absent", description="of the asking client, in the current round")
    joined: int = 0
    received: int = 0
    method: MethodSettings | None = None


class AnchorOut(Message):
    """The anchor's kernel K^R: the non-zero low eigenvalues of G_R over their sum, ascending."""

    run: RunName
    round: int
    kernel: tuple[float, ...]
    source: str = Field(description="where the anchor's size came from")


class ReceiptOut(Message):
    """What the aggregator holds of one upload."""

    run: RunName
    round: int
    client: ClientName
    digest: str = Field(description="sha256 of the body as received")
    size: int = Field(description="bytes of the body")
    received_at: str = Field(description="UTC, ISO 8601")


class ArrivalOut(Message):
    """One request as it reached the aggregator, signed by a client that has joined.

    Every join and every update, and as `other` whatever no client ever sends: a body elsewhere, a question with more
    in it than was declared, a path that leads nowhere.
    """

    sequence: int
    time: str = Field(description="UTC, ISO 8601")
    client: ClientName
    call: Literal["join", "update", "other"]
    run: RunName | None = None
    round: int | None = None
    size: int = Field(description="bytes of the body that came")
    digest: str = Field(description="sha256 of these bytes")
    status: int = Field(description="HTTP status that was answered")
    code: str | None = Field(None, description="stable code of the problem, where it was refused")


class ArrivalsOut(Message):
    """Operator's view of all that arrived, oldest first."""

    entries: tuple[ArrivalOut, ...]
    total: int


class ParticipantOut(Message):
    """One client in one round, as the operator sees it."""

    client: ClientName
    received: bool
    size: int = 0
    digest: str | None = None
    received_at: str | None = None
    rho: float | None = None
    rhobar: float | None = None


class RoundOut(Message):
    number: int
    phase: Phase
    opened_at: str
    closed_at: str | None = None
    missing: tuple[ClientName, ...] = ()
    participants: tuple[ParticipantOut, ...] = ()


class RunHistoryOut(Message):
    """Operator's view of a run."""

    run: RunName
    phase: Phase
    reason: str | None = None
    request: RunIn
    started_at: str
    deadline_at: str | None = Field(None, description="UTC, ISO 8601; when the current wait ends")
    rounds: tuple[RoundOut, ...] = ()


class ProblemOut(BaseModel):
    """RFC 9457 problem document. `code` is stable; the words of `detail` are not."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
