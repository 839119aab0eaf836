"""A measured line of this table -> what its sub-tables say of it: where it stands, ratios, means over its silos."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Figures = dict[str, Any]
Line = dict[str, Any]


def place_of(line: Line) -> tuple[str, str, int]:
    """Data set, cut and number of silos."""
    return line["data"], line["cut"], len(line["clients"])


def is_federation(line: Line) -> bool:
    """Whether it is of another method's run, which the harness measures, and not of a common basis."""
    return "extra" not in line


def epsilon_of(line: Line) -> float | None:
    """Of the sums of the common basis; None where they have no noise."""
    found: float | None = line["settings"].get("basis.epsilon")
    return found


def ratio(line: Line) -> float:
    """Together to alone."""
    found: float = line["extra"]["together"] / line["extra"]["alone"]
    return found


def format_ratio(own: float | None, to: float | None) -> str:
    """A dash where one is not known, or the second is nothing."""
    return "-" if own is None or not to else f"{own / to:.3f}"


def verdict_on(found: float | None, target: float | None) -> str:
    """The target, and whether it is met; a dash where none was asked for."""
    if target is None or found is None:
        return "-"
    return f"{target:.2f}: {'met' if found >= target else 'NOT met'}"


def mean_bytes(line: Line, key: str) -> float:
    """Of what a silo sent, over the silos."""
    return math.fsum(client[key] for client in line["clients"]) / len(line["clients"])


def mean_of_users(clients: Sequence[Figures], value: Callable[[Figures], float]) -> float | None:
    """Over all test users of these silos; None where there is none."""
    tested = [client for client in clients if client["test_users"]]
    users: int = sum(client["test_users"] for client in tested)
    return math.fsum(client["test_users"] * value(client) for client in tested) / users if users else None
