"""The JSON messages of the client's own API. They stay in the silo."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, computed_field, model_validator

from shared.message import Message
from shared.protocol.schemas import ClientName

Number = Annotated[int, Field(ge=0)]
"""Of a round, or of something counted."""
Seconds = Annotated[float, Field(ge=0)]
RunOf = Annotated[str, Field(examples=["run-1"])]
VersionOf = Annotated[str, Field(examples=["run-1.5"])]
Sha256 = Annotated[str, Field(examples=["9f" * 32])]


class PrivacyOut(Message):
    """What the releases of this shard have spent, over all runs, of what the silo allows."""

    mechanism: Literal["gaussian", "laplace"] = Field(description="the noise")
    epsilon: float = Field(ge=0, description="spent so far")
    delta: float | None = Field(None, ge=0, le=1, description="at which that epsilon holds; none with laplace: it is 0")
    budget: float = Field(gt=0, description="the epsilon that the silo allows")
    exhausted: bool = Field(False, description="another update does not fit into the budget: none leaves")


class BasisOut(Message):
    """The common basis that this silo keeps: sums over all silos, of which its own part is one."""

    run: RunOf = Field(description="the basis run that has summed it")
    items: Number = Field(description="of the catalogue, which all clients know")
    digest: Sha256 = Field(description="sha256 over the sums")
    kept_at: str = Field(description="UTC, ISO 8601", examples=["2026-01-31T12:00:00+00:00"])


class RefreshOut(Message):
    """Where the refresh of the shard and its model stands, and what the last one did. No id and no count of users."""

    phase: Literal["idle", "waiting", "working"] = Field(description="waiting: for the end of a round at hand")
    number: Number = Field(0, description="of the refresh asked for last, or begun last; 0 before the first")
    last_ended: Number = Field(0, description="number of the last one that has ended, done or with a problem")
    asked_at: datetime | None = Field(None, description="when it was last asked for")
    ended_at: datetime | None = Field(None, description="when the last one was done")
    seconds: float | None = Field(None, ge=0, description="that it took, with its waiting")
    changed: bool | None = Field(None, description="is the shard another one since? Without events it is not")
    model: str | None = Field(None, description="version of the model that answered after it")
    erasures: int | None = Field(None, ge=0, description="that were done by it")
    waiting: int | None = Field(
        None, ge=0, description="likings that stay in the log until the shared catalogue lists their items"
    )
    dropped: int | None = Field(None, ge=0, description="the oldest of these, for which the log had no room")
    problem: str | None = Field(None, description="why the last one failed; it is tried again")


class KeptModelOut(Message):
    """A kept model."""

    version: VersionOf = Field(description="by which it is asked for")
    run: RunOf = Field(
        description="the run that trained it; refresh: computed without one, from a shard that had changed"
    )
    round: Number = Field(description="of that run")
    served: bool = Field(description="it answers now")
    present_shard: bool = Field(
        True, description="False: of the shard before a refresh; chosen, it is taken over under another version"
    )
    values: dict[str, float] = Field(description="its measures on validation data", examples=[{"ndcg": 0.21}])


class ModelsOut(Message):
    """The kept models; the one that answers is the first."""

    models: tuple[KeptModelOut, ...] = Field(description="the served one first")


Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$", examples=["d7" * 32])]


class MemberKeyOut(Message):
    """A client of a secure federation, as this silo knows it."""

    client: str = Field(description="its name", examples=["shop-2"])
    key: Hex32 = Field(description="its public key, of Ed25519, in hexadecimal")
    fingerprint: Sha256 = Field(description="sha256 of the key: to be compared by telephone")
    agreed: bool = Field(description="did the silo know it when it joined, or has it consented since?")


class MembersOut(Message):
    """Whose keys this silo believes in secure rounds, and who waits for its consent."""

    file: bool = Field(description="are they those of a file that the silo pins?")
    members: tuple[MemberKeyOut, ...] = Field(description="by name; none before the first secure run")
    waiting: tuple[MemberKeyOut, ...] = Field((), description="new names, or new keys, of the run that is refused")
    refused: RunOf | None = Field(None, description="the run that waits for the silo's consent")


class AcceptedMembersIn(Message):
    """The silo's operator consents to new members."""

    keys: dict[ClientName, Hex32] = Field(
        min_length=1,
        max_length=1024,
        description="by name, the public key as it was shown",
        examples=[{"shop-4": "d7" * 32}],
    )


