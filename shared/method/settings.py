"""The method's settings, agreed for a whole run: one place for every default and its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from shared.errors import SettingsError
from shared.message import Message
from shared.method.exchange import EXCHANGES
from shared.method.margin_readings import MarginReading
from shared.method.setting_groups import AnchorSettings, BasisSettings, Server, ServerStepSettings, SessionSettings

Preset = Literal["default", "paper", "sessions"]
Model = TypeVar("Model", bound=BaseModel)
TOLERANT = ("trimmed_mean", "krum")  # ways to aggregate that are told how many clients may be bad


class MethodSettings(Message):
    """Settings of LPSFed. `default` is what validation chose; `paper` is Appendix D.6."""

    width: int = Field(64, ge=1, le=1024, description="d, width of embeddings and of both MLPs")
    model: str = Field("lgcn", description="the client's model, where the strategy has none of its own")
    catalogue: int = Field(0, ge=0, le=1 << 24, description="items of a catalogue shared by all; 0: there is none")
    layers: int = Field(2, ge=1, le=8, description="L, number of low-pass convolutions")
    cutoff: int = Field(128, ge=1, le=4096, description="Phi, number of lowest frequencies kept")
    start: Literal["exact", "common", "random"] = Field(
        "exact", description="start at the low-pass filter of the own graph, or of the common basis, or at normal noise"
    )
    fusion: bool = Field(True, description="rank by the trained score together with closed-form full-spectrum scores")
    optimiser: Literal["adam", "rmsprop", "sgd"] = Field("adam", description="by which each client trains")
    learning_rate: float = Field(1e-3, gt=0, le=1, description="of embeddings and kernels")
    mlp_learning_rate: float = Field(3e-5, gt=0, le=1, description="of both MLPs")
    table_learning_rate: float = Field(0.05, gt=0, le=10, description="rate of the popularity tables")
    decay: float = Field(0.0, ge=0, le=1e3, description="pull of the embeddings toward their start")
    local_epochs: int = Field(1, ge=1, le=100, description="passes over a client's training pairs in a round")
    leave_one_out: bool = Field(True, description="score a training pair as if its own edge were not in the graph")
    batch_size: int = Field(2048, ge=1, le=1_000_000, description="training pairs of one step")
    negatives: int = Field(16, ge=1, le=4096, description="sampled items that each batch of pairs is held against")
    loss: Literal["bc", "bpr"] = Field("bc", description="bc: Eq. 7 to 9; bpr: pairwise")
    temperature: float = Field(0.1, gt=0, le=10, description="tau of Eq. 7 and Eq. 9")
    margin_strength: float = Field(0.1, ge=0, le=1, description="gamma of Eq. 8; 0 turns the margin off")
    margin_reading: MarginReading = Field(
        "literal",
        description="of Eq. 8: as printed, xi / pi, BC-Loss's released form, or taken off the cosine",
        exclude_if=lambda reading: reading == "literal",
    )
    refinement: float = Field(0.25, ge=0, le=1, description="omega of Eq. 15")
    warmup_rounds: int = Field(2, ge=0, le=100, description="rounds before the margin is used; 1 in runs of <= 5")
    warmup_trains: Literal["all", "tables"] = Field("all", description="model and tables, or the tables alone")
    signal: Literal["eigenvalues", "trained"] = Field("eigenvalues", description="what K^c is made of (Eq. 6)")
    similarity_floor: float | None = Field(
        None,
        ge=0,
        le=1,
        description="least rhobar; 1 is plain averaging; none: 0, or 1 in a secure federation",
        exclude_if=lambda floor: floor is None,
    )
    aggregate: Literal["mean", "median", "trimmed_mean", "krum"] = Field(
        "mean", description="what the round's updates become: their mean, or a centre that a few bad ones cannot move"
    )
    tolerated: int = Field(
        0, ge=0, le=10_000, validate_default=True, description="f, bad clients that trimmed_mean or krum must withstand"
    )
    krum_kept: int = Field(
        1, ge=1, le=10_000, validate_default=True, description="krum: the mean of so many; 1: the most central alone"
    )
    clip_factor: float = Field(
        0.0, ge=0, le=1e6, description="an update's change is cut to so many times the round's median; 0: it is not"
    )
    quarantine_factor: float = Field(
        0.0, ge=0, le=1e6, description="a client whose change is more times the round's median is shut out; 0: none is"
    )
    server: Server = Field(
        "none",
        description="how the state follows the centre of a round's updates: it adopts it, or an optimiser steps to it",
        exclude_if=lambda server: server == "none",
    )
    server_step: ServerStepSettings = Field(
        ServerStepSettings(),
        description="of the server's optimiser",
        exclude_if=lambda settings: settings == ServerStepSettings(),
    )
    sessions: SessionSettings = Field(
        SessionSettings(), description="of session models", exclude_if=lambda settings: settings == SessionSettings()
    )
    anchor: AnchorSettings = Field(AnchorSettings(), description="of the neutral graph")
    basis: BasisSettings = Field(
        BasisSettings(),
        description="of the common basis",
        validate_default=True,
        exclude_if=lambda basis: basis.kind == "off",
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
    def _bears_the_start(cls, basis: BasisSettings, info: ValidationInfo) -> BasisSettings:
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
    def _beyond_the_usual(cls, factor: float, info: ValidationInfo) -> float:
        # At 2 and above, of two updates none is ever far from the median of both, and of any number most never are.
        least = 1.0 if info.field_name == "clip_factor" else 2.0
        if 0 < factor < least:
            raise ValueError(f"expected 0, or {least:g} and more")
        return factor

    @field_validator("tolerated")
    @classmethod
    def _where_it_is_used(cls, tolerated: int, info: ValidationInfo) -> int:
        aggregate = info.data.get("aggregate", "mean")
        if (tolerated > 0) != (aggregate in TOLERANT):
            expected = "1 or more" if aggregate in TOLERANT else "0"
            raise ValueError(f"expected {expected} with aggregate = {aggregate}")
        return tolerated

    @field_validator("krum_kept")
    @classmethod
    def _of_krum_alone(cls, kept: int, info: ValidationInfo) -> int:
        aggregate = info.data.get("aggregate", "mean")
        if kept > 1 and aggregate != "krum":
            raise ValueError(f"expected 1 with aggregate = {aggregate}")
        return kept

    def warmup(self, rounds: int) -> int:
        """Rounds without a margin in a run of `rounds`."""
        return min(self.warmup_rounds, 1) if rounds <= SHORT_RUN else self.warmup_rounds


NESTED = {
    "anchor": "anchor.graph",
    "basis": "basis.kind",
    "server_step": "server_step.rate",
    "sessions": "sessions.candidates",
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
}
PRESET_ROUNDS: dict[Preset, int] = {"default": 10, "paper": 40, "sessions": 5}


def method_settings(preset: Preset = "default", **overrides: Any) -> MethodSettings:
    """A preset with some fields replaced. Dotted names such as anchor.graph and strategy.mu reach nested fields.

    Raises SettingsError naming the field, what was expected and what came.
    """
    for name in NESTED:
        if name in overrides:
            raise SettingsError(f"{name}: expected its fields by dotted names such as {NESTED[name]}, got it whole")
    return override(PRESETS[preset], overrides)


def override(values: Mapping[str, Any], changes: Mapping[str, Any]) -> MethodSettings:
    """Settings of these values with changes by name, or by dotted name. SettingsError as `method_settings` raises."""
    changed = dict(values)
    for name, value in changes.items():
        group, dot, field = name.partition(".")
        if dot and group in NESTED:
            changed[group] = {**changed.get(group, {}), field: value}
        else:
            changed[name] = value
    return validate_settings(MethodSettings, changed)


def complete_settings(asked: MethodSettings, declared: MethodSettings) -> MethodSettings:
    """Settings of a run: what `asked` does not set is as `declared`, but for the common basis, which a run asks for.

    Raises SettingsError for values that do not go together.
    """
    values, given = declared.model_dump(exclude={"basis"}), asked.model_dump(exclude_unset=True)
    for name, value in given.items():
        values[name] = {**values.get(name, {}), **value} if name in NESTED and name != "basis" else value
    return validate_settings(MethodSettings, values)


def validate_settings(model: type[Model], values: dict[str, Any]) -> Model:
    """`values` as a settings model, or a SettingsError naming each bad field."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise SettingsError(describe(error)) from None


def describe(error: ValidationError) -> str:
    """One line a bad field: its dotted name, what was expected, what came."""
    lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}, got {_describe_input(e['input'])}" for e in error.errors()]
    return "; ".join(lines)


def _describe_input(value: object) -> str:
    """What came; of settings with fields of their own those that are not the defaults."""
    if not isinstance(value, BaseModel):
        return repr(value)
    return repr(changed) if (changed := value.model_dump(exclude_defaults=True)) else "the defaults"
