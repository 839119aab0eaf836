"""Rows of several seeds -> means with intervals, and differences that are seen or not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.fedga.rows import Row

NOT_MEASURED = "not measured"
BySeed = dict[int, Row]
Cells = dict[tuple[Any, ...], BySeed]


def group_cells(rows: Iterable[Row], *names: str) -> Cells:
    """Rows of one cell by their seeds; of a setting's changes in words."""
    cells: defaultdict[tuple[Any, ...], BySeed] = defaultdict(dict)
    for row in rows:
        cells[tuple(describe_value(row.get(name)) for name in names)][row.get("seed", 0)] = row
    return dict(cells)


def describe_value(value: Any) -> Any:
    """{"server_step.rate": .1} -> server_step.rate 0.1; anything else as it is."""
    if not isinstance(value, dict):
        return value
    return ", ".join(f"{name} {_round_number(number)}" for name, number in value.items())


def _round_number(value: Any) -> Any:
    return f"{value:.3g}" if isinstance(value, float) else value


def half_interval(values: Sequence[float]) -> float:
    """Half of Student's 95 % interval of the mean; nan of one value."""
    if len(values) < 2:
        return float("nan")
    factor = float(stats.t.ppf(0.975, len(values) - 1))
    return factor * float(np.std(values, ddof=1)) / float(np.sqrt(len(values)))


def describe_mean(values: Sequence[float]) -> str:
    """The mean, and half of its interval where there are several seeds."""
    mean = f"{float(np.mean(values)):.4f}"
    return mean if len(values) == 1 else f"{mean} ± {half_interval(values):.4f}"


def compare_methods(cells: Cells, ours: str, theirs: str, name: str) -> tuple[str, str]:
    """The mean difference of two methods' test figures in percent, or how many times the other's ours is where that is
    more than ten, and on which side of 0 the difference's interval over common seeds lies."""
    one, other = cells.get((ours,), {}), cells.get((theirs,), {})
    common = sorted(set(one) & set(other))
    if len(common) < 2:
        return "", NOT_MEASURED
    gains = [one[seed]["test"][name] - other[seed]["test"][name] for seed in common]
    mean, half = float(np.mean(gains)), half_interval(gains)
    base = float(np.mean([other[seed]["test"][name] for seed in common]))
    side = "above" if mean - half > 0 else "below" if mean + half < 0 else "no difference seen"
    return f"{mean / base + 1.0:.0f} times" if mean > 9.0 * base else f"{100 * mean / base:+.1f} %", side


def rounds_to(row: Row, share: float) -> int | None:
    """The first judged round with this share of the run's best validation MRR@20."""
    goal = share * max(point["mrr20"] for point in row["curve"])
    return next((point["round"] for point in row["curve"] if point["mrr20"] >= goal), None)
