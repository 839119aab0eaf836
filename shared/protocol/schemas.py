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
"""Number of a round, from 1; 0: before the first round."""
Digest = Annotated[str, Field(examples=["9f" * 32])]
"""sha256 in hexadecimal."""
Instant = Annotated[str, Field(examples=["2026-01-31T12:00:00+00:00"])]
"""UTC, ISO 8601."""
MOST_DROPOUTS = 1 / 3  # of a secure round: more than two thirds of its members are in a sum
ROUNDING = 1e-9  # a third is a float below a third
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", examples=["3f" * 16])]
"""Nonce of a request's signature: first half of the hash of the request's entry in the client's ledger."""


class JoinIn(Message):
    """Client's request to join, under the name whose key has signed the call."""

    client: ClientName
    declaration: Declaration = Field(description="all that this client may send")
    counts: Counts | None = Field(None, description="sizes of its graph, where the silo gives them for the anchor")


class JoinOut(Message):
    """Answer to a client that has joined."""

    client: ClientName
    clients: int = Field(ge=1, description="clients enrolled in the federation")
    warnings: tuple[str, ...] = Field((), description="warnings about the federation for the client's operator")
    signature_seconds: float | None = Field(None, gt=0, description="largest delay of a signed request, in seconds")
    nonce: Nonce | None = Field(None, description="nonce of the client's last accepted update")


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
    colluders: float | None = Field(
        None,
        ge=0,
        le=1,
        description="secure runs of 64 clients or more: share that may collude; default: the aggregator's",
        exclude_if=lambda share: share is None,
    )
    dropouts: float | None = Field(
        None,
        ge=0,
        le=MOST_DROPOUTS,
        description="secure runs of 64 clients or more: share that may drop out; default: the aggregator's",
        exclude_if=lambda share: share is None,
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
        " the aggregator sets it, and ignores the request's value",
        exclude_if=lambda makes: not makes,
    )


Phase = Literal["waiting", "open", "aggregated", "finished", "failed", "cancelled"]
ENDED: tuple[Phase, ...] = ("finished", "failed", "cancelled")
Standing = Literal["expected", "received", "absent", "quarantined"]
Cause = Literal["refusals", "distance", "shares", "operator"]
"""Cause of a quarantine: too many refused updates, an update too far from the round's start, shares that are proven
invalid, or the operator."""


class GraphBounds(Message):
    """Bounds that the graph of a secure round's neighbours bears, as shares of its members."""

    colluders: float = Field(
        ge=0, le=1, description="share of the members that may collude, with each other and the aggregator"
    )
    dropouts: float = Field(ge=0, le=1, description="share of the members that may drop out after the roster is fixed")

    def count_colluders(self, members: int) -> int:
        """Returns how many members may collude, rounded down; a third of 63 is 21."""
        return int(self.colluders * members + ROUNDING)

    def count_dropouts(self, members: int) -> int:
        """Returns how many of these members may drop out, rounded down."""
        return int(self.dropouts * members + ROUNDING)


class RunOut(Message):
    """State of the federation's run and of the asking client; others are only counted."""

    sequence: int = Field(ge=0, description="number of the last change; send it as ?after= to wait for the next one")
    run: RunName | None = Field(None, description="name of the newest run; none before the first run")
    phase: Phase | None = Field(
        None, description="phase of the run; failed: an error ended it; cancelled: the operator ended it"
    )
    round: Number = Field(0, description="number of the current round; 0 before the first")
    rounds: Number = Field(0, description="number of rounds of the run")
    seed: int = Field(0, ge=0, lt=1 << 32, description="seed of every client's random draws")
    seconds_left: float | None = Field(None, description="seconds until the current wait ends")
    deadline_seconds: float | None = Field(None, gt=0, description="longest wait in a phase, in seconds")
    standing: Standing = Field("absent", description="state of the asking client in the current round")
    joined: int = Field(0, ge=0, description="number of clients that have joined the federation")
    received: int = Field(0, ge=0, description="number of updates received in the current round")
    threshold: int | None = Field(
        None, ge=0, description="secure rounds: number of clients whose shares restore a secret"
    )
    graph: GraphBounds | None = Field(
        None,
        description="secure rounds of many clients: bounds on the graph of neighbours; none: all are neighbours",
        exclude_if=lambda graph: graph is None,
    )
    changing_members: bool = Field(
        False, description="secure runs: a single client may leave or join between rounds, where its silo allows it"
    )
    method: MethodSettings | None = Field(None, description="the run's settings")
    part: Part = Field(
        "training",
        description="training, or the sum that the run makes",
        exclude_if=lambda part: part == "training",
    )
    basis: RunName | None = Field(
        None, description="basis run whose sums this training run uses", exclude_if=lambda name: name is None
    )
    items: RunName | None = Field(
        None,
        description="run of the list of common items, where silos have no shared list",
        exclude_if=lambda name: name is None,
    )
    content: RunName | None = Field(
        None, description="run of content sums that this run uses", exclude_if=lambda name: name is None
    )
    over: RunName | None = Field(
        None,
        description="run whose sums this run, or the sum that it uses, counts over",
        exclude_if=lambda name: name is None,
    )
    makes_models: bool = Field(
        False,
        description="whether silos make their models of this sum, because no sum over items follows",
        exclude_if=lambda makes: not makes,
    )


