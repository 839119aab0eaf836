"""The JSON messages of both services. Tensors never travel as JSON; see wire.py for them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, computed_field, model_validator

from shared.message import Message
from shared.method.declaration import Counts, Declaration, Part
from shared.method.settings import MethodSettings
from shared.timeouts import DEADLINE_SECONDS

ClientName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="given by the operator")]
RunName = Annotated[str, Field(pattern=r"^run-[0-9]{1,9}$")]
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
"""Of a request's signature: the beginning of the hash of the request's entry in its client's ledger."""


class JoinIn(Message):
    """Client -> aggregator. The name must be the one whose key has signed this call."""

    client: ClientName
    declaration: Declaration
    counts: Counts | None = None


class JoinOut(Message):
    client: ClientName
    clients: int = Field(description="clients enrolled in the federation")
    warnings: tuple[str, ...] = ()
    signature_seconds: float | None = Field(None, description="by which a request may be late")
    nonce: Nonce | None = Field(None, description="of the client's last update that was accepted")


class EnrolmentOut(Message):
    """Aggregator -> a silo whose key is registered now: what the federation is, for the silo's own settings."""

    name: ClientName
    strategy: str
    secure: bool = Field(description="updates must be masked")
    method: MethodSettings


class RunIn(Message):
    """Operator -> aggregator: start a run."""

    rounds: int = Field(10, ge=1, le=100_000)
    seed: int = Field(0, ge=0, lt=1 << 32)
    clients: int = Field(2, ge=1, le=10_000, description="round 1 opens when so many have joined")
    quorum: int | None = Field(None, ge=1, description="updates a round needs at its deadline; default: clients")
    deadline_seconds: float = Field(DEADLINE_SECONDS, gt=0, le=30 * 86400, description="longest wait in any one phase")
    method: MethodSettings = MethodSettings()
    changing_members: bool = Field(
        False, description="secure runs: may a single client whose silo allows it leave or join between rounds?"
    )
    start: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{64}$",
        description="sha256 of the aggregator's file of tensors to begin with",
        exclude_if=lambda digest: digest is None,
    )
    part: Part = Field(
        "training",
        description="basis: sum the statistics of the common basis; `rounds` then follows from the method",
        exclude_if=lambda part: part == "training",
    )
    basis: RunName | None = Field(
        None,
        description="the basis run whose sums a training run uses; by default the newest that has finished",
        exclude_if=lambda name: name is None,
    )


Phase = Literal["waiting", "open", "aggregated", "finished", "failed"]
Standing = Literal["expected", "received", "absent", "quarantined"]
Cause = Literal["refusals", "distance", "shares", "operator"]
"""Why a client is shut out: refused too often, further from the start of a round than a run allows, for shares that are
proven to be none, by hand."""


class RunOut(Message):
    """Aggregator -> client: where the federation stands, and this client in it. Others are only counted."""

    sequence: int = Field(description="grows with every change; hand it back as ?after= to wait for the next")
    run: RunName | None = None
    phase: Phase | None = None
    round: int = 0
    rounds: int = 0
    seed: int = 0
    seconds_left: float | None = None
    deadline_seconds: float | None = Field(None, description="of each phase of the run")
    standing: Standing = Field("absent", description="of the asking client, in the current round")
    joined: int = 0
    received: int = 0
    threshold: int | None = Field(None, description="secure rounds: so many clients' shares restore a secret")
    changing_members: bool = Field(False, description="as the operator has started the run")
    method: MethodSettings | None = None
    part: Part = Field("training", description="what the run is for", exclude_if=lambda part: part == "training")
    basis: RunName | None = Field(
        None, description="the basis run whose sums a training run uses", exclude_if=lambda name: name is None
    )


class AnchorOut(Message):
    """The anchor's kernel K^R: the non-zero low eigenvalues of G_R over their sum, ascending."""

    run: RunName
    round: int
    kernel: tuple[float, ...]
    source: str = Field(description="where the anchor's size came from")
    size: Counts | None = Field(None, description="of G_R, which each client draws by itself")


class ReceiptOut(Message):
    """What the aggregator holds of one upload."""

    run: RunName
    round: int
    client: ClientName
    digest: str = Field(description="sha256 of the body as received")
    size: int = Field(description="bytes of the body")
    received_at: str = Field(description="UTC, ISO 8601")


class HeaderOut(Message):
    """A header that no client sends. What it said is not kept."""

    name: str = Field(max_length=40)
    bytes: int = Field(description="of its name and its value")


class HeadOut(Message):
    """The head of a request as it came."""

    bytes: int | None = Field(None, description="none: a trusted proxy has changed it on the way")
    sha256: str = Field(description="of its first line and its listed headers but the signature's, sorted")
    others: tuple[HeaderOut, ...] = Field((), description="headers beyond the list of those that a client sends")
    more: int = Field(0, description="such headers that are not told one by one")


