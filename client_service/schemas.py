"""The JSON messages of the client's own API. They stay in the silo."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field, computed_field, model_validator

from shared.message import Message


class PrivacyOut(Message):
    """What the releases of this shard have spent, over all runs, of what the silo allows."""

    mechanism: Literal["gaussian", "laplace"]
    epsilon: float = Field(description="spent so far")
    delta: float | None = Field(None, description="at which that epsilon holds; none with laplace: it is 0")
    budget: float
    exhausted: bool = Field(False, description="another update does not fit into the budget: none leaves")


class BasisOut(Message):
    """The common basis that this silo keeps: sums over all silos, of which its own part is one."""

    run: str = Field(description="the basis run that has summed it")
    items: int = Field(description="of the catalogue, which all clients know")
    digest: str
    kept_at: str = Field(description="UTC, ISO 8601")


class RefreshOut(Message):
    """Where the refresh of the shard and its model stands, and what the last one did. No id and no count of users."""

    phase: Literal["idle", "waiting", "working"] = Field(description="waiting: for the end of a round at hand")
    asked_at: datetime | None = Field(None, description="when it was last asked for")
    ended_at: datetime | None = Field(None, description="when the last one was done")
    seconds: float | None = Field(None, ge=0, description="that it took, with its waiting")
    changed: bool | None = Field(None, description="is the shard another one since? Without events it is not")
    model: str | None = Field(None, description="version of the model that answered after it")
    erasures: int | None = Field(None, ge=0, description="that were done by it")
    waiting: int | None = Field(
        None, ge=0, description="likings that stay in the log until the shared catalogue lists their items"
    )
    dropped: int | None = Field(
        None, ge=0, description="oldest of what would stay in the log (these, and low ratings) that had no room"
    )
    problem: str | None = Field(None, description="why the last one failed; it is tried again")


class KeptModelOut(Message):
    """A kept model. `values`: its measures on validation data."""

    version: str
    run: str = Field(
        description="the run that trained it; refresh: computed without one, from a shard that had changed"
    )
    round: int
    served: bool
    present_shard: bool = Field(
        True, description="False: of the shard before a refresh; chosen, it is taken over under another version"
    )
    values: dict[str, float]


class ModelsOut(Message):
    """The kept models; the one that answers is the first."""

    models: tuple[KeptModelOut, ...]


class StatusOut(Message):
    """Where this client stands. No count of users, items or interactions."""

    client: str
    phase: str
    run: str | None = None
    round: int = 0
    rounds: int = 0
    model: str | None = Field(None, description="version of the model that answers")
    listed: float = Field(0.0, description="share of the known users whose lists by this model are computed already")
    shared_digest: str | None = Field(None, description="sha256 over the shared parameters as last applied")
    device: str
    device_reason: str
    problem: str | None = Field(None, description="what keeps the client from going on, if anything")
    warnings: tuple[str, ...] = ()
    privacy: PrivacyOut | None = Field(None, description="differential privacy, where the silo has chosen it")
    basis: BasisOut | None = Field(None, description="the common basis, where there is one")


def nest_values(data: Any, field: str, names: tuple[str, ...]) -> Any:
    """A message's data with the values of `names` moved into the dictionary `field`, unless it has that already.

    Earlier versions wrote these values as fields of their own; now they are written in both places.
    """
    if not isinstance(data, dict):
        return data
    apart = {name: data[name] for name in names if data.get(name) is not None}
    return {field: apart, **{name: value for name, value in data.items() if name not in names}}


class MeasureValues(BaseModel):
    """The values of a model's measures by name; two of them are also fields, as in the answers of earlier versions."""

    values: dict[str, float]

    @model_validator(mode="before")
    @classmethod
    def _nest_values(cls, data: Any) -> Any:
        return nest_values(data, "values", ("recall", "ndcg"))

    @computed_field(description="the same as in values")  # type: ignore[prop-decorator]
    @property
    def recall(self) -> float | None:
        return self.values.get("recall")

    @computed_field(description="the same as in values")  # type: ignore[prop-decorator]
    @property
    def ndcg(self) -> float | None:
        return self.values.get("ndcg")


class RoundCosts(Message):
    """What a round took and what it sent, apart from what training gave."""

    round: int
    scalars: dict[str, float] = Field({}, description="those of the update")
    train_seconds: float = 0.0
    overhead_seconds: float = Field(0.0, description="everything of the round that is neither training nor evaluating")
    bytes_up: int = 0
    bytes_down: int = 0

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
    """One round as the silo sees it, judged on validation items."""

    loss: float | None = None
    saturated: float = Field(0.0, description="share of positives whose angle is at pi: they teach nothing")
    with_margins: bool = Field(False, description="does the loss hold the margins, which a warm-up leaves out?")
    evaluate_seconds: float = 0.0


class FigureOut(Message):
    """A mean over users, and where it lies in 95 of 100 cases."""

    mean: float
    low: float
    high: float


class GroupOut(Message):
    """The same users' lists by popularity, by the silo alone and by the served model; gain: federated less alone."""

    name: str
    users: int
    popularity: FigureOut
    alone: FigureOut
    federated: FigureOut
    gain: FigureOut


class ComparisonOut(Message):
    """What a run was worth to this silo, on test items; it stays here."""

    measure: str
    users: int
    few: bool = Field(description="too few users for these figures to say much")
    groups: tuple[GroupOut, ...] = ()
    validation_gain: FigureOut | None = Field(None, description="federated less alone on validation items")


class EarlierRun(Message):
    """How well the model that an earlier run ended with did on test items."""

    run: str
    test: dict[str, float]
    test_users: int


class QualityOut(Message):
    """What a run has taught this client: every round on validation items, the best round once on test items."""

    client: str
    run: str | None = None
    finished: bool = False
    failure: str | None = None
    best_round: int | None = None
    rounds: tuple[RoundQuality, ...] = ()
    test: dict[str, float] | None = None
    users: int = 0
    items: int = 0
    edges: int = 0
    test_users: int = 0
    valid_users: int | None = Field(
        None, description="users by whose validation items every choice is made; 0: nothing was chosen by own data"
    )
    comparison: ComparisonOut | None = Field(None, description="popularity, this silo alone, and what is served")
    earlier: tuple[EarlierRun, ...] = Field((), description="runs before this one that have ended, oldest first")
    spectrum_seconds: float = 0.0
    start: dict[str, Any] | None = Field(None, description="the filter that training started at")
    recipe: dict[str, Any] | None = Field(
        None, description="what is fused with the trained score, and with which weights"
    )
    angles: dict[str, float] | None = Field(None, description="mean xi by log2 bucket of item popularity")
    shared_digest: str | None = Field(None, description="sha256 over the shared parameters at the end of the run")


class SpectrumOut(Message):
    """What rho (Eq. 11) compares: both kernels ascending, of the same length, each summing to 1."""

    run: str | None = None
    round: int = 0
    own: tuple[float, ...] = ()
    anchor: tuple[float, ...] = ()
    rho: float | None = None


class LedgerOut(Message):
    entries: tuple[dict[str, Any], ...]
    total: int
    verified: bool
