"""Methods that rank cold items, which have no interactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.fedutr.methods import score_cold_items_by_fedutr
from client_service.models.closed_form.content import add_constant, content_weights, sum_content
from client_service.models.closed_form.ease import ease
from client_service.models.cold_items import carry_weights, choose_cold_setting, fit_cold_items
from client_service.models.hidden_items import FOLDS, hide_columns, hide_items, mean_gain
from shared.method.graph import Float64, degrees
from shared.method.parameters import Float32

SMOOTHING = 3.0  # of the linear regression
NORMAL = 1.96  # half-widths of 95 % intervals in standard errors
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class ColdTask:
    """A task of ranking cold items for some users.

    train: interactions, (M, N), in which the cold items have no user. features: of all items, (N, d). cold: columns of
    the cold items, (C,). users: rows of the users whose baskets are scored, (B,). seed: of the methods' random draws.
    """

    train: sparse.csr_array
    features: Float32
    cold: Rows
    users: Rows
    seed: int

    @property
    def baskets(self) -> sparse.csr_array:
        """Selects the training rows of the task's users, (B, N)."""
        return self.train[self.users].astype(np.float32)

    @property
    def warm(self) -> Rows:
        """Items that some user has in training."""
        return np.flatnonzero(degrees(self.train)[1] > 0)


@dataclass
class UserGains:
    """The NDCG@10 of one method by draw and user.

    The mean is taken over the users of a draw, then over draws.
    """

    draws: list[tuple[Rows, Float64]] = field(default_factory=list)

    @property
    def value(self) -> float:
        """Mean over draws."""
        return float(np.mean([gains.mean() for _, gains in self.draws]))

    def interval_half_width(self, base: UserGains | None = None) -> float:
        """Computes half the width of the 95 % confidence interval of the mean.

        The interval is over users, each of whom may occur in several draws. base: if given, the interval is that of the
        difference to it.
        """
        parts = []
        for place, (users, gains) in enumerate(self.draws):
            moved = gains if base is None else gains - base.draws[place][1]
            influence = (moved - moved.mean()) / (len(moved) * len(self.draws))
            parts.append(pl.DataFrame({"user": users, "influence": influence}))
        by_user = pl.concat(parts).group_by("user").agg(pl.col("influence").sum())["influence"]
        return NORMAL * float(np.sqrt(np.square(by_user.to_numpy()).sum()))

    def to_json(self) -> dict[str, Any]:
        """Builds the JSON figures: mean, interval and the mean of each draw."""
        each = [float(gains.mean()) for _, gains in self.draws]
        return {
            "ndcg@10": round(self.value, 4),
            "interval": round(self.interval_half_width(), 4),
            "draws": np.round(each, 4).tolist(),
        }

    def compare(self, base: UserGains) -> dict[str, Any]:
        """Compares this method with another one on the same users."""
        low = self.value - base.value - self.interval_half_width(base)
        found = {
            "ratio": self.value / base.value,
            "difference": self.value - base.value,
            "interval": self.interval_half_width(base),
        }
        return {name: round(value, 4) for name, value in found.items()} | {"above": bool(low > 0.0)}


Score = Callable[[ColdTask, Any], Float32]


@dataclass(frozen=True)
class ColdMethod:
    """A method that scores cold items, with the settings to choose from.

    score: (task, setting) -> scores (B, C). settings: candidates, of which hidden items choose one.
    """

    score: Score
    settings: Sequence[Any] = (None,)


def _score_random(task: ColdTask, _: None) -> Float32:
    shape = (len(task.users), len(task.cold))
    return np.random.default_rng([task.seed, 1]).random(shape, dtype=np.float32)


def _score_popularity(task: ColdTask, ridge: float) -> Float32:
    """Predicts the popularity of cold items from their features by ridge regression.

    All users get the same scores.
    """
    table, counts = add_constant(task.features), np.log1p(degrees(task.train)[1])
    warm = table[task.warm]
    weights = np.linalg.solve(warm.T @ warm + ridge * np.eye(warm.shape[1]), warm.T @ counts[task.warm])
    return np.tile((table[task.cold] @ weights).astype(np.float32), (len(task.users), 1))


def _score_plain_text(task: ColdTask, _: None) -> Float32:
    """Sums the cosines of a cold item with the items of the basket."""
    found: Float32 = np.asarray(task.baskets @ task.features) @ task.features[task.cold].T
    return found


