"""Effect of reserved places for new items on the quality of lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.cold.methods import ColdTask, Rows, UserGains
from client_service.models.closed_form.ease import ease
from client_service.models.cold_items import fit_cold_items, usual_setting
from client_service.serving.new_items import reserved_places
from shared.method.graph import Float64

LENGTH, SHOWN, COUNTS = 20, 10, (0, 1, 2)
HELD_OUT = 0.2
RIDGE = 300.0  # of EASE
BLOCK = 1024  # users whose lists are ranked at a time


@dataclass(frozen=True)
class PlacesMeasure:
    """The figures of lists with a number of reserved places, of all draws.

    warm: NDCG@20 of held-out warm items, of each user who has one. cold: share of a user's hidden items among the first
    10, of each user who has one.
    """

    warm: UserGains = field(default_factory=UserGains)
    cold: UserGains = field(default_factory=UserGains)

    def to_json(self, base: PlacesMeasure) -> dict[str, float]:
        """Builds the JSON figures, compared with lists without reserved places.

        The intervals are over users: of the difference of the warm items, and of the recall of the cold ones.
        """
        figures = {
            "warm_ndcg@20": self.warm.value,
            "warm_ratio": self.warm.value / base.warm.value,
            "warm_interval": self.warm.interval_half_width(base.warm),
            "cold_recall@10": self.cold.value,
            "cold_interval": self.cold.interval_half_width(),
            "users_with_a_hit": np.mean([(gains > 0).mean() for _, gains in self.cold.draws]),
        }
        return {name: round(float(value), 4) for name, value in figures.items()}


def hold_out(train: sparse.csr_array, generator: np.random.Generator) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Splits the records of a matrix into a kept part and a held-out fifth."""
    coo = train.tocoo()
    out = generator.random(coo.nnz) < HELD_OUT
    left, held = (
        sparse.csr_array((coo.data[part], (coo.row[part], coo.col[part])), shape=train.shape) for part in (~out, out)
    )
    return left, held


def measure_places(
    draws: Iterable[tuple[ColdTask, NDArray[np.bool_]]], counts: tuple[int, ...] = COUNTS
) -> dict[str, dict[str, float]]:
    """Measures lists with each number of reserved places.

    draws: a task each, and the hidden items of its users, (B, C). Returns the figures by the number of places.
    """
    found = {count: PlacesMeasure() for count in counts}
    for task, wanted in draws:
        for count, (warm, cold) in _measure_draw(task, wanted, counts).items():
            found[count].warm.draws.append(warm)
            found[count].cold.draws.append(cold)
    return {str(count): one.to_json(found[counts[0]]) for count, one in found.items()}


UserValues = tuple[Rows, Float64]
"""Rows of users, and a value of each."""


def _measure_draw(
    task: ColdTask, wanted: NDArray[np.bool_], counts: tuple[int, ...]
) -> dict[int, tuple[UserValues, UserValues]]:
    """Measures one draw by the number of places for cold items.

    NDCG@20 of warm items, and recall of cold ones.
    """
    left, held = hold_out(task.train, np.random.default_rng([3000, task.seed]))
    weights = ease(left, RIDGE)
    scorer = fit_cold_items(task.train, task.features, usual_setting(left.shape))
    found: dict[int, tuple[list[Float64], list[Float64]]] = {count: ([], []) for count in counts}
    for first in range(0, len(task.users), BLOCK):
        part = slice(first, first + BLOCK)
        users = task.users[part]
        baskets = left[users].astype(np.float32)
        scores = np.asarray(weights.decode(weights.encode(baskets)))
        scores[baskets.toarray() > 0] = -np.inf
        scores[:, task.cold] = -np.inf
        warm = _best(scores, LENGTH)
        best = task.cold[_best(scorer.score(task.train[users], task.features[task.cold]), max(counts))]
        hidden = np.zeros(scores.shape, dtype=bool)
        hidden[:, task.cold] = wanted[part]
        for count, (gains, recalls) in found.items():
            lists = insert_items(warm, best, reserved_places(count, LENGTH))
            gains.append(_ndcg(lists, held[users].toarray() > 0))
            recalls.append(_recall(lists[:, :SHOWN], hidden))
    judged = task.users[np.diff(held[task.users].indptr) > 0]
    return {
        count: ((judged, np.concatenate(one)), (task.users, np.concatenate(two))) for count, (one, two) in found.items()
    }


def _best(scores: NDArray[np.float32], count: int) -> Rows:
    found: Rows = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return found


def insert_items(lists: Rows, items: Rows, places: tuple[int, ...]) -> Rows:
    """Inserts items at the given places of each list.

    lists: (B, L), and as long afterwards: the other items move down, as in a silo's answers.
    """
    found = lists
    for at, place in enumerate(places):
        found = np.insert(found, place, items[:, at], axis=1)
    return found[:, : lists.shape[1]]


def _ndcg(lists: Rows, wanted: NDArray[np.bool_]) -> Float64:
    hits = np.take_along_axis(wanted, lists, 1)
    discounts = 1.0 / np.log2(np.arange(2, lists.shape[1] + 2))
    counts = np.minimum(wanted.sum(axis=1), lists.shape[1])
    found: Float64 = (hits @ discounts)[counts > 0] / np.cumsum(discounts)[counts[counts > 0] - 1]
    return found


def _recall(lists: Rows, hidden: NDArray[np.bool_]) -> Float64:
    counts = hidden.sum(axis=1)
    found: Float64 = np.take_along_axis(hidden, lists, 1).sum(axis=1)[counts > 0] / counts[counts > 0]
    return found
