"""Values -> where they lie in a chart: ranges, round ticks, fewer points, labels beside each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
Point = tuple[float, float]

LINE_HEIGHT = 16.0  # of a label, in the chart's units
MOST_POINTS = 160  # of a line; a longer one is thinned


@dataclass(frozen=True)
class Scale:
    """Values from low to high -> places from start to end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)


def spread(low: float, high: float, bounds: tuple[float | None, float | None]) -> tuple[float, float]:
    """Some room around the values, none beyond a given bound; never an empty range."""
    room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    least, most = bounds
    start, end = (low - room if least is None else least), (high + room if most is None else most)
    return start, (end if end > start else start + 1.0)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from low to high, about so many: steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def thinned(values: Sequence[T]) -> list[T]:
    """At most MOST_POINTS of them, evenly chosen, the first and the last among them."""
    if len(values) <= MOST_POINTS:
        return list(values)
    step = (len(values) - 1) / (MOST_POINTS - 1)
    return [values[round(number * step)] for number in range(MOST_POINTS)]


def apart(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Places in the order of those wanted and near them, a line of text apart, from low to high where they fit."""
    placed: list[float] = []
    for place in wanted:
        placed.append(max(place, placed[-1] + LINE_HEIGHT if placed else low))
    limit = high
    for number in reversed(range(len(placed))):
        placed[number] = min(placed[number], limit)
        limit = placed[number] - LINE_HEIGHT
    return placed
