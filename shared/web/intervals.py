"""Figures with intervals, by group -> bars from zero that are drawn without a script, and the same as a table."""

from __future__ import annotations

import math
from dataclasses import dataclass

STEPS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)  # times a power of ten: where an axis may end


@dataclass(frozen=True)
class IntervalBar:
    """One figure with its interval; `width`, `left` and `right` in percent of the axis; `colour`: of the lines'."""

    name: str
    colour: int
    value: float
    width: float
    left: float
    right: float


@dataclass(frozen=True)
class IntervalGroup:
    """Figures (value, low, high) of one group, in the order of the chart's names, and what the table adds."""

    label: str
    note: str
    figures: tuple[tuple[float, float, float], ...]
    more: str = ""


@dataclass(frozen=True)
class IntervalChart:
    """A chart in words and numbers. `key`: unique on the page; names: whose figures; more: of the last column.

    colours: of each name, as those of a chart's lines are numbered.
    """

    key: str
    title: str
    description: str
    names: tuple[str, ...]
    groups: tuple[IntervalGroup, ...]
    more: str = ""
    notices: tuple[str, ...] = ()
    colours: tuple[int, ...] = (4, 5, 2)

    @property
    def end(self) -> float:
        """Where the axis ends, which begins at 0: a round number, the same for all groups."""
        most = max((high for group in self.groups for _, _, high in group.figures), default=0.0)
        if most <= 0.0:
            return 1.0
        power = 10.0 ** math.floor(math.log10(most))
        return next(step * power for step in STEPS if step * power >= most * (1 - 1e-9))

    @property
    def ticks(self) -> tuple[str, ...]:
        """What stands below the axis: at its beginning, its middle and its end."""
        return tuple(f"{self.end * part:g}" for part in (0.0, 0.5, 1.0))

    @property
    def bars(self) -> tuple[tuple[IntervalGroup, tuple[IntervalBar, ...]], ...]:
        """Each group with a bar for each of the names."""
        return tuple(
            (group, tuple(self._bar(order, one) for order, one in enumerate(group.figures))) for group in self.groups
        )

    def _bar(self, order: int, figure: tuple[float, float, float]) -> IntervalBar:
        width, left, right = (round(100.0 * min(max(one / self.end, 0.0), 1.0), 2) for one in figure)
        return IntervalBar(self.names[order], self.colours[order], figure[0], width, left, right)
