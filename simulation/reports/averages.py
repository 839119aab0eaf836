"""Means and quantiles of several clients' figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shared.words import count_noun

Figures = Mapping[str, float | None]
"""By the key of a measure; None: not measured."""

CLIENT_MEAN, USER_MEAN = MEANS = ("client_mean", "user_mean")  # as a report calls them
FEW_USERS = 50  # test users below which a client's figure is mostly chance
FEW_SIGN = "‡"
FEW_WORDS = f"fewer than {FEW_USERS} test users"


MOST_ROWS = 24  # clients of a table; of more it has the quantiles
MOST_NOTES = 8  # that are printed
QUANTILES = {"least": 0.0, "tenth part": 0.1, "quarter": 0.25, "median": 0.5, "three quarters": 0.75, "most": 1.0}
NAMED_SILOS = 5  # that a note names


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


def quantile_figures(keys: Sequence[str], figures: Iterable[Figures | None]) -> dict[str, dict[str, float | None]]:
    """Computes quantiles of each measure over the clients that have it, by name."""
    rows = [row for row in figures if row is not None]
    known = {key: [value for row in rows if (value := row.get(key)) is not None] for key in keys}
    return {
        name: {key: quantile(values, share) if values else None for key, values in known.items()}
        for name, share in QUANTILES.items()
    }


def quantile(values: Sequence[float], share: float) -> float:
    """Computes a quantile between the two nearest values, in proportion to its distance from both."""
    ordered, place = sorted(values), share * (len(values) - 1)
    low = int(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def shorten_notes(notes: Sequence[str]) -> list[str]:
    """Returns the first notes, and how many more the report has."""
    more = len(notes) - MOST_NOTES
    return [*notes[:MOST_NOTES], *([f"{count_noun(more, 'more note')} in report.json"] if more > 0 else [])]


def describe_harmed(silos: Sequence[Mapping[str, Any]]) -> str | None:
    """Describes how many silos lose by the run, and which lose most.

    None if their own baselines are unknown.
    """
    known = [silo for silo in silos if silo.get("ratio") is not None]
    if not known:
        return None
    harmed = sorted((silo for silo in known if silo["ratio"] < 1), key=lambda silo: (silo["ratio"], silo["client"]))
    beyond = sum(1 for silo in known if (gain := silo.get("gain")) is not None and gain["high"] < 0)
    words = f"Worse than alone: {len(harmed):,} of {count_noun(len(known), 'silo')}, {beyond:,} beyond chance (95 %)"
    if not harmed:
        return words
    named = [
        f"{silo['client']} x {silo['ratio']:.3f} ({count_noun(silo['users'], 'test user')})"
        for silo in harmed[:NAMED_SILOS]
    ]
    return f"{words}; most: {', '.join(named)}; all are in report.json, silos"