class StatusOut(Message):
    """Where this client stands. No count of users, items or interactions."""

    client: str = Field(description="the client's name", examples=["client-1"])
    phase: str = Field(description="what it does", examples=["waiting for the round"])
    run: RunOf | None = Field(None, description="the run that it takes part in")
    round: Number = Field(0, description="of that run; 0 before the first")
    rounds: Number = Field(0, description="of that run in all")
    model: VersionOf | None = Field(None, description="version of the model that answers")
    listed: float = Field(0.0, ge=0, le=1, description="share of the known users whose lists are computed already")
    shared_digest: Sha256 | None = Field(None, description="sha256 over the shared parameters as last applied")
    device: str = Field(description="where it trains", examples=["cpu"])
    device_reason: str = Field(description="why there", examples=["no GPU is there"])
    problem: str | None = Field(None, description="what keeps the client from going on, if anything")
    warnings: tuple[str, ...] = Field((), description="what the silo's operator must know")
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

    values: dict[str, float] = Field(description="by measure", examples=[{"ndcg": 0.21, "recall": 0.34}])

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

    round: Number = Field(description="its place in the run")
    scalars: dict[str, float] = Field({}, description="those of the update")
    train_seconds: Seconds = Field(0.0, description="of training")
    overhead_seconds: Seconds = Field(
        0.0, description="everything of the round that is neither training nor evaluating"
    )
    bytes_up: Number = Field(0, description="sent to the aggregator")
    bytes_down: Number = Field(0, description="received from it")

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

    loss: float | None = Field(None, description="mean training loss of the round")
    saturated: float = Field(0.0, ge=0, le=1, description="share of positives whose angle is at pi: they teach nothing")
    with_margins: bool = Field(False, description="does the loss hold the margins, which a warm-up leaves out?")
    evaluate_seconds: Seconds = Field(0.0, description="of judging on validation items")


class FigureOut(Message):
    """A mean over users, and where it lies in 95 of 100 cases."""

    mean: float = Field(description="over the users", examples=[0.21])
    low: float = Field(description="lower end of the interval", examples=[0.19])
    high: float = Field(description="upper end of the interval", examples=[0.23])


class GroupOut(Message):
    """The same users' lists by popularity, by closed forms, by the silo alone and by the served model."""

    name: str = Field(description="which users, or which items", examples=["all users"])
    users: Number = Field(description="over whom the means are")
    popularity: FigureOut = Field(description="of popular items")
    floors: dict[str, FigureOut] = Field(
        {}, description="of closed forms that need no training: lowpass, ridge, ease", examples=[{}]
    )
    alone: FigureOut = Field(description="of what the silo has by itself")
    federated: FigureOut = Field(description="of what it serves")
    gain: FigureOut = Field(description="federated less alone, user by user")


class ComparisonOut(Message):
    """What a run was worth to this silo, on test items; it stays here."""

    measure: str = Field(description="the name of the figures", examples=["NDCG@20"])
    users: Number = Field(description="who have test items")
    few: bool = Field(description="too few users for these figures to say much")
    groups: tuple[GroupOut, ...] = Field((), description="all users first, then parts of them")
    validation_gain: FigureOut | None = Field(None, description="federated less alone on validation items")
    left_out: tuple[str, ...] = Field((), description="floors that take too long to compute in a silo of this size")


class EarlierRun(Message):
    """How well the model that an earlier run ended with did on test items."""

    run: RunOf = Field(description="its name")
    test: dict[str, float] = Field(description="by measure", examples=[{"ndcg@20": 0.21}])
    test_users: Number = Field(description="over whom the means are")


class QualityOut(Message):
    """What a run has taught this client: every round on validation items, the best round once on test items."""

    client: str = Field(description="the client's name", examples=["client-1"])
    run: RunOf | None = Field(None, description="the run; none before the first")
    finished: bool = Field(False, description="all rounds are done")
    failure: str | None = Field(None, description="why the run has ended before its time")
    best_round: Number | None = Field(None, description="the round that validation prefers, whose model is served")
    rounds: tuple[RoundQuality, ...] = Field((), description="its rounds so far, the first one first")
    test: dict[str, float] | None = Field(None, description="of the best round on test items, once the run is over")
    users: Number = Field(0, description="of the shard")
    items: Number = Field(0, description="of the shard")
    edges: Number = Field(0, description="training pairs of the shard")
    test_users: Number = Field(0, description="who have test items")
    valid_users: Number | None = Field(
        None, description="users by whose validation items every choice is made; 0: nothing was chosen by own data"
    )
    comparison: ComparisonOut | None = Field(None, description="popularity, this silo alone, and what is served")
    refitted: bool = Field(
        False,
        description="the served model was fitted again on all data of the silo, after its figures were measured",
    )
    earlier: tuple[EarlierRun, ...] = Field((), description="runs before this one that have ended, oldest first")
    spectrum_seconds: Seconds = Field(0.0, description="of computing the shard's spectrum")
    start: dict[str, Any] | None = Field(None, description="the filter that training started at")
    recipe: dict[str, Any] | None = Field(
        None, description="what is fused with the trained score, and with which weights"
    )
    angles: dict[str, float] | None = Field(None, description="mean xi by log2 bucket of item popularity")
    shared_digest: Sha256 | None = Field(None, description="sha256 over the shared parameters at the end of the run")


class SpectrumOut(Message):
    """What rho (Eq. 11) compares: both kernels ascending, of the same length, each summing to 1."""

    run: RunOf | None = Field(None, description="the run; none before the first")
    round: Number = Field(0, description="of the latest comparison")
    own: tuple[float, ...] = Field((), description="the shard's kernel", examples=[[0.2, 0.3, 0.5]])
    anchor: tuple[float, ...] = Field((), description="the anchor's kernel", examples=[[0.3, 0.3, 0.4]])
    rho: float | None = Field(None, description="their similarity")


class LedgerOut(Message):
    """A page of the record of all that has left this client."""

    entries: tuple[dict[str, Any], ...] = Field(
        description="an intent and an outcome for each call", examples=[[{"sequence": 1, "kind": "request"}]]
    )
    total: Number = Field(description="entries of the whole ledger")
    verified: bool = Field(description="no entry was changed or removed")
