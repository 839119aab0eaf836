"""JSON messages of a client's status and results; they stay in the silo."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, computed_field, model_validator

from client_service.evaluation.metrics import MeasureValues, nest_values
from client_service.joining_value.messages import ComparisonOut, GraphQualityOut
from client_service.privacy.accounting import PrivacyOut
from shared.message import Message
from shared.protocol.schemas import Digest

Number = Annotated[int, Field(ge=0)]
"""Round number or count."""
Seconds = Annotated[float, Field(ge=0)]
RunOf = Annotated[str, Field(examples=["run-1"])]
VersionOf = Annotated[str, Field(examples=["run-1.5"])]


class BasisOut(Message):
    """Kept sum over all silos.

    Its own part may not be included yet.
    """

    part: str = Field("basis", description="part of the federation's work that the sum belongs to")
    run: str = Field(description="run that computed the sum", examples=["run-1"])
    kind: str = Field("", description="name of the sum; empty where an earlier version saved it", examples=["exact"])
    items: int = Field(ge=0, description="of the catalogue, which all clients know, or columns of features")
    hidden: int = Field(
        0,
        ge=0,
        description="own items that are not summed, because another own item has the same hash in a list that "
        "the silos have summed",
    )
    digest: Digest = Field(description="sha256 over the sums")
    included: bool = Field(
        True, description="true where the silo's own part is included; not where the silo has joined since"
    )
    kept_at: str = Field(description="UTC, ISO 8601", examples=["2026-01-31T12:00:00+00:00"])


class StatusOut(Message):
    """Status of this client, without counts of users, items or interactions."""

    client: str = Field(description="the client's name", examples=["client-1"])
    phase: str = Field(description="current phase", examples=["waiting for the round"])
    run: RunOf | None = Field(None, description="run that the client takes part in")
    round: Number = Field(0, description="current round of the run; 0 before the first")
    rounds: Number = Field(0, description="number of rounds of the run")
    model: VersionOf | None = Field(None, description="version of the served model")
    listed: float = Field(0.0, ge=0, le=1, description="share of the known users with precomputed lists")
    form: str | None = Field(
        None, description="form of the model that answers baskets and users with later events", examples=["truncated"]
    )
    form_reason: str | None = Field(None, description="reason of this form, by validation")
    shared_digest: Digest | None = Field(None, description="sha256 over the latest applied shared parameters")
    device: str = Field(description="device of training", examples=["cpu"])
    device_reason: str = Field(description="reason of this device", examples=["no GPU is there"])
    streams: bool = Field(False, description="whether changes are told by a held stream; otherwise the client polls")
    problem: str | None = Field(None, description="error that stops the client, if any")
    warnings: tuple[str, ...] = Field((), description="warnings for the silo's operator")
    privacy: PrivacyOut | None = Field(None, description="differential privacy, where the silo has chosen it")
    basis: BasisOut | None = Field(None, description="the common basis, where there is one")
    sums: tuple[BasisOut, ...] = Field((), description="the newest of each part that is kept, the common basis too")


class RoundCosts(Message):
    """Costs of a round in seconds and bytes, and the scalars it sent."""

    round: Number = Field(description="number of the round")
    scalars: dict[str, float] = Field({}, description="scalars of the update")
    train_seconds: Seconds = Field(0.0, description="time of training")
    overhead_seconds: Seconds = Field(0.0, description="time of the round without training and evaluation")
    bytes_up: Number = Field(0, description="bytes sent to the aggregator")
    bytes_down: Number = Field(0, description="bytes received from the aggregator")

    @model_validator(mode="before")
    @classmethod
    def _nest_scalars(cls, data: Any) -> Any:
        return nest_values(data, "scalars", ("rho", "margin"))

    @computed_field(description="the same as in scalars")  # type: ignore[prop-decorator]
    @property
    def rho(self) -> float | None:
        return self.scalars.get("rho")

    @computed_field(description="the same as in scalars")  # type: ignore[prop-decorator]
    @property
    def margin(self) -> float | None:
        return self.scalars.get("margin")


class RoundQuality(RoundCosts, MeasureValues):
    """Results of one round at the silo, on validation items."""

    loss: float | None = Field(None, description="mean training loss of the round")
    saturated: float = Field(
        0.0, ge=0, le=1, description="share of positives whose angle is pi, where the loss has no gradient"
    )
    with_margins: bool = Field(False, description="true where the loss has margins, which a warm-up leaves out")
    evaluate_seconds: Seconds = Field(0.0, description="time of evaluation on validation items")


class EarlierRun(Message):
    """Test measures of an earlier run's final model."""

    run: RunOf = Field(description="its name")
    test: dict[str, float] = Field(description="by measure", examples=[{"ndcg@20": 0.21}])
    test_users: Number = Field(description="number of users in the means")


class QualityOut(Message):
    """Results of a run: each round on validation items, the best one on test items."""

    client: str = Field(description="the client's name", examples=["client-1"])
    run: RunOf | None = Field(None, description="name of the run; none before the first")
    finished: bool = Field(False, description="true where all rounds are done")
    failure: str | None = Field(None, description="why the run ended early")
    primary: str | None = Field(
        None, description="measure by which validation chooses, where it depends on the data", examples=["auc"]
    )
    best_round: Number | None = Field(None, description="best round by validation, whose model is served")
    rounds: tuple[RoundQuality, ...] = Field((), description="rounds so far, in order")
    test: dict[str, float] | None = Field(
        None, description="measures of the best round on test items, once the run is over"
    )
    users: Number = Field(0, description="users of the shard")
    items: Number = Field(0, description="items of the shard")
    edges: Number = Field(0, description="training pairs of the shard")
    test_users: Number = Field(0, description="users with test items")
    valid_users: Number | None = Field(
        None, description="users with validation items, which every choice is made by; 0: no choice by own data"
    )
    comparison: ComparisonOut | None = Field(
        None, description="comparison of popularity, this silo alone, and the served model"
    )
    graph: GraphQualityOut | None = Field(None, description="silo of nodes: its graph, and curves of its model")
    refitted: bool = Field(
        False,
        description="the served model was fitted again on all data of the silo, after its figures were measured",
    )
    earlier: tuple[EarlierRun, ...] = Field((), description="runs before this one that have ended, oldest first")
    spectrum_seconds: Seconds = Field(0.0, description="time of computing the shard's spectrum")
    start: dict[str, Any] | None = Field(None, description="initial filter of training")
    recipe: dict[str, Any] | None = Field(
        None, description="scores that are fused with the trained one, and their weights"
    )
    angles: dict[str, float] | None = Field(None, description="mean xi by log2 bucket of item popularity")
    shared_digest: Digest | None = Field(None, description="sha256 over the shared parameters at the end of the run")


class SpectrumOut(Message):
    """Kernels that rho (Eq. 11) compares.

    Both are ascending, of the same length, and sum to 1.
    """

    run: RunOf | None = Field(None, description="name of the run; none before the first")
    round: Number = Field(0, description="round of the latest comparison")
    own: tuple[float, ...] = Field((), description="the shard's kernel", examples=[[0.2, 0.3, 0.5]])
    anchor: tuple[float, ...] = Field((), description="the anchor's kernel", examples=[[0.3, 0.3, 0.4]])
    rho: float | None = Field(None, description="similarity of both kernels")
