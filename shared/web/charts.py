"""Numbers by x -> a table, and the same numbers as JSON from which `static/charts.js` makes a chart."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

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
