"""JSON messages of both services. Tensors travel as safetensors: see wire.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, computed_field, model_validator

from shared.message import Message
from shared.method.declaration import Counts, Declaration, Part
from shared.method.settings import MethodSettings
from shared.timeouts import DEADLINE_SECONDS

ClientName = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="the client's name", examples=["client-1"])
]
RunName = Annotated[str, Field(pattern=r"^run-[0-9]{1,9}$", description="the run's name", examples=["run-1"])]
Number = Annotated[int, Field(ge=0, le=100_000, examples=[3])]
"""Of a round; rounds count from 1, and 0 is before the first."""
Digest = Annotated[str, Field(examples=["9f" * 32])]
"""A sha256 in hexadecimal."""
Instant = Annotated[str, Field(examples=["2026-01-31T12:00:00+00:00"])]
"""UTC, ISO 8601."""
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", examples=["3f" * 16])]
"""Of a request's signature: the beginning of the hash of the request's entry in its client's ledger."""


class JoinIn(Message):
    """Client's request to join, under the name whose key has signed the call."""

    client: ClientName
    declaration: Declaration = Field(description="all that this client may send")
    counts: Counts | None = Field(None, description="sizes of its graph, where the silo gives them for the anchor")


class JoinOut(Message):
    """Answer to a client that has joined."""

    client: ClientName
    clients: int = Field(ge=1, description="clients enrolled in the federation")
    warnings: tuple[str, ...] = Field((), description="what this client's operator should know of the federation")
    signature_seconds: float | None = Field(None, gt=0, description="by which a request may be late")
    nonce: Nonce | None = Field(None, description="of the client's last update that was accepted")


class RunIn(Message):
    """Operator's request to start a run."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"clients": 3, "rounds": 10}]})

    rounds: int = Field(10, ge=1, le=100_000, description="number of rounds")
    seed: int = Field(0, ge=0, lt=1 << 32, description="seed of every client's random draws")
    clients: int = Field(2, ge=1, le=10_000, description="number of joined clients at which round 1 opens")
    quorum: int | None = Field(
        None, ge=1, le=10_000, description="updates that a round needs at its deadline; default: clients"
    )
    deadline_seconds: float = Field(
        DEADLINE_SECONDS, gt=0, le=30 * 86400, description="longest wait in a phase, in seconds"
    )
    method: MethodSettings = Field(
        MethodSettings(),
        description=(
            "the method's settings of the run; those left out are as the federation declares them, "
            "except for the sum that a training run uses"
        ),
    )
    changing_members: bool = Field(
        False, description="secure runs: lets a single client whose silo allows it leave or join between rounds"
    )
    start: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{64}$",
        description="sha256 of the aggregator's file of start tensors",
        exclude_if=lambda digest: digest is None,
    )
    part: Part = Field(
        "training",
        description=(
            "training, or the sum to run, such as basis, the common basis; `rounds` of a sum follows from the method"
        ),
        exclude_if=lambda part: part == "training",
    )
    basis: RunName | None = Field(
        None,
        description="basis run whose sums a training run uses; default: the newest finished one",
        exclude_if=lambda name: name is None,
    )
    why: str | None = Field(
        None,
        max_length=1000,
        description="reason for the kind of a sum that the aggregator has chosen",
        exclude_if=lambda why: why is None,
    )
    items: RunName | None = Field(
        None,
        description="run of the list of common items that this run uses; default: the newest finished one",
        exclude_if=lambda name: name is None,
    )
    content: RunName | None = Field(
        None,
        description="run of content sums that this run uses: always the newest finished one",
        exclude_if=lambda name: name is None,
    )
    over: RunName | None = Field(
        None,
        description=(
            "run whose sums this run counts over, such as the directions of nodes' features; default:"
            " the newest finished one"
        ),
        exclude_if=lambda name: name is None,
    )
    makes_models: bool = Field(
        False,
        description="silos that share sums alone make their models of this sum, because they have no item in common;"
        " the aggregator sets it, whatever is asked for",
        exclude_if=lambda makes: not makes,
    )


Phase = Literal["waiting", "open", "aggregated", "finished", "failed", "cancelled"]
ENDED: tuple[Phase, ...] = ("finished", "failed", "cancelled")
Standing = Literal["expected", "received", "absent", "quarantined"]
Cause = Literal["refusals", "distance", "shares", "operator"]
"""Why a client is shut out: refused too often, further from the start of a round than a run allows, for shares that are
proven to be none, by hand."""


class RunOut(Message):
    """State of the federation's run and of the asking client; others are only counted."""

    sequence: int = Field(ge=0, description="grows with every change; hand it back as ?after= to wait for the next")
    run: RunName | None = Field(None, description="the newest run; none where there has been none")
    phase: Phase | None = Field(
        None, description="where it stands; failed: it could not go on; cancelled: the operator has ended it"
    )
    round: Number = Field(0, description="the current round; 0 before the first")
    rounds: Number = Field(0, description="of the whole run")
    seed: int = Field(0, ge=0, lt=1 << 32, description="from which the clients' random draws follow")
    seconds_left: float | None = Field(None, description="until the current wait ends")
    deadline_seconds: float | None = Field(None, gt=0, description="of each phase of the run")
    standing: Standing = Field("absent", description="of the asking client, in the current round")
    joined: int = Field(0, ge=0, description="clients enrolled in the federation")
    received: int = Field(0, ge=0, description="updates of the current round that have come")
    threshold: int | None = Field(None, ge=0, description="secure rounds: so many clients' shares restore a secret")
    changing_members: bool = Field(False, description="as the operator has started the run")
    method: MethodSettings | None = Field(None, description="the run's settings")
    part: Part = Field("training", description="what the run is for", exclude_if=lambda part: part == "training")
    basis: RunName | None = Field(
        None, description="the basis run whose sums a training run uses", exclude_if=lambda name: name is None
    )
    items: RunName | None = Field(
        None,
        description="the run that has summed the list of common items, where there is none that all have",
        exclude_if=lambda name: name is None,
    )
    content: RunName | None = Field(
        None, description="the run of content sums that this one uses", exclude_if=lambda name: name is None
    )
    over: RunName | None = Field(
        None,
        description="the run whose sums this one counts over, or over which what it uses was counted",
        exclude_if=lambda name: name is None,
    )
    makes_models: bool = Field(
        False,
        description="silos make their models of this sum, because no sum over items follows",
        exclude_if=lambda makes: not makes,
    )


