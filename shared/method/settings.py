"""Settings of the method for a whole run, with all defaults and bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from shared.errors import SettingsError
from shared.faults import UNKNOWN_SETTING, describe_fault, describe_setting
from shared.message import Message
from shared.method.node_settings import NodeSettings
from shared.method.tensors import EXCHANGES

MOST_ITEMS = 1 << 24  # as the setting `catalogue` has it


def read_catalogue_size(
    method: MethodSettings, path: Path | None, count: Callable[[str], int], expected: str
) -> MethodSettings:
    """Sets the catalogue's size from a file, unless it is set or there is none.

    count: finds the size in the file's text. Raises ValueError, which begins with `expected`, for a file without a
    size.
    """
    if path is None or method.catalogue > 0:
        return method
    try:
        size = count(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{expected} ({error})") from None
    if not 1 <= size <= MOST_ITEMS:
        raise ValueError(f"{expected} (1 to {MOST_ITEMS} items, got {size})")
    return method.model_copy(update={"catalogue": size})


MarginReading = Literal["literal", "scaled", "sigmoid", "additive"]
"""Reading of the margin M of Eq. 8: `client_service.training.margins` computes them.

literal: min(gamma xi, pi - R), as printed. scaled: the same with xi / pi. sigmoid: 1 - sigmoid(u . v) in the place of
xi, as BC-Loss was released. additive: as printed, but Eq. 9 has cos R - M in the place of cos(R + M)."""

GREATEST_WIDENING: dict[MarginReading, float] = {
    "literal": math.pi,
    "scaled": 1.0,
    "sigmoid": 1.0,
    "additive": math.pi,
}
"""Greatest factor of gamma by reading, in radians; the margin ends at pi - R, which may be as much as pi."""


def greatest_margin(reading: MarginReading, strength: float) -> float:
    """Returns the largest margin of a reading, and so of their mean (Eq. 10)."""
    return min(strength * GREATEST_WIDENING[reading], math.pi)


Server = Literal["none", "momentum", "adagrad", "adam", "yogi", "ga"]
Magnitudes = Literal["off", "computed", "reported"]


class AnchorSettings(Message):
    """Settings of the neutral random bipartite graph G_R (Appendix D.3)."""

    graph: Literal["gnmk", "er"] = Field(
        "gnmk", description="gnmk: uniform edges of a given number; er: independent edges"
    )
    size: Literal["declared", "counts"] = Field(
        "declared", description="declared: size from these settings; counts: mean of what clients agreed to count"
    )
    users: int = Field(1000, ge=8, le=1_000_000, description="users of the drawn graph")
    items: int = Field(1000, ge=8, le=1_000_000, description="items of the drawn graph")
    edges: int = Field(20_000, ge=8, le=100_000_000, description="edges of the drawn graph")
    every_round: bool = Field(False, description="draw a new graph each round, as in the paper, else once per run")


SumName = Literal[
    "off", "items", "content", "exact", "iterated", "transitions", "node_borders", "node_directions", "node_gram"
]
"""Name of the sum that silos make before a training run: off, or a sum of `shared.sums.SUMS`."""


USUAL_ENCODER = "projection/64/1"


class BasisSettings(Message):
    """Settings of a sum of statistics over the silos, such as the common basis."""

    kind: SumName = Field(
        "off",
        description=(
            "off; items: hashed ids; content: co-occurrence of item features; exact: degrees and "
            "pairs of all items; iterated: lowest frequencies of the items' graph; transitions: next "
            "items of visits; node_directions: common directions of features; node_gram: products of "
            "features and labels; node_borders: features of foreign neighbours"
        ),
    )
    rank: int = Field(128, ge=1, le=4096, description="iterated: r, number of frequencies")
    rounds: int = Field(
        3,
        ge=2,
        le=100,
        description="iterated: rounds; a basis of one round is worse than none. borders: one more than hops",
    )
    words: int | None = Field(
        None,
        ge=2,
        le=4096,
        description=(
            "iterated: numbers of 32 bits per item and round; the basis then follows from the "
            "products of all rounds, which from the second one on are two in a number. none: rank, "
            "and the last round alone"
        ),
        exclude_if=lambda words: words is None,
    )
    exponent: float = Field(0.25, ge=0, le=0.5, description="iterated: e of R = D_u^-e X D_i^-e")
    counters: int | None = Field(
        None,
        ge=1 << 8,
        le=1 << 22,
        description=(
            "transitions: counters of a row, a power of two, used where a number per pair would be "
            "more. none: 30 or more per item, 2^19 at least"
        ),
        exclude_if=lambda counters: counters is None,
    )
    places: int | None = Field(
        None,
        ge=1,
        le=MOST_ITEMS,
        description=(
            "exact, iterated: largest number of items of the list that the silos sum; none: all silos"
            " have a list of `catalogue` items"
        ),
        exclude_if=lambda places: places is None,
    )
    buckets: int = Field(
        1 << 20,
        ge=1 << 8,
        le=1 << 24,
        description="items: buckets of hashed ids in each of two tables; use ten or more per id",
        exclude_if=lambda buckets: buckets == 1 << 20,
    )
    encoder: str = Field(
        USUAL_ENCODER,
        max_length=80,
        description=(
            "content: encoder of all silos' items, kind/width/version; a silo with another encoder adds zeros"
        ),
        exclude_if=lambda encoder: encoder == USUAL_ENCODER,
    )
    least_pairs: int = Field(
        3,
        ge=1,
        le=1000,
        description=(
            "exact, transitions: k; pairs of items with fewer users or visits count as 0. nodes: "
            "features and classes of fewer nodes of a silo are left out of its part"
        ),
    )
    least_silos: int = Field(
        3,
        ge=3,
        le=1024,
        description="m, smallest number of silos of a sum; no two sums may differ by the data of fewer",
    )

    epsilon: float | None = Field(
        None, gt=0, le=100, description="exact: epsilon of one user in the one noised sum; none: no noise"
    )
    delta: float = Field(1e-5, gt=0, le=0.01, description="delta of that epsilon")

    @field_validator("counters")
    @classmethod
    def _require_power_of_two(cls, counters: int | None) -> int | None:
        if counters is not None and counters & (counters - 1):
            raise ValueError("expected a power of two")
        return counters

    @property
    def directions(self) -> int:
        """Number of directions from whose products an iterated basis follows."""
        return self.rank if self.words is None else self.words * (2 * self.rounds - 1) - 1


class ServerStepSettings(Message):
    """Settings of the server's optimiser, where `server` is not none."""

    rate: float | None = Field(
        None, gt=0, le=1e3, description="eta, step of the server; none: 1 with momentum, .005 with the others"
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the first moment per round")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the second moment per round")
    tau: float = Field(
        1e-3, gt=0, le=1e3, description="smallest divisor of a step; its square is the first second moment"
    )
    second_moment: Literal["clip", "ramp"] = Field("clip", description="ga: which reading of C-SME")
    magnitudes: Magnitudes | None = Field(
        None,
        description=(
            "what the second moment follows: the mean's change (off), or the mean of the clients' "
            "absolute changes, which the aggregator computes; where it sees sums alone, clients "
            "report one number, the root mean square of their update's change. none: computed with "
            "ga, off with the others"
        ),
    )


