"""Scorer of items without interactions, by their features: content-EASE and a carried EASE.

With X (M, N) the training edges, T (N, d) the items' features and w the warm items, those with interactions:

plain          x T T_c^T                             the similarity to each item of the basket, summed
content-EASE   x T W T_c^T                          W of own or of all silos' sums, see closed_form/content.py
carried EASE   x B K_w (K_w^T K_w + r K_a)^-1 K_c^T  B the weights of EASE, own or of the common basis

K holds the similarity of items to anchors, the warm items with most users: 1 + exp(-|t - a|^2 / (2 h)); K_w of the warm
items, K_c of the cold ones, K_a of the anchors. It is kernel ridge regression from features to EASE's scores.

All are x M phi(t)^T: M (N, p) has a row for each item of a basket, and phi(t) (p,) follows from the text of an item
alone. So one sum of rows of M ranks every cold item, and an item whose text came a moment ago. Each part is divided by
the spread of its scores among the silo's known users, so that a weight means the same in every silo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from client_service.compiled.cold_items import AnchorMap
from client_service.models.closed_form.content import (
    ERRORS,
    ContentSetting,
    ContentSums,
    add_constant,
    cold_settings,
    content_weights,
    rank_hidden_items,
    sum_content,
)
from client_service.models.closed_form.ease import ONE_RIDGE_SIDE, OWN_SIDE, USUAL_RIDGE, UserWeights, ease
from client_service.models.closed_form.scorer_part import ItemWeights, TrainingGraph
from client_service.models.hidden_items import FOLDS, MOST_USERS, hide_columns, hide_items, mean_gain
from shared.method.graph import Float64, degrees
from shared.method.parameters import Float32

ANCHORS = 1024
REACHES = (0.125, 0.25, 0.5)  # h, in means of the squared distance between warm items
SMOOTHINGS = (0.3, 1.0, 3.0)  # r
CONTENT_SHARES = (0.0, 0.15, 0.3, 0.5, 0.7, 1.0)  # of content-EASE's scores in the sum
CONTENT_RIDGES = (0.003, 0.03, 0.1, 0.3)  # the first is usual with the sums of other silos, the last of few users
FEW_USERS = 50.0
PLAIN_SHARES = (0.0, 0.15, 0.3)  # of the plain similarity, which needs no user and so helps with few of them
RIDGES = (100.0, 300.0, 1000.0)  # of EASE
NUGGET = 0.01  # added to K_a's diagonal: anchors of the same features leave it singular
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class ColdSetting:
    """Setting of the cold-item scorer, chosen by validation.

    content: share of content-EASE; the rest is carried EASE. plain: share of the plain similarity beside both. reach:
    h, in mean squared distances. smoothing: r. ridge: of EASE, 0 if it does not fit. content_ridge: a of
    content-EASE.
    """

    content: float = 0.5
    plain: float = 0.3
    reach: float = 0.25
    smoothing: float = 1.0
    ridge: float = 300.0
    content_ridge: float = 0.3


@dataclass(frozen=True)
class ColdScorer:
    """Scorer of items without interactions: x M phi(t)^T.

    factors: M (N, p). map: phi. Both are float32; `factors` of items without interactions are 0.
    """

    factors: Float32
    map: AnchorMap
    setting: ColdSetting

    def score(self, baskets: sparse.csr_array, features: Float32) -> Float32:
        """Scores items with these features (C, d) for each basket (B, N), (B, C)."""
        found: Float32 = np.asarray(baskets.astype(np.float32) @ self.factors) @ self.map.apply(features).T
        return found


EaseWeights = ItemWeights | UserWeights


def fit_cold_items(
    interactions: sparse.csr_array,
    features: Float32,
    setting: ColdSetting,
    *,
    weights: EaseWeights | None = None,
    content: Float64 | None = None,
    others: ContentSums | None = None,
) -> ColdScorer:
    """Fits the scorer of a silo's cold items.

    weights: of EASE, where those of a common basis take the place of the silo's own. content: W of content-EASE, where
    it is known; else it follows from the silo's own sums, and others', those of the other silos, where there are any.
    """
    part = _WarmItems.from_interactions(interactions, features, others)
    if weights is None and setting.ridge:
        weights = ease(interactions, setting.ridge, by_users=True)
    return part.combine(setting, weights, content)


def usual_setting(shape: tuple[int, int], *, summed: bool = False) -> ColdSetting:
    """Finds the usual setting for a graph of (M, N), before validation.

    summed: True if there are content sums of other silos. The fewer users there are, the more the plain similarity
    counts, and content-EASE, which has fewer numbers to learn.
    """
    ridges, few = _ridges(shape), FEW_USERS / (FEW_USERS + shape[0])
    content, plain = (0.36, 0.3) if summed else (0.3, 0.45)
    content = content * (1.0 + few) if ridges[0] else 1.0
    content_ridge = CONTENT_RIDGES[0 if summed else 1 if few < 0.5 else -1]
    return ColdSetting(content, plain * few, ridge=ridges[len(ridges) // 2], content_ridge=content_ridge)


def choose_cold_setting(
    interactions: sparse.csr_array, features: Float32, seed: int, others: ContentSums | None = None
) -> ColdSetting:
    """Chooses a setting by hiding some of the warm items.

    One that surely ranks the hidden items better replaces the usual one. others: content sums of the other silos; where
    these have the hidden items too, they are evaluated as if they had not.
    """
    ridges = _ridges(interactions.shape)
    chosen = usual_setting(interactions.shape, summed=others is not None)
    folds = [_Fold(interactions, features, others, np.random.default_rng([seed, one])) for one in range(FOLDS)]
    if not sum(len(fold.users) for fold in folds):
        return chosen

    def gains(setting: ColdSetting) -> Float64:
        return np.concatenate([fold.gains(setting) for fold in folds])

    def prefer(first: ColdSetting, settings: Sequence[ColdSetting]) -> ColdSetting:
        best, known = first, gains(first)
        base = known
        for one in settings:
            found = gains(one)
            if found.mean() > known.mean() and _is_surely_above(found - base):
                best, known = one, found
        return best

    chosen = prefer(chosen, [replace(chosen, content_ridge=one) for one in CONTENT_RIDGES])
    if chosen.ridge:
        pairs = [(reach, smoothing) for reach in REACHES for smoothing in SMOOTHINGS]
        chosen = prefer(chosen, [replace(chosen, reach=reach, smoothing=smoothing) for reach, smoothing in pairs])
        chosen = prefer(chosen, [replace(chosen, ridge=ridge) for ridge in ridges])
        chosen = prefer(chosen, [replace(chosen, content=share) for share in CONTENT_SHARES])
    return prefer(chosen, [replace(chosen, plain=share) for share in PLAIN_SHARES])


def choose_content_setting(graph: TrainingGraph) -> ContentSetting:
    """Chooses the content-EASE setting that ranks a hidden tenth of the items best.

    The hidden items are ranked among themselves. The usual setting stays unless another one is better by ERRORS
    standard errors over users.
    """
    settings = cold_settings(graph)
    gains = rank_hidden_items(graph, settings)
    if gains.shape[1] < 2:
        return settings[0]
    over = gains - gains[0]
    surely = over.mean(axis=1) - ERRORS * over.std(axis=1, ddof=1) / np.sqrt(over.shape[1])
    return settings[int(np.argmax(surely))]


def _is_surely_above(differences: Float64) -> bool:
    """Tells whether the mean of paired differences exceeds ERRORS standard errors."""
    if len(differences) < 2:
        return False
    return bool(differences.mean() > ERRORS * differences.std(ddof=1) / np.sqrt(len(differences)))


@dataclass(frozen=True)
class _WarmItems:
    """Data of the warm items that all settings use.

    rows: the warm items. anchors: rows (m,) of those with most users. distance: mean squared distance of warm items.
    """

    interactions: sparse.csr_array
    features: Float32
    table: Float64
    rows: Rows
    anchors: Rows
    distance: float
    others: ContentSums | None = None

    @classmethod
    def from_interactions(
        cls, interactions: sparse.csr_array, features: Float32, others: ContentSums | None
    ) -> _WarmItems:
        counts = degrees(interactions)[1]
        rows = np.flatnonzero(counts > 0)
        anchors = np.sort(rows[np.argsort(-counts[rows], kind="stable")[:ANCHORS]])
        warm = features[rows]
        mean_distance = float(2.0 * (np.einsum("nd,nd->", warm, warm) / len(rows) - np.square(warm.mean(axis=0)).sum()))
        table, distance = add_constant(features), max(mean_distance, 1e-6)
        return cls(interactions.astype(np.float32), features, table, rows, anchors, distance, others)

    def map(self, reach: float) -> AnchorMap:
        return AnchorMap(self.features[self.anchors], reach * self.distance)

    def content(self, ridge: float) -> Float64:
        """Solves for W from the silo's own sums and those of the others."""
        warm = self.table[self.rows]
        sums = sum_content(self.interactions[:, self.rows], warm)
        return content_weights(sums if self.others is None else sums.add(self.others), warm, ridge)

    def similarity(self, reach: float) -> tuple[Float32, Float64]:
        """Computes the similarity K_w (N, m) to the anchors, and K_w^T K_w (m, m).

        K_w is 0 for items without interactions.
        """
        found = np.zeros((len(self.features), len(self.anchors)), np.float32)
        found[self.rows] = self.map(reach).similarity(self.features[self.rows])
        wide = found[self.rows].astype(np.float64)
        return found, wide.T @ wide

    def combine(self, setting: ColdSetting, weights: EaseWeights | None, content: Float64 | None) -> ColdScorer:
        """Adds both parts, each divided by the spread of its scores."""
        phi = self.map(setting.reach)
        held = np.zeros((len(self.features), 1), np.float32)
        held[self.rows] = 1.0
        solved = self.content(setting.content_ridge) if content is None else content
        left = held * (self.table @ solved).astype(np.float32)
        share = 1.0 if weights is None else setting.content
        right = np.zeros((len(left), len(self.anchors)), np.float32)
        if weights is not None:
            similarity, gram = self.similarity(setting.reach)
            carried = carry_weights(weights, similarity)
            right = held * solve_smooth(gram, phi.similarity(phi.anchors), setting.smoothing, carried.T).T
        sample = self.interactions[
            sample_users(self.interactions)
        ]  # users by whose scores of warm items the spread is measured
        some, width = phi.apply(self.features[self.rows]), left.shape[1]
        own = held * np.concatenate([self.features, np.zeros((len(left), 1), np.float32)], axis=1, dtype=np.float32)
        near = (1.0 - setting.plain) * share * left / score_spread(sample, left, some[:, :width])
        near += setting.plain * own / score_spread(sample, own, some[:, :width])
        far = (1.0 - setting.plain) * (1.0 - share) * right / score_spread(sample, right, some[:, width:])
        return ColdScorer(np.concatenate([near, far], axis=1, dtype=np.float32), phi, setting)


