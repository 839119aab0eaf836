"""Forecasts the gain of joining a federation from gains between parts of the silo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client_service.data.interactions import Shard
from client_service.evaluation.metrics import TITLE
from client_service.joining_value.trials import CutTrial, Gain, Observe, count_trainings, measure_gains
from shared.errors import DataError
from shared.method.graph import Float64
from shared.words import count_noun

TIMES = (2, 4, 8, 16)
EXPONENTS = np.linspace(0.05, 1.5, 59)
USUAL, SPREAD = 0.5, 0.25  # of the exponent g before anything is measured
RESAMPLES = 400
BOUNDS = (0.05, 0.95)
LEAST = 1e-6  # instead of zero
OWN_ERROR = 0.3  # standard deviation of the measured log gain around its forecast, as a share, on real data


@dataclass(frozen=True)
class Interval:
    """Figure with its 90 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """Forecast for a federation with `times` as many users: primary measure and gain."""

    times: int
    quality: Interval
    gain: Interval


@dataclass(frozen=True)
class Curve:
    """Learning curve of a silo.

    today: primary measure of the silo's own fused start. strength, exponent: a and g of the curve.
    """

    today: Interval
    strength: float
    exponent: float
    outlooks: tuple[Forecast, ...]


def forecast(draws: Sequence[CutTrial], users: int) -> Curve:
    """Fits a learning curve through all draws, and extends it to larger federations.

    The intervals are over users, draws and curves.
    """
    weights = _resamples(draws)
    strengths, exponents = _fit(_log_gains(draws, weights), *_axes(draws))
    drawn, whole = float(draws[0].users), float(users)
    level = _level(draws, weights)
    today = level * np.exp(strengths * (drawn**-exponents - whole**-exponents))
    error = 1.0 + OWN_ERROR * np.random.default_rng(0).standard_normal(len(level))
    error[0] = 1.0
    logs = {times: strengths * whole**-exponents * (1.0 - times**-exponents) * error for times in TIMES}
    outlooks = tuple(_forecast_gain(times, today, log) for times, log in logs.items())
    return Curve(_interval(today), float(strengths[0]), float(exponents[0]), outlooks)


def _forecast_gain(times: int, today: Float64, log: Float64) -> Forecast:
    later = today * np.exp(log)
    return Forecast(times, _interval(later), _interval(later - today))


def _interval(values: Float64) -> Interval:
    """Computes an interval from resamples; the first value is that of the data."""
    low, high = np.quantile(values, BOUNDS)
    return Interval(float(values[0]), float(min(low, values[0])), float(max(high, values[0])))


def _resamples(draws: Sequence[CutTrial]) -> Float64:
    """Draws bootstrap weights of users and draws, (1 + RESAMPLES, draws, M).

    The first row has weight 1 everywhere.
    """
    rng = np.random.default_rng(0)
    users = draws[0].whole.shape[0]
    of_users = rng.poisson(1.0, (RESAMPLES, 1, users)).astype(float)
    of_draws = rng.multinomial(len(draws), np.full(len(draws), 1 / len(draws)), RESAMPLES)[..., None]
    return np.concatenate([np.ones((1, len(draws), users)), of_users * of_draws])


def _axes(draws: Sequence[CutTrial]) -> tuple[Float64, Float64]:
    """Returns the users of the small silo, and the growth, of each gain, (G,)."""
    found = draws[0].gains
    return np.array([float(gain.users) for gain in found]), np.array([float(gain.times) for gain in found])


def _log_gains(draws: Sequence[CutTrial], weights: Float64) -> Float64:
    """Computes log(together / alone), weighted means over the users of all draws, (R, G)."""
    alone, together = (
        _weighted_sums([np.array([getattr(gain, side) for gain in draw.gains]) for draw in draws], weights)
        for side in ("alone", "together")
    )
    found: Float64 = np.log(np.maximum(together, LEAST) / np.maximum(alone, LEAST))
    return found


def _level(draws: Sequence[CutTrial], weights: Float64) -> Float64:
    """Computes the primary measure of the largest part, (R,)."""
    total = _weighted_sums([draw.whole[None] for draw in draws], weights)
    count = _weighted_sums([np.where(np.isnan(draw.whole), np.nan, 1.0)[None] for draw in draws], weights)
    return (total / np.maximum(count, LEAST))[:, 0]


def _weighted_sums(values: Sequence[Float64], weights: Float64) -> Float64:
    """Computes weighted sums over users and draws, (R, G).

    values: (G, M) for each draw. weights: (R, draws, M).
    """
    return np.asarray(sum(weights[:, draw] @ np.nan_to_num(one).T for draw, one in enumerate(values)))


