"""Charts of pages: curves and bars with intervals, beside the same numbers as a table."""

from __future__ import annotations

import json
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


MOST_ROWS = 160  # of a chart; of more, so many are chosen


@dataclass(frozen=True)
class Line:
    """A named line; a point whose value is None or not finite is left out.

    `dashed`: what others are held against; where another line lies beneath it, that one is seen between the dashes.
    """

    name: str
    points: tuple[tuple[float, float | None], ...]
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart in words and numbers. `key`: unique on the page. `bounds`: where the y axis begins and ends, if fixed.

    `mark`: one x to point out, and the words beside it. `digits`: places after the point; 0: the values are whole.
    """

    key: str
    title: str
    description: str
    x: str
    y: str
    lines: tuple[Line, ...]
    bounds: tuple[float | None, float | None] = (None, None)
    mark: tuple[float, str] | None = None
    digits: int = 4

    @property
    def rows(self) -> list[tuple[float, list[float | None]]]:
        """Each x with the value of every line, at most MOST_ROWS, evenly chosen, the first and the last among them."""
        values = [dict(line.points) for line in self.lines]
        every = sorted({x for line in values for x in line})
        step = max(1.0, (len(every) - 1) / (MOST_ROWS - 1))
        chosen = [every[round(number * step)] for number in range(min(len(every), MOST_ROWS))]
        return [(x, [_finite(line.get(x)) for line in values]) for x in chosen]

    @property
    def json(self) -> str:
        """What `static/charts.js` reads; empty where no line has a value."""
        rows = self.rows
        if all(value is None for _, values in rows for value in values):
            return ""
        columns = [[x for x, _ in rows], *map(list, zip(*(values for _, values in rows), strict=True))]
        names = [line.name for line in self.lines]
        fields = {"x": self.x, "y": self.y, "bounds": self.bounds, "mark": self.mark, "digits": self.digits}
        drawn = {"lines": names, "dashed": [line.dashed for line in self.lines], "columns": columns}
        return json.dumps(fields | drawn, allow_nan=False)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
