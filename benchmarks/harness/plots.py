"""Plot of a table.

Bars with the best floor as a line, or curves of a sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from benchmarks.common import STEADY
from benchmarks.harness.plan import Plan
from benchmarks.harness.summary import Column, Sample
from benchmarks.harness.tables import sweep_points
from client_service.evaluation.metrics import PRIMARY, TITLE

WIDTH, HEIGHT = 4.2, 3.2  # inches, of one panel
WIDE = 100.0  # the largest value over the smallest, from which on a sweep is drawn by its logarithms


def draw_table(plan: Plan, columns: Sequence[Column], path: Path) -> bool:
    """Plots the primary measure (client mean); False without a plot.

    There is none where nothing is measured, or run.py shows it all.
    """
    measured = [column for column in columns if column.rows and plan.view != "special"]
    panels: list[tuple[Column, str | None]] = [(column, None) for column in measured]
    if plan.view == "sweep":
        panels = [(column, name) for column in measured for name in sweep_points(plan, column)]
    if not panels:
        return False
    with pyplot.rc_context(STEADY):
        size = (WIDTH * len(panels), HEIGHT)
        figure, axes = pyplot.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
        for axis, (column, name) in zip(axes[0], panels, strict=True):
            _draw_bars(axis, column) if name is None else _draw_curve(axis, plan, column, name)
            _draw_floor(axis, column, vertical=name is None)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
    return True


def _draw_bars(axis: Any, column: Column) -> None:
    labels = [label for label in reversed(column.rows) if label not in column.floors]
    spreads = [column.row_spread(label, PRIMARY) for label in labels]
    axis.barh(labels, [spread.mean for spread in spreads], xerr=[spread.deviation for spread in spreads], height=0.7)
    axis.plot(_user_means(column, labels), labels, "D", markersize=4, color="black", label="user mean")
    axis.set(title=column.name, xlabel=f"{TITLE}, client mean")


def _draw_curve(axis: Any, plan: Plan, column: Column, name: str) -> None:
    values, labels = zip(*sweep_points(plan, column)[name], strict=True)
    spreads = [column.row_spread(label, PRIMARY) for label in labels]
    axis.errorbar(
        values,
        [spread.mean for spread in spreads],
        yerr=[spread.deviation for spread in spreads],
        marker="o",
        capsize=2,
    )
    axis.plot(values, _user_means(column, labels), "D:", markersize=4, color="black", label="user mean")
    axis.set(title=column.name, xlabel=name, ylabel=f"{TITLE}, client mean")
    if min(values) > 0.0 and max(values) > WIDE * min(values):
        axis.set_xscale("log")


def _user_means(column: Column, labels: Sequence[str]) -> list[float]:
    return [column.row_spread(label, PRIMARY, Sample.user_mean).mean for label in labels]


def _draw_floor(axis: Any, column: Column, *, vertical: bool) -> None:
    best = column.best_floor(PRIMARY)
    if best is not None:
        line = axis.axvline if vertical else axis.axhline
        line(best, linestyle="--", linewidth=1, color="black", label="best floor, client mean")
    axis.legend(loc="lower right")
