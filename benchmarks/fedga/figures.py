"""Plots of curves over rounds, step sizes, and the control of second moments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

from benchmarks.fedga.rows import Row
from shared.strategies.server_optimisers import adam, clip, ramp, yogi

METHODS = ("fedavg", "fedprox", "fedadam", "fedyogi", "fedga")
STEPPED = ("fedadam", "fedyogi", "fedga")


def draw_curves(rows: Sequence[Row], path: Path) -> None:
    """Plots HR@20, MRR@20 and the clients' loss over rounds, means over seeds."""
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for method in METHODS:
        for axis, name in zip(axes, ("hr20", "mrr20", "loss"), strict=True):
            numbers, values = _mean_curve(rows, method, name)
            axis.plot(numbers, values, label=method)
    for axis, title in zip(axes, ("HR@20, validation", "MRR@20, validation", "loss at the clients"), strict=True):
        axis.set(title=title, xlabel="round")
    axes[2].set_yscale("log")
    axes[0].legend()
    _save(figure, path)


def draw_steps(rows: Sequence[Row], path: Path) -> None:
    """Plots the median and percentiles of the step size by rounds.

    The step size is eta / (sqrt(v) + tau); percentiles 5 to 95.
    """
    stepped = [method for method in STEPPED if _mean_curve(rows, method, "step50")[0]]
    figure, axis = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for method in stepped:
        numbers, middle = _mean_curve(rows, method, "step50")
        axis.plot(numbers, middle, label=method)
        low, high = (_mean_curve(rows, method, name)[1] for name in ("step5", "step95"))
        axis.fill_between(numbers, low, high, alpha=0.2)
    axis.set(title="eta / (sqrt(v) + tau): median, 5th to 95th percentile", xlabel="round")
    if stepped:
        axis.set_yscale("log")
        axis.legend()
    _save(figure, path)


def _mean_curve(rows: Sequence[Row], method: str, name: str) -> tuple[list[int], list[float]]:
    """Returns the evaluated rounds and the means over seeds; empty if not measured."""
    curves = [row["curve"] for row in rows if row["method"] == method and name in row["curve"][0]]
    if not curves:
        return [], []
    values = np.mean([[point[name] for point in curve] for curve in curves], axis=0)
    return [point["round"] for point in curves[0]], values.tolist()


def draw_control(path: Path) -> None:
    """Plots the change of second moments in a round against their size.

    (v' - v) / ((1 - b2) q) against v / q, with q = D'^2.
    """
    figure, axis = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    ratios, beta2 = np.linspace(0.0, 4.0, 801), 0.9
    for move in (adam, yogi, clip, ramp):
        moved = (move(ratios, np.ones_like(ratios), beta2) - ratios) / (1 - beta2)
        axis.plot(ratios, moved, label=move.__name__)
    axis.axhline(0.0, color="grey", linewidth=0.5)
    axis.set(xlabel="v / q", ylabel="change of v in a round, in (1 - b2) q", title="Second moments")
    axis.legend()
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    """Saves a figure with the same bytes for the same rows."""
    with pyplot.rc_context({"svg.hashsalt": "lpsfed"}):
        figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
