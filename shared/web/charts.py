"""Charts of pages: curves, and bars with intervals, beside the same numbers as a table."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

STEPS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)  # times a power of ten: where an axis may end


@dataclass(frozen=True)
class IntervalBar:
    """Bar of a chart, with its interval.

    width, left, right: in percent of the axis. colour: number of the style sheet's colour.
    """

    name: str
    colour: int
    value: float
    width: float
    left: float
    right: float


@dataclass(frozen=True)
class IntervalGroup:
    """Group of bars: (value, low, high) for each of the chart's names.

    more: text of the table's last column.
    """

    label: str
    note: str
    figures: tuple[tuple[float, float, float], ...]
    more: str = ""


@dataclass(frozen=True)
class IntervalChart:
    """Bar chart with intervals, and the same numbers as a table.

    key: unique on the page. names: one for each bar of a group. more: heading of the table's last column. colours:
    number of each name's colour.
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
        """Right end of the axis, which begins at 0; a round number."""
        most = max((high for group in self.groups for _, _, high in group.figures), default=0.0)
        if most <= 0.0:
            return 1.0
        power = 10.0 ** math.floor(math.log10(most))
        return next(step * power for step in STEPS if step * power >= most * (1 - 1e-9))

    @property
    def ticks(self) -> tuple[str, ...]:
        """Labels of the axis at its beginning, middle and end."""
        return tuple(f"{self.end * part:g}" for part in (0.0, 0.5, 1.0))

    @property
    def bars(self) -> tuple[tuple[IntervalGroup, tuple[IntervalBar, ...]], ...]:
        """Groups, each with a bar for every name."""
        return tuple(
            (group, tuple(self._bar(order, one) for order, one in enumerate(group.figures))) for group in self.groups
        )

    def _bar(self, order: int, figure: tuple[float, float, float]) -> IntervalBar:
        width, left, right = (round(100.0 * min(max(one / self.end, 0.0), 1.0), 2) for one in figure)
        return IntervalBar(self.names[order], self.colours[order], figure[0], width, left, right)


MOST_ROWS = 160  # rows of a chart's table; of more, this many are selected


@dataclass(frozen=True)
class Line:
    """Named line of a chart; points with None or no finite value are left out.

    dashed: the line is a reference; a line beneath it shows between the dashes.
    """

    name: str
    points: tuple[tuple[float, float | None], ...]
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """Line chart, and the same numbers as a table.

    key: unique on the page. bounds: fixed ends of the y axis, if any. mark: one x to point out, with its label.
    digits: decimals; 0 for whole numbers.
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
        """Rows of the table: x and each line's value, at most MOST_ROWS, evenly spaced."""
        values = [dict(line.points) for line in self.lines]
        every = sorted({x for line in values for x in line})
        step = max(1.0, (len(every) - 1) / (MOST_ROWS - 1))
        chosen = [every[round(number * step)] for number in range(min(len(every), MOST_ROWS))]
        return [(x, [_finite(line.get(x)) for line in values]) for x in chosen]

    @property
    def json(self) -> str:
        """Data for `static/charts.js`; empty if no line has a value."""
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