class AnchorOut(Message):
    """Kernel K^R of the anchor: its non-zero low eigenvalues over their sum, ascending."""

    run: RunName
    round: Number = Field(description="for which the anchor is drawn")
    kernel: tuple[float, ...] = Field(description="K^R, which sums to 1", examples=[[0.2, 0.3, 0.5]])
    source: str = Field(description="where the anchor's size came from", examples=["declared"])
    size: Counts | None = Field(None, description="of G_R, which each client draws by itself")


class ReceiptOut(Message):
    """Receipt of one upload, as the aggregator has stored it."""

    run: RunName
    round: Number = Field(description="of the update")
    client: ClientName
    digest: Digest = Field(description="sha256 of the body as received")
    size: int = Field(ge=0, description="bytes of the body", examples=[591_702])
    received_at: Instant = Field(description="when it was whole: UTC, ISO 8601")


class HeaderOut(Message):
    """Header that no client sends. Its value is not kept."""

    name: str = Field(max_length=40, description="as it came", examples=["x-forwarded-for"])
    bytes: int = Field(ge=0, description="of its name and its value")


class SignatureOut(Message):
    """Signature of a request, with what its owner needs to make it again and compare."""

    created: int = Field(ge=0, description="seconds since the epoch, as the client said")
    sha256: Digest = Field(description="of the body that was signed")
    value: str = Field(pattern=r"^[A-Za-z0-9+/]{86}==$", description="the Ed25519 signature in base64")


class HeadOut(Message):
    """Head of a request as it arrived."""

    bytes: int | None = Field(None, ge=0, description="none: a trusted proxy has changed it on the way")
    sha256: Digest = Field(description="of its first line and its listed headers but the signature's, sorted")
    others: tuple[HeaderOut, ...] = Field((), description="headers beyond the list of those that a client sends")
    more: int = Field(0, ge=0, description="such headers that are not told one by one")
    signature: SignatureOut | None = Field(None, description="none: recorded before signatures were")


class ArrivalOut(Message):
    """One request as it reached the aggregator, signed by a client.

    Every join, every update and every message of a secure round; and as `other` requests that no client sends: an
    unexpected body, undeclared parameters, an unknown path, or a head in another form.
    """

    sequence: int = Field(ge=1, description="its number in the record")
    time: Instant = Field(description="when it was answered: UTC, ISO 8601")
    client: ClientName
    call: Literal["join", "update", "keys", "shares", "checks", "consents", "answers", "other"] = Field(
        description="what the request was; other: something that no client sends"
    )
    run: RunName | None = Field(None, description="which the request named")
    round: Number | None = Field(None, description="which the request named")
    size: int = Field(ge=0, description="bytes of the body that came")
    digest: Digest = Field(description="sha256 of these bytes")
    status: int = Field(ge=100, le=599, description="HTTP status that was answered", examples=[201])
    code: str | None = Field(None, description="stable code of the problem, where it was refused")
    nonce: Nonce | None = Field(None, description="none: recorded before nonces were")
    head: HeadOut | None = Field(None, description="none: recorded before heads were")


class ArrivalsOut(Message):
    """Page of the record of arrivals, oldest first."""

    entries: tuple[ArrivalOut, ...] = Field(description="one for each request, a page of them")
    total: int = Field(ge=0, description="entries of the whole record")


