"""Ranked lists against held-out items: the metrics by which a model is judged, and their values.

A new metric is one function here and its line in METRICS, at the end: stored lists of values have this order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

K = 20  # length of the lists that are judged
PRIMARY = "ndcg"  # the metric by which validation chooses

Hits = NDArray[np.bool_]
"""Which ranked items are relevant, (B, k), best first."""
Counts = NDArray[np.integer[Any]]
"""How many items are relevant, (B,), at least 1 each."""
PerUser = NDArray[np.float64]


def recall(hits: Hits, relevant: Counts) -> PerUser:
    """Hits over the number of relevant items, (B,)."""
    shares: PerUser = hits.sum(1) / relevant
    return shares


def ndcg(hits: Hits, relevant: Counts) -> PerUser:
    """Gain 1 / log2(rank + 1) of the hits over that of the ideal list, (B,): it puts min(|relevant|, k) items first."""
    gains = 1.0 / np.log2(np.arange(2, hits.shape[1] + 2))
    ideal = np.cumsum(gains)[np.minimum(relevant, hits.shape[1]) - 1]
    shares: PerUser = (hits @ gains) / ideal
    return shares


@dataclass(frozen=True)
class Metric:
    """A function of (hits, relevant), and its name on pages and in tables."""

    title: str
    per_user: Callable[[Hits, Counts], PerUser]


METRICS: Mapping[str, Metric] = {"recall": Metric("Recall", recall), "ndcg": Metric("NDCG", ndcg)}


@dataclass(frozen=True)
class MeasureLabel:
    """What a measure is called. key: in test figures and reports; title: on pages and in tables. brief: does a narrow
    table show it?"""

    key: str
    title: str
    brief: bool = True


LABELS = {name: MeasureLabel(f"{name}@{K}", f"{metric.title}@{K}") for name, metric in METRICS.items()}
TITLE = LABELS[PRIMARY].title


@dataclass(frozen=True)
class Measures:
    """Values by the measure's name, each a mean over `users` users; `primary` names the one that decides."""

    values: Mapping[str, float]
    users: int
    primary: str = PRIMARY

    @property
    def primary_value(self) -> float:
        return self.values[self.primary]


def measure_hits(hits: Hits, relevant: Counts) -> Measures:
    """Every metric's mean over the users; all zero where there are none."""
    if len(relevant) == 0:
        return Measures(dict.fromkeys(METRICS, 0.0), 0)
    values = {name: float(metric.per_user(hits, relevant).mean()) for name, metric in METRICS.items()}
    return Measures(values, len(relevant))
