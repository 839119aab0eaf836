"""Shard -> what a federation of silos like this one would bring it, in figures and in plain words. Nothing is sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from client_service.learning.quality import TITLE
from client_service.shard import Shard
from client_service.worth.forecast import Curve, Outlook, forecast
from client_service.worth.trials import CutTrial, Observe, draw_gains, trainings
from shared.errors import DataError

FEWEST_JUDGED = 50  # users with validation items; of fewer nothing is said
DRAWS = 4


@dataclass(frozen=True)
class Measured:
    """What was measured inside the silo: parts of `users` users alone, and `times` of them together, `judged` users."""

    users: int
    times: int
    judged: int
    alone: float
    together: float


@dataclass(frozen=True)
class Worth:
    """few: too few validation users to say anything; no curve where the silo could not be cut at all."""

    users: int
    items: int
    validation_users: int
    few: bool
    draws: int
    measured: tuple[Measured, ...]
    curve: Curve | None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The forecast in plain words."""
        if self.few or self.curve is None:
            return (
                f"Too few to say: expected at least {FEWEST_JUDGED} users with validation items, "
                f"got {self.validation_users}.",
            )
        return tuple(_sentence(self.curve, outlook) for outlook in self.curve.outlooks)


def estimate_worth(shard: Shard, cutoff: int, draws: int = DRAWS, observe: Observe = lambda _: None) -> Worth:
    """The learning curve of the silo's own fused start, from parts of its users. DataError without validation items."""
    users, items = shard.train.shape
    judged = int((np.diff(shard.valid.indptr) > 0).sum())
    if judged == 0:
        raise DataError("worth: expected validation items to judge by, the shard has none")
    if trainings(users) == 1 or judged < 2:
        return Worth(users, items, judged, True, 0, (), None)
    made = [draw_gains(shard, number, cutoff, observe) for number in range(draws)]
    few = judged < FEWEST_JUDGED
    return Worth(users, items, judged, few, draws, _measured(made), forecast(made, users))


def _measured(draws: list[CutTrial]) -> tuple[Measured, ...]:
    """Means over the draws."""
    found = []
    for one in zip(*(draw.gains for draw in draws), strict=True):
        alone, together = (np.concatenate([getattr(gain, side) for gain in one]) for side in ("alone", "together"))
        judged = ~np.isnan(alone)
        means = (float(side[judged].mean()) if judged.any() else 0.0 for side in (alone, together))
        found.append(Measured(one[0].users, one[0].times, int(judged.sum()), *means))
    return tuple(found)


def _sentence(curve: Curve, outlook: Outlook) -> str:
    gain = outlook.gain
    told = f"{TITLE} {curve.today.value:.3f} -> {outlook.quality.value:.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
    unsure = "; it may bring nothing" if gain.low <= 0 else ""
    return f"a federation of about {outlook.times} silos like yours that sell the same items: {told}{unsure}"