def _fit(gains: Float64, sizes: Float64, times: Float64) -> tuple[Float64, Float64]:
    """Fits a and g of the curve to each resample (R, G).

    Least squares, each gain weighted by its inverse variance, with a normal prior on g around its usual value.
    """
    weight = 1.0 / (gains.var(axis=0) + LEAST)
    shape = sizes ** -EXPONENTS[:, None] * (1.0 - times ** -EXPONENTS[:, None])  # (E, G)
    strength = (gains * weight) @ shape.T / (shape**2 @ weight)  # (R, E)
    missed = ((gains[:, None, :] - strength[..., None] * shape) ** 2 * weight).sum(axis=2)
    best = (missed + ((EXPONENTS - USUAL) / SPREAD) ** 2).argmin(axis=1)
    return strength[np.arange(len(gains)), best], EXPONENTS[best]


FEWEST_JUDGED = 50  # users with validation items; with fewer no forecast is shown
DRAWS = 4


@dataclass(frozen=True)
class MeasuredGain:
    """Gain measured inside the silo.

    Parts of `users` users are compared with `times` of them together; `judged` users measure it.
    """

    users: int
    times: int
    judged: int
    alone: float
    together: float


@dataclass(frozen=True)
class JoiningValue:
    """Estimate of what joining would bring a silo.

    few: too few validation users for a reliable figure. curve: None if the silo cannot be cut. text: gain of the
    smallest parts by content sums alone; None without texts or attributes of items.
    """

    users: int
    items: int
    validation_users: int
    few: bool
    draws: int
    measured: tuple[MeasuredGain, ...]
    curve: Curve | None
    text: MeasuredGain | None = None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The forecast in plain words."""
        if self.few or self.curve is None:
            return (
                f"Too few to say: expected at least {FEWEST_JUDGED} users with validation items, "
                f"got {self.validation_users}.",
            )
        text = () if self.text is None else (_text_sentence(self.text),)
        return (*(_sentence(self.curve, outlook) for outlook in self.curve.outlooks), *text)


def estimate_joining_value(
    shard: Shard, cutoff: int, draws: int = DRAWS, observe: Observe = lambda _: None
) -> JoiningValue:
    """Estimates what joining would bring, by the learning curve of parts of the silo.

    Raises DataError without validation items.
    """
    users, items = shard.train.shape
    judged = int((np.diff(shard.valid.indptr) > 0).sum())
    if judged == 0:
        raise DataError("worth: expected validation items, got a shard without any")
    if count_trainings(users) == 1 or judged < 2:
        return JoiningValue(users, items, judged, True, 0, (), None)
    made = [measure_gains(shard, number, cutoff, observe) for number in range(draws)]
    few = judged < FEWEST_JUDGED
    texts = [draw.text for draw in made if draw.text is not None]
    text = _measure_gains(texts) if texts else None
    return JoiningValue(users, items, judged, few, draws, _summarise_gains(made), forecast(made, users), text)


def _summarise_gains(draws: list[CutTrial]) -> tuple[MeasuredGain, ...]:
    """Averages the gains over the draws."""
    return tuple(_measure_gains(one) for one in zip(*(draw.gains for draw in draws), strict=True))


def _measure_gains(gains: Sequence[Gain]) -> MeasuredGain:
    """Averages the gains of the same cut over several draws."""
    alone, together = (np.concatenate([getattr(gain, side) for gain in gains]) for side in ("alone", "together"))
    judged = ~np.isnan(alone)
    means = (float(side[judged].mean()) if judged.any() else 0.0 for side in (alone, together))
    return MeasuredGain(gains[0].users, gains[0].times, int(judged.sum()), *means)


def _text_sentence(text: MeasuredGain) -> str:
    """Describes what silos share by text alone, as measured on parts of this silo."""
    figures = f"{TITLE} {text.alone:.3f} alone, {text.together:.3f} together"
    what = f"silos of {count_noun(text.users, 'user')} by the text of {text.times} of them, whatever they sell"
    return f"{what}: {figures}, measured on parts of this silo"


def _sentence(curve: Curve, outlook: Forecast) -> str:
    gain = outlook.gain
    change = f"change {gain.low:+.3f} to {gain.high:+.3f}"
    figures = f"{TITLE} {curve.today.value:.3f} alone, {outlook.quality.value:.3f} together ({change})"
    unsure = "; it may bring nothing" if gain.low <= 0 else ""
    return f"a federation of about {outlook.times} silos like yours that sell the same items: {figures}{unsure}"
