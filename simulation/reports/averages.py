"""Means of several clients' figures: over clients, and over test users."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Figures = Mapping[str, float | None]
"""By the key of a measure; None: not measured."""

CLIENT_MEAN, USER_MEAN = MEANS = ("client_mean", "user_mean")  # as a report calls them
FEW_USERS = 50  # test users below which a client's figure is mostly chance
FEW_SIGN = "‡"
FEW_WORDS = f"fewer than {FEW_USERS} test users"


def mark_few_users(client: Mapping[str, Any]) -> str:
    """Returns a client's name, with a sign for few test users."""
    name: str = client["client"]
    return f"{name} {FEW_SIGN}" if client.get("few_test_users") else name


def client_mean(keys: Sequence[str], figures: Sequence[Figures], users: Sequence[int]) -> dict[str, float | None]:
    """Computes the mean over clients with a test user; None without any.

    users: test users of each client.
    """
    return _weighted_mean(keys, figures, [min(count, 1) for count in users])


def user_mean(keys: Sequence[str], figures: Sequence[Figures], users: Sequence[int]) -> dict[str, float | None]:
    """Computes the mean over all test users; None without any."""
    return _weighted_mean(keys, figures, users)


def _weighted_mean(keys: Sequence[str], figures: Sequence[Figures], weights: Sequence[int]) -> dict[str, float | None]:
    total = sum(weights)
    if not total:
        return dict.fromkeys(keys)
    pairs = list(zip(figures, weights, strict=True))
    return {key: math.fsum((row.get(key) or 0.0) * weight for row, weight in pairs) / total for key in keys}
