"""Table of epsilons: spent budget and noise of each row, and checks of both."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.common import render_table
from client_service.privacy.accounting import planned_epsilon
from client_service.privacy.settings import TENSORS, PrivacySettings
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy

Line = dict[str, Any]
PREFIX = "privacy."


def settings_of(line: Line) -> PrivacySettings | None:
    """Returns the differential privacy of a measured row; None without any."""
    chosen = {name.removeprefix(PREFIX): v for name, v in line["settings"].items() if name.startswith(PREFIX)}
    return PrivacySettings.model_validate(chosen) if chosen else None


def render(lines: list[Line]) -> str:
    """Renders each row with noise: its spent epsilon, and the noise beside the norm."""
    rows = []
    for line in {line["label"]: line for line in lines if settings_of(line)}.values():
        settings = settings_of(line)
        assert settings is not None and settings.clip_norm is not None
        _, multiplier = settings.noise(TENSORS)
        scale = multiplier * 2.0 * settings.clip_norm
        spent = max(line["spent"].values())
        delta = "0" if settings.delta is None else f"{settings.delta:g}"
        rows.append([line["label"], f"{spent:.4g}", delta, f"{settings.clip_norm:g}", f"{scale:.3g}"])
    return render_table(["row", "epsilon spent", "delta", "C", "scale of the noise on a number"], rows) if rows else ""


def check(lines: list[Line]) -> list[str]:
    """Checks that every client spent the planned epsilon, within its budget."""
    complaints = []
    for line in lines:
        settings = settings_of(line)
        if settings is None:
            continue
        wanted = planned_epsilon(settings, build_strategy(line["strategy"], MethodSettings()).scalars, line["rounds"])
        for name, spent in line["spent"].items():
            if not math.isclose(spent, wanted, rel_tol=1e-9) or spent > (settings.budget or 0.0):
                complaints.append(f"{line['label']}, {name}: expected epsilon {wanted:.6g}, got {spent:.6g}")
    return complaints