class ParticipantOut(Message):
    """One client in one round, for the operator."""

    client: ClientName
    received: bool = Field(description="its update is in")
    quarantined: bool = Field(False, description="shut out of this round; nobody waited for it")
    size: int = Field(0, ge=0, description="bytes of its update")
    digest: Digest | None = Field(None, description="sha256 of its update; none before it came")
    received_at: Instant | None = Field(None, description="when it came: UTC, ISO 8601")
    scalars: dict[str, float] = Field({}, description="those of its update that the aggregator needs by themselves")
    told: dict[str, float] = Field({}, description="scalars that it is told for mixing, once the round is aggregated")

    @model_validator(mode="before")
    @classmethod
    def _nest_scalars(cls, data: Any) -> Any:
        """Moves fields of earlier versions into `scalars` and `told`."""
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
    """State of an open secure round."""

    step: Step = Field(description="what the round waits for")
    threshold: int = Field(ge=0, description="clients without whom no phase can close")
    came: dict[Step, int] = Field(description="by step, how many clients have said what belongs to it")
    waiting_for: tuple[ClientName, ...] = Field((), description="in this step; who dropped out before is not in it")
    expelled: tuple[ClientName, ...] = Field((), description="proven to have sealed shares that are none")


class RoundOut(Message):
    """One round of a run, for the operator."""

    number: Number = Field(description="its place in the run")
    phase: Phase = Field(description="where it stands")
    secure: SecureOut | None = Field(None, description="of a secure round, as long as it is open")
    opened_at: Instant = Field(description="UTC, ISO 8601")
    closed_at: Instant | None = Field(None, description="UTC, ISO 8601; none while it is open")
    missing: tuple[ClientName, ...] = Field((), description="clients whose updates are not in")
    participants: tuple[ParticipantOut, ...] = Field((), description="one for each client that was waited for")


class QuarantineIn(Message):
    """Operator's request to exclude a client."""

    reason: str = Field(
        min_length=1,
        max_length=200,
        description="for operators; the client is not told it",
        examples=["asked to leave"],
    )


class QuarantineOut(Message):
    """Reason why a client is excluded, for the operator."""

    cause: Cause = Field(description="the rule that it follows from, or the operator")
    reason: str = Field(description="in words", examples=["3 of its updates did not match the declaration"])
    run: RunName | None = Field(None, description="in which a rule has shut it out")
    round: Number | None = Field(None, description="in which a rule has shut it out")
    since: Instant = Field(description="UTC, ISO 8601")


class MemberOut(Message):
    """One client of the federation, for the operator."""

    client: ClientName
    joined_at: Instant = Field(description="UTC, ISO 8601")
    refused: int = Field(ge=0, description="its updates that the newest run has refused for what they were")
    quarantine: QuarantineOut | None = Field(None, description="why nothing of it is taken; none: all is")


class SummedOut(Message):
    """Sum of a run: its kind, the reason for it, and its cost."""

    kind: str = Field(description="of the sum", examples=["exact"])
    reason: str = Field(description="why this kind was chosen; empty in runs of earlier versions")
    opened: bool = Field(False, description="is the sum known? Where it never will be, the run's reason says why")
    common: int | None = Field(
        None,
        ge=0,
        description="of a run of common items: their number; none in a list of runs",
        exclude_if=lambda common: common is None,
    )
    bytes: int | None = Field(None, ge=0, description="of the updates that have come; none in a list of runs")
    seconds: float | None = Field(
        None, ge=0, description="from its first round's opening to its last one's closing; none before, or in a list"
    )


class CollaborationOut(Message):
    """Weights by which clients learn from each other, where each gets its own mixture."""

    round: int = Field(ge=0, description="after which these are the weights")
    clients: tuple[ClientName, ...] = Field(description="in the order of rows and columns")
    weights: tuple[tuple[float, ...], ...] = Field(description="of each client, how much it gets of each other")
    columns_low: tuple[float, ...] = Field(description="1 / sum r^2 of each order: features that tell likeness")
    columns_high: tuple[float, ...] = Field(description="1 / sum s^2 of each order: features that tell unlikeness")


class RunHistoryOut(Message):
    """Run with its rounds, for the operator."""

    run: RunName
    phase: Phase = Field(
        description="where it stands; failed: it could not go on; cancelled: the operator has ended it"
    )
    reason: str | None = Field(None, description="why it has failed, or that it was cancelled")
    request: RunIn = Field(description="as it was asked for")
    sum: SummedOut | None = Field(
        None, description="of a run that sums: which sum, and why", exclude_if=lambda found: found is None
    )
    started_at: Instant = Field(description="UTC, ISO 8601")
    deadline_at: Instant | None = Field(None, description="UTC, ISO 8601; when the current wait ends")
    enrolled: tuple[ClientName, ...] = Field((), description="clients that take part")
    missing: tuple[ClientName, ...] = Field((), description="registered and not there, or whose update is not in")
    rounds: tuple[RoundOut, ...] = Field((), description="its rounds, the first one first; a list of runs has none")
    collaboration: CollaborationOut | None = Field(
        None,
        description="who learns from whom, where each client gets a mixture of its own",
        exclude_if=lambda found: found is None,
    )