class SessionSettings(Message):
    """Settings of session models."""

    candidates: Literal["own", "catalogue"] = Field(
        "own",
        description=(
            "own: predict among the silo's own items, whose rows alone are trained; catalogue: among all items"
        ),
    )
    weight_decay: float = Field(1e-5, ge=0, le=1, description="L2 of the optimiser, over all trained tensors")
    rate_step: int = Field(
        0, ge=0, le=10_000, description="rounds after which the learning rate falls to a tenth; 0: it stays"
    )


Preset = Literal["default", "paper", "sessions", "nodes"]
Model = TypeVar("Model", bound=BaseModel)
TOLERANT = ("trimmed_mean", "krum")  # aggregations that use `tolerated`, the number of bad clients


class MethodSettings(Message):
    """Settings of LPSFed. `default` is chosen by validation; `paper` is Appendix D.6."""

    width: int = Field(64, ge=1, le=1024, description="d, width of embeddings and of both MLPs")
    model: str = Field("lgcn", description="model of the clients, where the strategy has none of its own")
    catalogue: int = Field(
        0, ge=0, le=1 << 24, description="number of items in a list that all silos share; 0: no list"
    )
    layers: int = Field(2, ge=1, le=8, description="L, number of low-pass convolutions")
    cutoff: int = Field(128, ge=1, le=4096, description="Phi, number of lowest frequencies")
    start: Literal["exact", "common", "random"] = Field(
        "exact",
        description=(
            "start of the embeddings: exact: low-pass filter of the own graph; common: of the common "
            "basis; random: normal noise"
        ),
    )
    item_start: str = Field(
        "",
        pattern=r"^[a-z0-9][a-z0-9_./-]{0,59}$|^$",
        description=(
            "start of an item table's rows: random, text, or the encoder of the silos' item features;"
            " empty: as the model has it, text with fedutr and fedutr_sar, random with the others"
        ),
        exclude_if=lambda start: not start,
    )
    fusion: bool = Field(True, description="add closed-form full-spectrum scores to the trained score")
    optimiser: Literal["adam", "rmsprop", "sgd"] = Field("adam", description="optimiser of the clients")
    learning_rate: float = Field(1e-3, gt=0, le=1, description="learning rate of embeddings and kernels")
    mlp_learning_rate: float = Field(3e-5, gt=0, le=1, description="learning rate of both MLPs")
    table_learning_rate: float = Field(0.05, gt=0, le=10, description="learning rate of the popularity tables")
    decay: float = Field(0.0, ge=0, le=1e3, description="strength of the embeddings' regularisation toward their start")
    local_epochs: int = Field(1, ge=1, le=100, description="passes over a client's training pairs per round")
    leave_one_out: bool = Field(True, description="score a training pair as if its own edge were not in the graph")
    batch_size: int = Field(2048, ge=1, le=1_000_000, description="training pairs per step")
    negatives: int = Field(16, ge=1, le=4096, description="sampled negative items per batch")
    loss: Literal["bc", "bpr"] = Field("bc", description="bc: BC loss, Eq. 7 to 9; bpr: pairwise")
    temperature: float = Field(0.1, gt=0, le=10, description="tau of Eq. 7 and Eq. 9")
    margin_strength: float = Field(0.1, ge=0, le=1, description="gamma of Eq. 8; 0: no margin")
    margin_reading: MarginReading = Field(
        "literal",
        description=("reading of Eq. 8: as printed, xi / pi, BC-Loss's released form, or subtracted from the cosine"),
        exclude_if=lambda reading: reading == "literal",
    )
    refinement: float = Field(0.25, ge=0, le=1, description="omega of Eq. 15")
    warmup_rounds: int = Field(
        2, ge=0, le=100, description="rounds before the margin is used; at most 1 in runs of 5 rounds or fewer"
    )
    warmup_trains: Literal["all", "tables"] = Field(
        "all", description="what the warm-up trains: all: model and tables; tables: the tables alone"
    )
    signal: Literal["eigenvalues", "trained"] = Field("eigenvalues", description="source of K^c (Eq. 6)")
    similarity_floor: float | None = Field(
        None,
        ge=0,
        le=1,
        description="smallest rhobar; 1: plain averaging; none: 0, or 1 in a secure federation",
        exclude_if=lambda floor: floor is None,
    )
    aggregate: Literal["mean", "median", "trimmed_mean", "krum"] = Field(
        "mean", description="aggregation of a round's updates: mean, or a robust centre"
    )
    tolerated: int = Field(
        0,
        ge=0,
        le=10_000,
        validate_default=True,
        description="f, number of bad clients that trimmed_mean or krum withstands",
    )
    krum_kept: int = Field(
        1, ge=1, le=10_000, validate_default=True, description="krum: number of central updates in the mean"
    )
    clip_factor: float = Field(
        0.0, ge=0, le=1e6, description="cuts an update's change to this multiple of the round's median; 0: off"
    )
    quarantine_factor: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="quarantines a client whose change exceeds this multiple of the round's median; 0: off",
    )
    server: Server = Field(
        "none",
        description="optimiser of the server; none: the state becomes the centre of the round's updates",
        exclude_if=lambda server: server == "none",
    )
    server_step: ServerStepSettings = Field(
        ServerStepSettings(),
        description="settings of the server's optimiser",
        exclude_if=lambda settings: settings == ServerStepSettings(),
    )
    sessions: SessionSettings = Field(
        SessionSettings(),
        description="settings of session models",
        exclude_if=lambda settings: settings == SessionSettings(),
    )
    nodes: NodeSettings = Field(
        NodeSettings(),
        description="settings of labels of nodes",
        exclude_if=lambda settings: settings == NodeSettings(),
    )
    anchor: AnchorSettings = Field(AnchorSettings(), description="settings of the neutral graph")
    basis: BasisSettings = Field(
        BasisSettings(),
        description="settings of the common basis",
        validate_default=True,
        exclude_if=lambda basis: basis.kind == "off",
    )
    sums: dict[Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,39}$")], BasisSettings] = Field(
        {},
        max_length=20,
        description=(
            "further sums of the federation by part, with the fields of `basis`; a run has its one sum in `basis`"
        ),
        exclude_if=lambda sums: not sums,
    )
    strategy: dict[str, str | float | bool] = Field(
        {}, description="the strategy's own settings, such as FedProx's mu", exclude_if=lambda settings: not settings
    )

    @field_validator("model")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in EXCHANGES:
            raise ValueError(f"expected one of {', '.join(EXCHANGES)}")
        return name

    @field_validator("basis")
    @classmethod
    def _require_basis_for_start(cls, basis: BasisSettings, info: ValidationInfo) -> BasisSettings:
        if info.data.get("start") != "common":
            return basis
        if basis.kind == "off":
            raise ValueError("expected a kind other than off with start = common")
        if info.data.get("signal") == "trained":
            raise ValueError(
                "expected signal = eigenvalues with start = common, whose kernels are not of the silo's own"
            )
        return basis

    @field_validator("clip_factor", "quarantine_factor")
    @classmethod
    def _require_usual_factor(cls, factor: float, info: ValidationInfo) -> float:
        # At 2 and above, of two updates none is ever far from the median of both, and of any number most never are.
        least = 1.0 if info.field_name == "clip_factor" else 2.0
        if 0 < factor < least:
            raise ValueError(f"expected 0, or {least:g} and more")
        return factor

    @field_validator("tolerated")
    @classmethod
    def _require_matching_tolerated(cls, tolerated: int, info: ValidationInfo) -> int:
        aggregate = info.data.get("aggregate", "mean")
        if (tolerated > 0) != (aggregate in TOLERANT):
            expected = "1 or more" if aggregate in TOLERANT else "0"
            raise ValueError(f"expected {expected} with aggregate = {aggregate}")
        return tolerated

    @field_validator("krum_kept")
    @classmethod
    def _require_krum_for_kept(cls, kept: int, info: ValidationInfo) -> int:
        aggregate = info.data.get("aggregate", "mean")
        if kept > 1 and aggregate != "krum":
            raise ValueError(f"expected 1 with aggregate = {aggregate}")
        return kept

    def warmup(self, rounds: int) -> int:
        """Returns the rounds without a margin in a run of `rounds`."""
        return min(self.warmup_rounds, 1) if rounds <= SHORT_RUN else self.warmup_rounds


