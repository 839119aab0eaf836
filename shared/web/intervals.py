"""Figures with intervals, by group -> a chart that is drawn without a script, and the same as a table."""

from __future__ import annotations

from dataclasses import dataclass

WIDTH, LABELS, LINE, GAP = 640.0, 210.0, 15.0, 12.0  # of the drawing, its labels, a figure's line, between groups
MARKS = ("○", "□", "●", "■")


@dataclass(frozen=True)
class IntervalMark:
    """One figure with its interval. `order`: which of the chart's names it is of."""

    order: int
    value: float
    low: float
    high: float
    y: float
    x: float
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
    """A chart in words and numbers. `key`: unique on the page; names: whose figures; more: of the last column."""

    key: str
    title: str
    description: str
    names: tuple[str, ...]
    groups: tuple[IntervalGroup, ...]
    more: str = ""
    notices: tuple[str, ...] = ()

    @property
    def legend(self) -> str:
        return ", ".join(f"{mark} {name}" for mark, name in zip(MARKS, self.names, strict=False))

    @property
    def width(self) -> float:
        return WIDTH

    @property
    def height(self) -> float:
        return len(self.groups) * self._step + GAP

    @property
    def most(self) -> float:
        """Where the axis ends."""
        return max((high for group in self.groups for _, _, high in group.figures), default=0.0) or 1.0

    @property
    def plot(self) -> tuple[tuple[IntervalGroup, float, tuple[IntervalMark, ...]], ...]:
        """Each group, the height of its label, and its marks."""
        tops = [GAP + number * self._step for number in range(len(self.groups))]
        return tuple(
            (group, top + self._step / 2, tuple(self._mark(order, top, one) for order, one in enumerate(group.figures)))
            for group, top in zip(self.groups, tops, strict=True)
        )

    @property
    def _step(self) -> float:
        return LINE * len(self.names) + GAP

    def _mark(self, order: int, top: float, figure: tuple[float, float, float]) -> IntervalMark:
        value, low, high = figure
        x, left, right = (LABELS + (WIDTH - LABELS - GAP) * one / self.most for one in figure)
        return IntervalMark(order, value, low, high, top + LINE * (order + 0.5), x, left, right)
