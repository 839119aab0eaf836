"""Rows of results -> curves over rounds; and the control of the second moments, from the functions themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot

from shared.strategies.server.second_moments import adam, clip, ramp, yogi

METHODS = ("fedavg", "fedprox", "fedadam", "fedyogi", "fedga")


def draw_curves(rows: list[dict[str, Any]], folder: Path, data: str) -> None:
    """HR@20, MRR@20 and the clients' loss over rounds, means over seeds, of the methods that have names."""
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for method in METHODS:
        curves = [row["curve"] for row in rows if row["method"] == method]
        if not curves:
            continue
        numbers = [point["round"] for point in curves[0]]
        for axis, name in zip(axes, ("hr20", "mrr20", "loss"), strict=True):
            values = np.mean([[point[name] for point in curve] for curve in curves], axis=0)
            axis.plot(numbers, values, label=method)
    for axis, title in zip(axes, ("HR@20, validation", "MRR@20, validation", "loss at the clients"), strict=True):
        axis.set(title=title, xlabel="round")
    axes[2].set_yscale("log")
    axes[0].legend()
    _save(figure, folder / f"fedga_{data}.svg")


def draw_control(folder: Path) -> None:
    """By how much v moves in a round, over q = D'^2: (v' - v) / ((1 - b2) q) against v / q."""
    figure, axis = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    ratios, beta2 = np.linspace(0.0, 4.0, 801), 0.9
    for move in (adam, yogi, clip, ramp):
        moved = (move(ratios, np.ones_like(ratios), beta2) - ratios) / (1 - beta2)
        axis.plot(ratios, moved, label=move.__name__)
    axis.set(xlabel="v / q", ylabel="(v' - v) / ((1 - b2) q)", title="How the second moment is controlled")
    axis.legend()
    _save(figure, folder / "fedga_control.svg")


def _save(figure: Any, path: Path) -> None:
    with pyplot.rc_context({"svg.hashsalt": "lpsfed"}):
        figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