NESTED = {
    "anchor": "anchor.graph",
    "basis": "basis.kind",
    "nodes": "nodes.hops",
    "server_step": "server_step.rate",
    "sessions": "sessions.candidates",
    "sums": "sums.basis.kind",
    "strategy": "strategy.mu",
}
"""Fields that are settings themselves, each with an example of a name in it."""
SHORT_RUN = 5  # a run this short would spend half of its rounds in a two-round warm-up

PRESETS: dict[Preset, dict[str, Any]] = {
    "default": {},
    "paper": {
        "cutoff": 64,
        "start": "random",
        "fusion": False,
        "optimiser": "rmsprop",
        "learning_rate": 5e-4,
        "mlp_learning_rate": 5e-4,
        "leave_one_out": False,
        "negatives": 64,
        "local_epochs": 5,
        "temperature": 0.1,
        "margin_strength": 1.0,
        # Paper: Eq. 8 and 9 as printed; here: a reading of them, because as printed nearly every positive lies at the
        # angle pi from the first rounds on, and no client ever ranks above its start (docs/equations.md).
        "margin_reading": "additive",
        "warmup_trains": "tables",
        "anchor": {"every_round": True},
    },
    "sessions": {"model": "srgnn", "batch_size": 100},
    "nodes": {"model": "node_ridge"},
}
PRESET_ROUNDS: dict[Preset, int] = {"default": 10, "paper": 40, "sessions": 5, "nodes": 100}