def _score_nearest(task: ColdTask, neighbours: int) -> Float32:
    """Sums the cosines of a cold item with its nearest neighbours in the basket.

    neighbours: how many warm items are nearest to a cold item; the others do not count.
    """
    warm, few = task.warm, min(neighbours, len(task.warm))
    likeness = task.features[task.cold] @ task.features[warm].T
    nearest = np.argpartition(-likeness, few - 1, axis=1)[:, :few]
    values = np.take_along_axis(likeness, nearest, 1).ravel()
    places = (np.repeat(np.arange(len(task.cold)), few), nearest.ravel())
    kept = sparse.csr_array((values, places), shape=likeness.shape)
    found: Float32 = sparse.csr_array(task.baskets[:, warm] @ kept.T).toarray()
    return found


def _score_content(task: ColdTask, ridge: float) -> Float32:
    """Scores cold items by content-EASE with the silo's own sums."""
    table, warm = add_constant(task.features), task.warm
    weights = content_weights(sum_content(task.train[:, warm], table[warm]), table[warm], ridge)
    found: Float32 = ((np.asarray(task.baskets @ table) @ weights) @ table[task.cold].T).astype(np.float32)
    return found


def _score_ridge(task: ColdTask, ridge: float) -> Float32:
    """Extends EASE's scores to cold items by linear ridge regression on features."""
    table = add_constant(task.features)
    warm = np.zeros_like(table)
    warm[task.warm] = table[task.warm]
    carried = carry_weights(ease(task.train, ridge, by_users=True), warm.astype(np.float32))
    linear = np.linalg.solve(warm.T @ warm + SMOOTHING * np.eye(table.shape[1]), table[task.cold].T)
    found: Float32 = (np.asarray(task.baskets @ carried) @ linear).astype(np.float32)
    return found


def _score_by_product(task: ColdTask, _: None) -> Float32:
    """Scores cold items by the product's scorer, with a setting chosen on hidden items."""
    setting = choose_cold_setting(task.train, task.features, task.seed)
    return fit_cold_items(task.train, task.features, setting).score(task.baskets, task.features[task.cold])


def _score_fedutr(task: ColdTask, steps: int) -> Float32:
    """Scores cold items by FedUTR, trained in one silo of all users."""
    return score_cold_items_by_fedutr(task.train, task.features, task.users, task.cold, steps, task.seed)


METHODS = {
    "random": ColdMethod(_score_random),
    "popularity": ColdMethod(_score_popularity, (1.0, 10.0, 100.0)),
    "plain_text": ColdMethod(_score_plain_text),
    "knn": ColdMethod(_score_nearest, (10, 20, 50, 100)),
    "content": ColdMethod(_score_content, (0.03, 0.1, 0.3, 1.0)),
    "ridge": ColdMethod(_score_ridge, (100.0, 300.0, 1000.0)),
    "fedutr": ColdMethod(_score_fedutr, (30, 100)),
    "cold": ColdMethod(_score_by_product),
}


def score_cold_items(method: ColdMethod, task: ColdTask) -> Float32:
    """Scores the cold items by the setting that ranks other hidden items best, (B, C)."""
    if len(method.settings) == 1:
        return method.score(task, method.settings[0])
    totals = np.zeros(len(method.settings))
    for fold in range(FOLDS):  # the very items by which the product chooses
        hidden = hide_items(task.train, np.random.default_rng([task.seed, fold]))
        inner, wanted = make_cold_task(task.train, task.features, hidden, task.seed)
        totals += [float(mean_gain(method.score(inner, one), wanted).mean()) for one in method.settings]
    return method.score(task, method.settings[int(np.argmax(totals))])


def make_cold_task(
    interactions: sparse.csr_array, features: Float32, hidden: Rows, seed: int
) -> tuple[ColdTask, NDArray[np.bool_]]:
    """Makes a task by removing items from all users' interactions.

    Also returns which of these items each user of the task has, (B, C).
    """
    train = hide_columns(interactions, hidden)
    wanted = sparse.csr_array(interactions[:, hidden]).toarray() > 0
    users = np.flatnonzero(wanted.any(axis=1) & (np.diff(train.indptr) > 0)).astype(np.int64)
    return ColdTask(train, features, hidden, users, seed), wanted[users]


def measure_user_gains(task: ColdTask, wanted: NDArray[np.bool_]) -> dict[str, Float64]:
    """Measures the NDCG@10 of each user by each method."""
    return {name: mean_gain(score_cold_items(method, task), wanted) for name, method in METHODS.items()}
