"""Registry of metrics of ranked lists, for lists of users and for sessions.

A new metric is one function here and its line in METRICS (lists) or SESSION_METRICS, at the end: stored values have
this order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, computed_field, model_validator

K = 20  # length of the lists that are judged
PRIMARY = "ndcg"  # the metric by which validation chooses

Hits = NDArray[np.bool_]
"""Which ranked items are relevant, (B, k), best first."""
Counts = NDArray[np.integer[Any]]
"""How many items are relevant, (B,), at least 1 each."""
PerUser = NDArray[np.float64]


def recall(hits: Hits, relevant: Counts) -> PerUser:
    """Computes recall: hits over the number of relevant items, (B,)."""
    shares: PerUser = hits.sum(1) / relevant
    return shares


def ndcg(hits: Hits, relevant: Counts) -> PerUser:
    """Computes NDCG, (B,): the gain of the hits over that of the ideal list.

    A hit gains 1 / log2(rank + 1). The ideal list has min(|relevant|, k) relevant items first.
    """
    gains = 1.0 / np.log2(np.arange(2, hits.shape[1] + 2))
    ideal = np.cumsum(gains)[np.minimum(relevant, hits.shape[1]) - 1]
    shares: PerUser = (hits @ gains) / ideal
    return shares


def mrr(hits: Hits, relevant: Counts) -> PerUser:
    """Computes the reciprocal rank of the first hit, 0 without one, (B,)."""
    del relevant
    first: PerUser = np.where(hits.any(1), 1.0 / (hits.argmax(1) + 1), 0.0)
    return first


@dataclass(frozen=True)
class Metric:
    """Metric: a function of hits and counts, and its name on pages."""

    title: str
    per_user: Callable[[Hits, Counts], PerUser]


METRICS: Mapping[str, Metric] = {"recall": Metric("Recall", recall), "ndcg": Metric("NDCG", ndcg)}
SESSION_METRICS: Mapping[str, Metric] = {"hr": Metric("HR", recall), "mrr": Metric("MRR", mrr)}  # of one relevant item
SESSION_KS = (10, 20)  # lengths of the lists that are judged; names are `hr10`, `mrr20`
SESSION_PRIMARY = "mrr20"


@dataclass(frozen=True)
class MeasureLabel:
    """Names of a measure.

    key: in test figures and reports. title: on pages and in tables. brief: a narrow table shows it.
    """

    key: str
    title: str
    brief: bool = True


def find_title(key: str, labels: Iterable[MeasureLabel]) -> str:
    """Returns the title of a measure by its key; the key without one."""
    return next((label.title for label in labels if label.key == key), key)


LABELS = {name: MeasureLabel(f"{name}@{K}", f"{metric.title}@{K}") for name, metric in METRICS.items()}
TITLE = LABELS[PRIMARY].title
SESSION_LABELS = {
    f"{name}{k}": MeasureLabel(f"{name}@{k}", f"{metric.title}@{k}", brief=k == K)
    for name, metric in SESSION_METRICS.items()
    for k in SESSION_KS
}


@dataclass(frozen=True)
class Measures:
    """Values by the measure's name, each a mean over `users` users.

    `primary`: the measure by which validation chooses.
    """

    values: Mapping[str, float]
    users: int
    primary: str = PRIMARY

    @property
    def primary_value(self) -> float:
        return self.values[self.primary]


def nest_values(data: Any, field: str, names: tuple[str, ...]) -> Any:
    """Moves the values of `names` into the dictionary `field` of a message.

    A message that has the dictionary already keeps it. Earlier versions wrote these values as fields of their own;
    now they are written in both places.
    """
    if not isinstance(data, dict):
        return data
    apart = {name: data[name] for name in names if data.get(name) is not None}
    return {field: apart, **{name: value for name, value in data.items() if name not in names}}


class MeasureValues(BaseModel):
    """Values of a model's measures, by name.

    Two of them are also fields, as in the answers of earlier versions.
    """

    values: dict[str, float] = Field(description="by measure", examples=[{"ndcg": 0.21, "recall": 0.34}])

    @model_validator(mode="before")
    @classmethod
    def _nest_values(cls, data: Any) -> Any:
        return nest_values(data, "values", ("recall", "ndcg"))

    @computed_field(description="the same as in values")  # type: ignore[prop-decorator]
    @property
    def recall(self) -> float | None:
        return self.values.get("recall")

    @computed_field(description="the same as in values")  # type: ignore[prop-decorator]
    @property
    def ndcg(self) -> float | None:
        return self.values.get("ndcg")


def measure_hits(hits: Hits, relevant: Counts) -> Measures:
    """Computes every metric's mean over the users; all 0 without users."""
    if len(relevant) == 0:
        return Measures(dict.fromkeys(METRICS, 0.0), 0)
    values = {name: float(metric.per_user(hits, relevant).mean()) for name, metric in METRICS.items()}
    return Measures(values, len(relevant))


def measure_ranks(ranks: Counts) -> Measures:
    """Computes every session metric's mean over examples.

    ranks: of the only relevant item, from 1; 0 for a miss, (P,).
    """
    values = {}
    for k in SESSION_KS:
        hits = ranks[:, None] == np.arange(1, k + 1)
        for name, metric in SESSION_METRICS.items():
            per_example = metric.per_user(hits, np.ones(len(ranks), dtype=np.int64))
            values[f"{name}{k}"] = float(per_example.mean()) if len(ranks) else 0.0
    return Measures(values, len(ranks), SESSION_PRIMARY)