def method_settings(preset: Preset = "default", **overrides: Any) -> MethodSettings:
    """Returns a preset with some fields replaced.

    Dotted names such as anchor.graph and strategy.mu reach nested fields. Raises SettingsError naming the field, what
    was expected and what came.
    """
    for name in NESTED:
        if name in overrides:
            raise SettingsError(
                f"{name}: expected its fields by dotted names such as {NESTED[name]}, got the whole group"
            )
    return override_settings(PRESETS[preset], overrides)


def override_settings(values: Mapping[str, Any], changes: Mapping[str, Any]) -> MethodSettings:
    """Returns settings of these values with changes by dotted name.

    Raises SettingsError as `method_settings` does.
    """
    changed = dict(values)
    for name, value in changes.items():
        group, dot, field = name.partition(".")
        part, inner, deeper = field.partition(".")
        if group == "sums" and inner:
            sums = dict(changed.get(group, {}))
            changed[group] = {**sums, part: {**sums.get(part, {}), deeper: value}}
        elif dot and group in NESTED:
            changed[group] = {**changed.get(group, {}), field: value}
        else:
            changed[name] = value
    return validate_settings(MethodSettings, changed)


def complete_settings(requested: MethodSettings, declared: MethodSettings) -> MethodSettings:
    """Completes a run's settings from the declared ones, except for sums.

    Raises SettingsError for values that do not go together.
    """
    values, given = declared.model_dump(exclude={"basis", "sums"}), requested.model_dump(exclude_unset=True)
    for name, value in given.items():
        values[name] = {**values.get(name, {}), **value} if name in NESTED and name not in ("basis", "sums") else value
    return validate_settings(MethodSettings, values)


def validate_settings(model: type[Model], values: dict[str, Any]) -> Model:
    """Validates values as a settings model; SettingsError names each bad field."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise SettingsError(describe_validation_error(error)) from None


def describe_validation_error(error: ValidationError) -> str:
    """Describes each wrong field: its dotted name, what was expected, what came."""
    return "; ".join(
        f"{'.'.join(map(str, e['loc']))}: {describe_fault(e, _describe_value, UNKNOWN_SETTING)}" for e in error.errors()
    )


def _describe_value(fault: Mapping[str, Any]) -> str:
    """Describes a setting's wrong value; of nested settings those that are not defaults."""
    value = fault["input"]
    if not isinstance(value, BaseModel):
        return describe_setting(fault)
    return repr(changed) if (changed := value.model_dump(exclude_defaults=True)) else "the defaults"