class AnchorOut(Message):
    """Kernel K^R of the anchor: its non-zero low eigenvalues over their sum, ascending."""

    run: RunName
    round: Number = Field(description="round of this anchor")
    kernel: tuple[float, ...] = Field(description="K^R, which sums to 1", examples=[[0.2, 0.3, 0.5]])
    source: str = Field(description="source of the anchor's size", examples=["declared"])
    size: Counts | None = Field(None, description="size of G_R, which each client draws itself")


class ReceiptOut(Message):
    """Receipt of one upload, as the aggregator has stored it."""

    run: RunName
    round: Number = Field(description="round of the update")
    client: ClientName
    digest: Digest = Field(description="sha256 of the body as received")
    size: int = Field(ge=0, description="length of the body in bytes", examples=[591_702])
    received_at: Instant = Field(description="time when the whole body had arrived: UTC, ISO 8601")


class HeaderOut(Message):
    """Header that no client sends. Its value is not kept."""

    name: str = Field(max_length=40, description="name of the header as received", examples=["x-forwarded-for"])
    bytes: int = Field(ge=0, description="length of its name and its value in bytes")


class SignatureOut(Message):
    """Signature of a request, with what its owner needs to make it again and compare."""

    created: int = Field(ge=0, description="time of the signature by the client's clock, in seconds since the epoch")
    sha256: Digest = Field(description="sha256 of the signed body")
    value: str = Field(pattern=r"^[A-Za-z0-9+/]{86}==$", description="the Ed25519 signature in base64")


class HeadOut(Message):
    """Head of a request as it arrived."""

    bytes: int | None = Field(None, ge=0, description="length of the head; none: a trusted proxy may have changed it")
    sha256: Digest = Field(
        description="sha256 of its first line and its expected headers, sorted, without the signature's"
    )
    others: tuple[HeaderOut, ...] = Field((), description="unexpected headers, which no client sends")
    more: int = Field(0, ge=0, description="number of further unexpected headers, not listed")
    signature: SignatureOut | None = Field(
        None, description="signature of the request; none in records of earlier versions"
    )


class ArrivalOut(Message):
    """One request as it reached the aggregator, signed by a client.

    Every join, every update and every message of a secure round; and as `other` requests that no client sends: an
    unexpected body, undeclared parameters, an unknown path, or a head in another form.
    """

    sequence: int = Field(ge=1, description="number in the record, from 1")
    time: Instant = Field(description="time of the answer: UTC, ISO 8601")
    client: ClientName
    call: Literal["join", "update", "keys", "shares", "checks", "consents", "answers", "other"] = Field(
        description="kind of the request; other: a request that no client sends"
    )
    run: RunName | None = Field(None, description="run that the request names")
    round: Number | None = Field(None, description="round that the request names")
    size: int = Field(ge=0, description="length of the received body in bytes")
    digest: Digest = Field(description="sha256 of the received body")
    status: int = Field(ge=100, le=599, description="HTTP status of the answer", examples=[201])
    code: str | None = Field(None, description="stable code of the problem, if the request was refused")
    nonce: Nonce | None = Field(None, description="nonce of the signature; none in records of earlier versions")
    head: HeadOut | None = Field(None, description="head of the request; none in records of earlier versions")


class ArrivalsOut(Message):
    """Page of the record of arrivals, oldest first."""

    entries: tuple[ArrivalOut, ...] = Field(description="requests of this page, one entry each")
    total: int = Field(ge=0, description="number of entries in the whole record")


class ParticipantOut(Message):
    """One client in one round, for the operator."""

    client: ClientName
    received: bool = Field(description="whether its update has been accepted")
    quarantined: bool = Field(False, description="whether it is quarantined, so that the round does not wait for it")
    size: int = Field(0, ge=0, description="length of its update in bytes")
    digest: Digest | None = Field(None, description="sha256 of its update; none before it is received")
    received_at: Instant | None = Field(None, description="time when its update was received: UTC, ISO 8601")
    scalars: dict[str, float] = Field({}, description="scalars of its update that the aggregator reads individually")
    told: dict[str, float] = Field(
        {}, description="scalars that the client gets for mixing, after the round is aggregated"
    )

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

    @computed_field(description="same value as in scalars")  # type: ignore[prop-decorator]
    @property
    def rho(self) -> float | None:
        return self.scalars.get("rho")

    @computed_field(description="same value as in told")  # type: ignore[prop-decorator]
    @property
    def rhobar(self) -> float | None:
        return self.told.get("rhobar")


