"""Privacy settings of a silo: clipping, noise, and the budget that may be spent."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from shared.message import Message
from shared.method.settings import MethodSettings
from shared.strategies import registered_scalars
from shared.strategies.strategy import Strategy

Mechanism = Literal["gaussian", "laplace"]
TENSORS = "tensors"
SCALARS = {name: scalar for name, scalar in registered_scalars().items() if scalar.released is not None}
"""Scalars that may be released with noise: those with a known range to clip into."""
NEEDED: dict[str, tuple[str, ...]] = {
    "gaussian": ("clip_norm", "noise_multiplier", "delta", "budget"),
    "laplace": ("clip_norm", "round_epsilon", "budget"),
}
FOREIGN: dict[str, tuple[str, ...]] = {
    "gaussian": ("round_epsilon", "scalar_epsilon"),
    "laplace": ("noise_multiplier", "scalar_noise_multiplier", "delta"),
}
Positive = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class PrivacySettings(Message):
    """Settings of differential privacy of updates; the silo alone chooses them, off by default.

    Any two shards are neighbours. A part that is clipped to norm C then changes by 2 C at most: that is its
    sensitivity, and each noise is given as its scale over the sensitivity.
    """

    mechanism: Literal["off", "gaussian", "laplace"] = Field(
        "off", description="noise on updates: `off`, `gaussian` or `laplace`"
    )
    clip_norm: Positive | None = Field(
        None, description=("C, largest norm of the change of all tensors in a round: L2 with gaussian, L1 with laplace")
    )
    noise_multiplier: Positive | None = Field(None, description="gaussian: deviation over sensitivity, of the tensors")
    scalar_noise_multiplier: Positive | None = Field(
        None, description="gaussian: deviation over sensitivity, of each scalar; default: the tensors'"
    )
    round_epsilon: Positive | None = Field(None, description="laplace: epsilon of the tensors of one round")
    scalar_epsilon: Positive | None = Field(
        None, description="laplace: epsilon of one value of a scalar; default: the tensors'"
    )
    delta: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="gaussian: delta at which epsilon is computed"
    )
    scalar_ranges: dict[str, tuple[Finite, Finite]] = Field(
        {}, description="ranges into which scalars are clipped before noise; <scalar>_range sets the same"
    )
    budget: Positive | None = Field(None, description="largest epsilon of a shard, over all runs")

    @model_validator(mode="before")
    @classmethod
    def _collect_ranges(cls, values: Any) -> Any:
        """Collects settings named <scalar>_range, from environment or file, in `scalar_ranges`."""
        given = {f"{name}_range": name for name in SCALARS}
        if not isinstance(values, dict) or not given.keys() & values.keys():
            return values
        ranges = {given[key]: _read_range(value) for key, value in values.items() if key in given}
        others = {key: value for key, value in values.items() if key not in given}
        return others | {"scalar_ranges": {**others.get("scalar_ranges", {}), **ranges}}

    @model_validator(mode="after")
    def _check_mechanism(self) -> Self:
        if not self.is_on:
            if given := sorted(self.model_fields_set - {"mechanism"}):
                raise ValueError(f"mechanism: expected gaussian or laplace with {given[0]}, got off: nothing is noised")
            return self
        if missing := [name for name in NEEDED[self.mechanism] if getattr(self, name) is None]:
            raise ValueError(f"{missing[0]}: expected one with mechanism = {self.mechanism}, got none")
        if foreign := [name for name in FOREIGN[self.mechanism] if getattr(self, name) is not None]:
            raise ValueError(f"{foreign[0]}: expected none with mechanism = {self.mechanism}, got one")
        for name, (least, most) in self.scalar_ranges.items():
            if name not in SCALARS:
                raise ValueError(f"scalar_ranges: expected names of {list(SCALARS)}, got {name!r}")
            if not least < most:
                raise ValueError(f"{name}_range: expected its least before its most, got {least:g}, {most:g}")
        return self

    @property
    def is_on(self) -> bool:
        return self.mechanism != "off"

    def noise(self, part: str) -> tuple[Mechanism, float]:
        """Returns the mechanism and noise multiplier of a part: TENSORS, or a scalar's name.

        The multiplier is the noise's scale over the part's sensitivity. Laplace noise of scale b hides a change of b
        epsilon, so its multiplier is 1 / epsilon.
        """
        if self.mechanism == "laplace":
            assert self.round_epsilon is not None
            return "laplace", 1.0 / (
                self.round_epsilon if part == TENSORS else self.scalar_epsilon or self.round_epsilon
            )
        assert self.mechanism == "gaussian" and self.noise_multiplier is not None
        scalar = self.scalar_noise_multiplier or self.noise_multiplier
        return "gaussian", self.noise_multiplier if part == TENSORS else scalar

    def mean_noise(self) -> float:
        """Computes the mean absolute noise on one number of the tensors.

        No mean of |changes| is below it.
        """
        kind, multiplier = self.noise(TENSORS)
        deviation = multiplier * 2 * self.ball(TENSORS)[1]
        return deviation * math.sqrt(2 / math.pi) if kind == "gaussian" else deviation

    def ball(self, part: str) -> tuple[float, float]:
        """Returns centre and radius of the ball that a part is clipped into.

        Tensors: 0 and C. A scalar: the middle and half the width of its range.
        """
        if part == TENSORS:
            assert self.clip_norm is not None
            return 0.0, self.clip_norm
        least, most = self.limits(part)
        return math.fsum((least, most)) / 2, (most - least) / 2

    def limits(self, scalar: str) -> tuple[float, float]:
        """Returns the range that a scalar is clipped into."""
        released = SCALARS[scalar].released
        assert released is not None
        return self.scalar_ranges.get(scalar, (released.least, released.most))


def _read_range(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value  # the field says what it expected


def require_accountable(strategy: Strategy, method: MethodSettings, *, counts: bool) -> None:
    """Raises ValueError if the strategy sends values that no noise protects."""
    name = strategy.name
    if counts:
        raise ValueError("privacy: expected policy.counts = false, because counts leave without noise, got true")
    if strategy.shares_items(method) and strategy.needs_single_updates:
        words = "whose mean asks which rows have moved"
        raise ValueError(f"privacy: expected a strategy without item tables {words}, got {name!r}")
    if strategy.reports and strategy.report is None:
        words = "expected a strategy without reports of the shard, for which no noise is known"
        raise ValueError(f"privacy: {words}, got {[spec.name for spec in strategy.reports]} of {name!r}")
    if unknown := sorted(set(strategy.scalars) - set(SCALARS)):
        raise ValueError(f"privacy: expected no other scalars than {list(SCALARS)}, got {unknown} of {name!r}")
    if name == "local":
        raise ValueError("privacy: expected a strategy that sends something, got 'local', which sends nothing")