def carry_weights(weights: EaseWeights, values: Float32) -> Float32:
    """Multiplies the weights B of EASE by a matrix V, (N, m).

    It does without B where the weights are kept by users.
    """
    if isinstance(weights, ItemWeights):
        found: Float32 = weights.weights @ values
        return found
    scaled = weights.scale[:, None] * values
    carried = weights.turned @ (weights.inverse @ np.asarray(weights.graph @ scaled))
    found = np.asarray(carried, dtype=np.float32) - (weights.scale - 1.0)[:, None] * values
    return found


def solve_smooth(gram: Float64, anchors: Float32, smoothing: float, values: Float32) -> Float32:
    """Solves kernel ridge regression on anchors.

    Returns (K_w^T K_w + r K_a)^-1 V.
    """
    matrix = gram + smoothing * anchors
    matrix.flat[:: len(matrix) + 1] += smoothing * NUGGET
    found: Float32 = linalg.solve(matrix, values.astype(np.float64), assume_a="pos").astype(np.float32)
    return found


def sample_users(interactions: sparse.csr_array) -> Rows:
    """Chooses the rows of at most 2,000 users, evenly over the silo."""
    users = interactions.shape[0]
    return np.unique(np.linspace(0, users - 1, min(users, MOST_USERS)).astype(np.int64))