Step = Literal["keys", "shares", "checks", "masked", "consents", "answers"]
"""Step of an open secure round."""


class SecureOut(Message):
    """State of an open secure round."""

    step: Step = Field(description="step whose messages the round waits for")
    threshold: int = Field(ge=0, description="smallest number of clients with which a step can close")
    came: dict[Step, int] = Field(description="number of clients whose message has come, by step")
    waiting_for: tuple[ClientName, ...] = Field(
        (), description="clients expected in this step, without those that dropped out earlier"
    )
    expelled: tuple[ClientName, ...] = Field((), description="clients proven to have sealed invalid shares")


class RoundOut(Message):
    """One round of a run, for the operator."""

    number: Number = Field(description="number of the round, from 1")
    phase: Phase = Field(description="phase of the round")
    secure: SecureOut | None = Field(None, description="state of a secure round while it is open")
    opened_at: Instant = Field(description="UTC, ISO 8601")
    closed_at: Instant | None = Field(None, description="UTC, ISO 8601; none while it is open")
    missing: tuple[ClientName, ...] = Field((), description="clients whose updates are missing")
    participants: tuple[ParticipantOut, ...] = Field(
        (), description="clients that the round waited for, one entry each"
    )


class QuarantineIn(Message):
    """Operator's request to exclude a client."""

    reason: str = Field(
        min_length=1,
        max_length=200,
        description="reason, for operators only; the client does not get it",
        examples=["asked to leave"],
    )


class QuarantineOut(Message):
    """Reason why a client is excluded, for the operator."""

    cause: Cause = Field(description="rule that quarantined the client, or operator")
    reason: str = Field(description="reason in words", examples=["3 of its updates did not match the declaration"])
    run: RunName | None = Field(None, description="run in which a rule quarantined it")
    round: Number | None = Field(None, description="round in which a rule quarantined it")
    since: Instant = Field(description="UTC, ISO 8601")


class MemberOut(Message):
    """One client of the federation, for the operator."""

    client: ClientName
    joined_at: Instant = Field(description="UTC, ISO 8601")
    refused: int = Field(ge=0, description="number of its invalid updates in the newest run")
    quarantine: QuarantineOut | None = Field(None, description="its current quarantine; none: it takes part")


class SummedOut(Message):
    """Sum of a run: its kind, the reason for it, and its cost."""

    kind: str = Field(description="kind of the sum", examples=["exact"])
    reason: str = Field(description="reason for this kind; empty in runs of earlier versions")
    opened: bool = Field(False, description="whether the sum is known; of a failed run, see its reason")
    common: int | None = Field(
        None,
        ge=0,
        description="number of common items, of a run that counts them; none in a list of runs",
        exclude_if=lambda common: common is None,
    )
    bytes: int | None = Field(None, ge=0, description="length of the received updates in bytes; none in a list of runs")
    seconds: float | None = Field(
        None,
        ge=0,
        description="time from the opening of the first round to the closing of the last; none before, or in a list",
    )


class CollaborationOut(Message):
    """Weights by which clients learn from each other, where each gets its own mixture."""

    round: int = Field(ge=0, description="last aggregated round")
    clients: tuple[ClientName, ...] = Field(description="clients in the order of rows and columns")
    weights: tuple[tuple[float, ...], ...] = Field(
        description="row of each client: weight of each other client in its mixture"
    )
    columns_low: tuple[float, ...] = Field(
        description="effective number of features that measure similarity, 1 / sum r^2, by order"
    )
    columns_high: tuple[float, ...] = Field(
        description="effective number of features that measure dissimilarity, 1 / sum s^2, by order"
    )


class RunHistoryOut(Message):
    """Run with its rounds, for the operator."""

    run: RunName
    phase: Phase = Field(description="phase of the run; failed: an error ended it; cancelled: the operator ended it")
    reason: str | None = Field(None, description="reason of the failure, or that it was cancelled")
    request: RunIn = Field(description="request that started the run, completed with the federation's settings")
    sum: SummedOut | None = Field(
        None,
        description="kind, reason and cost of the sum that the run makes",
        exclude_if=lambda found: found is None,
    )
    started_at: Instant = Field(description="UTC, ISO 8601")
    deadline_at: Instant | None = Field(None, description="end of the current wait: UTC, ISO 8601")
    enrolled: tuple[ClientName, ...] = Field((), description="clients that take part")
    missing: tuple[ClientName, ...] = Field(
        (), description="registered clients that have not joined, or whose update is missing"
    )
    rounds: tuple[RoundOut, ...] = Field((), description="rounds, oldest first; empty in a list of runs")
    collaboration: CollaborationOut | None = Field(
        None,
        description="weights by which clients learn from each other, where each gets its own mixture",
        exclude_if=lambda found: found is None,
    )