class ArrivalOut(Message):
    """One request as it reached the aggregator, signed by a client that has joined, or by one whose head was refused.

    Every join, every update and every message of a secure round, and as `other` whatever no client ever sends: a body
    elsewhere, a question with more in it than was declared, a path that leads nowhere, a head in another form than a
    client's.
    """

    sequence: int
    time: str = Field(description="UTC, ISO 8601")
    client: ClientName
    call: Literal["join", "update", "keys", "shares", "checks", "consents", "answers", "other"]
    run: RunName | None = None
    round: int | None = None
    size: int = Field(description="bytes of the body that came")
    digest: str = Field(description="sha256 of these bytes")
    status: int = Field(description="HTTP status that was answered")
    code: str | None = Field(None, description="stable code of the problem, where it was refused")
    nonce: Nonce | None = Field(None, description="none: recorded before nonces were")
    head: HeadOut | None = Field(None, description="none: recorded before heads were")


class ArrivalsOut(Message):
    """Operator's view of all that arrived, oldest first."""

    entries: tuple[ArrivalOut, ...]
    total: int


class ParticipantOut(Message):
    """One client in one round, as the operator sees it."""

    client: ClientName
    received: bool
    quarantined: bool = Field(False, description="shut out of this round; nobody waited for it")
    size: int = 0
    digest: str | None = None
    received_at: str | None = None
    scalars: dict[str, float] = Field({}, description="those of its update that the aggregator needs by themselves")
    told: dict[str, float] = Field({}, description="scalars that it is told for mixing, once the round is aggregated")

    @model_validator(mode="before")
    @classmethod
    def _nest_scalars(cls, data: Any) -> Any:
        """What earlier versions wrote as fields of their own is written in both places now."""
        if not isinstance(data, dict):
            return data
        nested = {"scalars": dict(data.get("scalars", {})), "told": dict(data.get("told", {}))}
        for field, name in (("scalars", "rho"), ("told", "rhobar")):
            if data.get(name) is not None:
                nested[field][name] = data[name]
        return {name: value for name, value in data.items() if name not in ("rho", "rhobar")} | nested

    @computed_field(description="the same as in scalars")  # type: ignore[prop-decorator]
    @property
    def rho(self) -> float | None:
        return self.scalars.get("rho")

    @computed_field(description="the same as in told")  # type: ignore[prop-decorator]
    @property
    def rhobar(self) -> float | None:
        return self.told.get("rhobar")


Step = Literal["keys", "shares", "checks", "masked", "consents", "answers"]
"""Where an open round of a secure federation stands."""


class SecureOut(Message):
    """How an open secure round stands. `came`: by phase, how many clients have said what belongs to it."""

    step: Step
    threshold: int = Field(description="clients without whom no phase can close")
    came: dict[Step, int]
    waiting_for: tuple[ClientName, ...] = Field((), description="in this step; who dropped out before is not in it")
    expelled: tuple[ClientName, ...] = Field((), description="proven to have sealed shares that are none")


class RoundOut(Message):
    number: int
    phase: Phase
    secure: SecureOut | None = Field(None, description="of a secure round, as long as it is open")
    opened_at: str
    closed_at: str | None = None
    missing: tuple[ClientName, ...] = ()
    participants: tuple[ParticipantOut, ...] = ()


class QuarantineIn(Message):
    """Operator -> aggregator: shut a client out."""

    reason: str = Field(min_length=1, max_length=200, description="for operators; the client is not told it")


class QuarantineOut(Message):
    """Why nothing of a client is taken, for the operator."""

    cause: Cause
    reason: str
    run: RunName | None = None
    round: int | None = None
    since: str = Field(description="UTC, ISO 8601")


class MemberOut(Message):
    """One client of the federation, as the operator sees it."""

    client: ClientName
    joined_at: str = Field(description="UTC, ISO 8601")
    refused: int = Field(description="its updates that the newest run has refused for what they were")
    quarantine: QuarantineOut | None = None


class RunHistoryOut(Message):
    """Operator's view of a run."""

    run: RunName
    phase: Phase
    reason: str | None = None
    request: RunIn
    started_at: str
    deadline_at: str | None = Field(None, description="UTC, ISO 8601; when the current wait ends")
    enrolled: tuple[ClientName, ...] = ()
    missing: tuple[ClientName, ...] = Field((), description="registered and not there, or whose update is not in")
    rounds: tuple[RoundOut, ...] = ()


class ProblemOut(BaseModel):
    """RFC 9457 problem document. `code` is stable; the words of `detail` are not."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    request_id: str | None = Field(None, description="as in the service's log and in X-Request-ID")