def score_spread(baskets: sparse.csr_array, factors: Float32, features: Float32) -> float:
    """Computes the standard deviation of x M phi^T over baskets and items.

    Returns 1 if it is 0.
    """
    vectors = np.asarray(baskets @ factors, dtype=np.float64)
    middle = features - features.mean(axis=0)  # a shift of all items of a user ranks nothing
    moved = vectors @ (middle.T.astype(np.float64) @ middle) if len(middle) else vectors
    found = float(np.sqrt(max(np.mean(np.einsum("bp,bp->b", moved, vectors)), 0.0) / max(len(middle), 1)))
    return found or 1.0


def _ridges(shape: tuple[int, int]) -> Sequence[float]:
    """Lists the ridges of EASE to try; 0 alone where an inverse takes too long."""
    side = min(shape)
    return RIDGES if side <= OWN_SIDE else (USUAL_RIDGE,) if side <= ONE_RIDGE_SIDE else (0.0,)


class _Fold:
    """Fold of hidden items, and how well settings rank them among themselves."""

    def __init__(
        self,
        interactions: sparse.csr_array,
        features: Float32,
        others: ContentSums | None,
        generator: np.random.Generator,
    ) -> None:
        hidden = hide_items(interactions, generator)
        train = hide_columns(interactions, hidden)
        wanted = sparse.csr_array(interactions[:, hidden]).toarray() > 0
        self.users: Rows = np.flatnonzero(wanted.any(axis=1) & (np.diff(train.indptr) > 0))[:MOST_USERS]
        self._wanted, self._baskets = wanted[self.users], train[self.users].astype(np.float32)
        self._train, self._hidden = train, features[hidden]
        self._warm = _WarmItems.from_interactions(train, features, others)
        plain = np.asarray(self._baskets @ features) @ self._hidden.T
        self._plain = plain / np.float32(_deviation(plain)) if plain.size else plain
        self._content = cache(self._content_scores)
        self._weights = lru_cache(maxsize=1)(partial(ease, train, by_users=True))
        self._similarity = lru_cache(maxsize=1)(self._warm.similarity)
        self._reached = lru_cache(maxsize=1)(self._carry)

    def gains(self, setting: ColdSetting) -> Float64:
        """Computes NDCG@10 of each user."""
        if not len(self.users):
            return np.zeros(0)
        scores = np.zeros(self._wanted.shape, np.float32)
        if setting.content:
            scores += np.float32(setting.content) * self._content(setting.content_ridge)
        if setting.content < 1.0 and setting.ridge:
            phi, known, gram = self._reached(setting.ridge, setting.reach)
            near, own = phi.similarity(self._hidden), phi.similarity(phi.anchors)
            carried = known @ solve_smooth(gram, own, setting.smoothing, near.T)
            scores += np.float32((1.0 - setting.content) / _deviation(carried)) * carried
        return mean_gain((1.0 - setting.plain) * scores + setting.plain * self._plain, self._wanted)

    def _content_scores(self, ridge: float) -> Float32:
        vectors = np.asarray(self._baskets @ self._warm.table)
        scores = vectors @ self._warm.content(ridge) @ add_constant(self._hidden).T
        found: Float32 = (scores / _deviation(scores)).astype(np.float32)
        return found

    def _carry(self, ridge: float, reach: float) -> tuple[AnchorMap, Float32, Float64]:
        similarity, gram = self._similarity(reach)
        carried = carry_weights(self._weights(ridge), similarity)
        return self._warm.map(reach), np.asarray(self._baskets @ carried), gram


def _deviation(scores: NDArray[np.floating]) -> float:
    return float((scores - scores.mean(axis=1, keepdims=True)).std()) or 1.0
