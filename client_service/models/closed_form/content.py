"""Content-EASE: a closed form that scores items by their features, from sums without item ids.

With T (N, d) the items' features and a constant column, and P = X T the sums of users' features, A = P^T P, D = A - T^T
diag(n) T, S = T^T T, W = (A + a tr(A) / d I)^-1 D (S + I)^-1, a basket x is scored x T W T^T. A and D are (d, d), and
sums over users, and S is one over items: those of several silos are added, also where the silos share no item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from client_service.data.interactions import Shard
from client_service.models.closed_form.scorer_part import LOUDNESSES, ScorerPart, TrainingGraph
from client_service.models.hidden_items import FOLDS, MOST_USERS, hide_columns, hide_items, mean_gain
from client_service.text.item_features import ItemFeatures, item_features
from shared.method.graph import Float64, degrees
from shared.method.parameters import Float32

ROWS = 4096  # users whose sums of features are computed at a time
RIDGES = (0.001, 0.003, 0.01, 0.03)  # a, in means of A's diagonal
USUAL_RIDGE = 0.003
ERRORS = 2.0  # standard errors by which another share must be better: many settings, few validation users
SHARES = (1.0, 0.0, 0.3, 3.0)  # of the other silos' sums, the usual one first
COLD_RIDGES = (0.003, 0.03, 0.3)
USUAL_COLD_RIDGE = 0.03
LEAST_EVIDENCE = 4.0  # by which the items' own features must be better than shuffled ones, in standard deviations
SHUFFLES = 20  # random orders of the features among the items, which carry no information
EVIDENCE_SHARE, EVIDENCE_FOLDS = 0.4, 4  # of the items, which are hidden to test if their features predict users
EVIDENCE_USERS = 64  # most users of a fold: more would not change the verdict
HIDING_SEED = 4
WEIGHT = 3.0  # of small silos, in which validation can hardly weigh it
PAIRS = 800  # training pairs from which a silo's own sums count a quarter of what all silos' do


class ContentSums(NamedTuple):
    """Sums of interactions and items from which content-EASE is solved.

    A, D and S, (d, d), symmetric, float64. items: S; None in sums of an earlier version, which had none: then the S of
    the items that are scored takes its place.
    """

    profiles: Float64
    pairs: Float64
    items: Float64 | None = None

    def add(self, other: ContentSums, share: float = 1.0) -> ContentSums:
        """Adds a share of other sums to these."""
        some = other.scale(share)
        items = None if self.items is None or some.items is None else self.items + some.items
        return ContentSums(self.profiles + some.profiles, self.pairs + some.pairs, items)

    def scale(self, share: float) -> ContentSums:
        """Multiplies the sums by a share."""
        items = None if self.items is None else share * self.items
        return ContentSums(share * self.profiles, share * self.pairs, items)


@dataclass(frozen=True)
class ContentSetting:
    """Setting of content-EASE.

    ridge: a. others: the weight of the other silos' sums beside the silo's own; 0: none.
    """

    ridge: float
    others: float = 0.0


@dataclass(frozen=True)
class ColdItemScorer:
    """Scores of items without interactions, by their features.

    features: T (N, d) of the silo's items, the last column of ones. left: summand of each item in the code of a basket
    that has it, (N, d). weights: W (d, d); T W of an item that is added later is its summand. A score is the product of
    a basket's code and T of the item. summed: True if the sums of other silos are in W.
    """

    features: Float32
    left: Float32
    weights: Float32
    summed: bool = False

    def scores(self, baskets: sparse.csr_array, items: NDArray[np.int64]) -> Float32:
        """Computes the scores of some items for 0/1 baskets.

        baskets: (B, N). Returns (B, items).
        """
        found: Float32 = np.asarray(baskets @ self.left) @ self.features[items].T
        return found

    def arrays(self) -> dict[str, Float32]:
        """Returns the arrays to compile, by name, in float32."""
        return {"content-features": self.features, "content-left": self.left, "content-weights": self.weights}


@dataclass(frozen=True)
class ContentWeights:
    """Low-rank weights of content-EASE.

    f of a basket x (N,) is x L R^T, with the matrices L and R, (N, d).
    """

    left: Float32
    right: Float32

    def encode(self, baskets: sparse.csr_array) -> Float32:
        """Computes x L of the baskets (B, N), (B, d)."""
        found: Float32 = np.asarray(baskets @ self.left)
        return found

    def decode(self, codes: Float32) -> Float32:
        """Computes f of every item from the codes, (B, N)."""
        found: Float32 = codes @ self.right.T
        return found

    def contributions(self, basket: NDArray[np.int64], columns: NDArray[np.int64]) -> Float32:
        """Computes the entries of L R^T in these rows and columns, (b, n)."""
        found: Float32 = self.left[basket] @ self.right[columns].T
        return found

    def select_items(self, places: NDArray[np.int64]) -> ContentWeights:
        """Restricts the weights to the items in these rows."""
        return replace(self, left=self.left[places], right=self.right[places])


_KNOWN: WeakKeyDictionary[Shard, ItemFeatures | None] = WeakKeyDictionary()


def find_item_features(shard: Shard) -> ItemFeatures | None:
    """Returns the features of a shard's items, encoded once; None without item metadata."""
    if shard not in _KNOWN:
        _KNOWN[shard] = item_features(shard)
    return _KNOWN[shard]


def add_constant(features: Float32) -> Float64:
    """Adds a column of ones to the features.

    Returns T, (N, d).
    """
    return np.concatenate([features, np.ones((len(features), 1))], axis=1, dtype=np.float64)


def sum_content(interactions: sparse.csr_array, table: Float64) -> ContentSums:
    """Computes A, D and S of interactions and their items.

    interactions: X (M, N). table: T (N, d).
    """
    profiles = np.zeros((table.shape[1],) * 2)
    for start in range(0, interactions.shape[0], ROWS):
        some = np.asarray(interactions[start : start + ROWS] @ table)
        profiles += some.T @ some
    own = table.T @ (degrees(interactions)[1][:, None] * table)
    return ContentSums(_symmetric(profiles), _symmetric(profiles - own), _symmetric(table.T @ table))


def _symmetric(matrix: Float64) -> Float64:
    """Makes a product symmetric, which rounding errors prevent."""
    found: Float64 = (matrix + matrix.T) / 2.0
    return found


def content_weights(sums: ContentSums, table: Float64, ridge: float) -> Float64:
    """Solves for the weights W of content-EASE, (d, d).

    table: T (N, d), the items' features. S is that of all summed items as if there were N, so that a catalogue which
    several silos have in common counts once; that of T where the sums have none.
    """
    size = len(sums.profiles)
    strength = ridge * float(np.trace(sums.profiles)) / size
    if not strength > 0.0:
        return np.zeros((size, size))
    items = table.T @ table if sums.items is None else sums.items * (len(table) / sums.items[-1, -1])
    left = linalg.solve(sums.profiles + strength * np.eye(size), sums.pairs, assume_a="pos")
    found: Float64 = linalg.solve(items + np.eye(size), left.T, assume_a="pos").T
    return found


def make_content(graph: TrainingGraph, setting: ContentSetting) -> ContentWeights:
    """Fits the content-EASE scorer of a graph.

    Without item features, it scores every item 0.
    """
    return make_each_content(graph, (setting,))[0]


def make_each_content(graph: TrainingGraph, settings: Sequence[ContentSetting]) -> list[ContentWeights]:
    """Fits a content-EASE scorer for each of several settings.

    The sums are computed once.
    """
    if graph.features is None:
        nothing = np.zeros((graph.interactions.shape[1], 0), np.float32)
        return [ContentWeights(nothing, nothing) for _ in settings]
    table = add_constant(graph.features)
    right = table.astype(np.float32)
    own: ContentSums = graph.compute_once("content", lambda: sum_content(graph.interactions, table))
    found = []
    for setting in settings:
        sums = own if graph.others is None else own.add(graph.others, setting.others)
        weights = content_weights(sums, table, setting.ridge)
        found.append(ContentWeights((table @ weights).astype(np.float32), right))
    return found


def cold_scorer(graph: TrainingGraph, setting: ContentSetting) -> ColdItemScorer | None:
    """Fits content-EASE with the matrices by which it scores later items too.

    Returns None without features.
    """
    if graph.features is None:
        return None
    table = add_constant(graph.features)
    own: ContentSums = graph.compute_once("content", lambda: sum_content(graph.interactions, table))
    sums = own if graph.others is None else own.add(graph.others, setting.others)
    weights = content_weights(sums, table, setting.ridge)
    summed, left = graph.others is not None and setting.others > 0.0, (table @ weights).astype(np.float32)
    return ColdItemScorer(table.astype(np.float32), left, weights.astype(np.float32), summed)


def rank_hidden_items(graph: TrainingGraph, settings: Sequence[ContentSetting]) -> Float64:
    """Measures how each setting ranks hidden items among themselves.

    Returns NDCG@10 of each user who has a hidden item and another one, in each fold, (settings, users).
    """
    assert graph.features is not None
    table, folds = add_constant(graph.features), []
    for fold in range(FOLDS):
        hidden = hide_items(graph.interactions, np.random.default_rng([HIDING_SEED, fold]))
        train, wanted = hide_columns(graph.interactions, hidden), graph.interactions[:, hidden].toarray() > 0
        users = np.flatnonzero(wanted.any(axis=1) & (np.diff(train.indptr) > 0))[:MOST_USERS]
        profiles, own, found = np.asarray(train[users] @ table), sum_content(train, table), []
        for setting in settings:
            sums = own if graph.others is None else own.add(graph.others, setting.others)
            scores = profiles @ content_weights(sums, table, setting.ridge) @ table[hidden].T
            found.append(mean_gain(scores.astype(np.float32), wanted[users]))
        folds.append(np.stack(found))
    return np.concatenate(folds, axis=1)


def predicts_taste(graph: TrainingGraph) -> bool:
    """Tells whether the features of items predict users' positives.

    Items are hidden, and `_Fold` measures how well they are scored by their own features, and by those of other items
    in SHUFFLES random orders. Their own must be above the mean of the orders by LEAST_EVIDENCE standard deviations of
    the orders, with the silo's own sums or with those of all silos. Features without information are one order among
    the others, also where many users have the same items. They would add noise, which few validation users do not show.
    """
    if graph.features is None:
        return False
    some = sparse.csr_array(graph.interactions[:EVIDENCE_USERS])
    items = np.flatnonzero(degrees(some)[1] > 0)
    baskets, table = sparse.csr_array(some[:, items]), add_constant(graph.features[items])
    generators = (np.random.default_rng([HIDING_SEED, fold]) for fold in range(EVIDENCE_FOLDS))
    folds = [one for generator in generators if len((one := _Fold.draw(baskets, generator)).users)]
    if not folds:
        return graph.others is not None  # without own history only the other silos' sums know of the items
    generator = np.random.default_rng(HIDING_SEED)
    tables = [table, *(table[generator.permutation(len(table))] for _ in range(SHUFFLES))]
    for others in (None,) if graph.others is None else (None, graph.others):
        found = np.array([np.mean([fold.measure_separation(one, others) for fold in folds]) for one in tables])
        if found[0] - found[1:].mean() > LEAST_EVIDENCE * found[1:].std(ddof=1):
            return True
    return False


class _Fold(NamedTuple):
    """Items that are hidden from all users.

    train: interactions without them, (M, N). users: rows (B,) of those who have one, and another item. wanted: their
    hidden items, (B, H).
    """

    train: sparse.csr_array
    hidden: NDArray[np.int64]
    users: NDArray[np.int64]
    wanted: NDArray[np.bool_]

    @classmethod
    def draw(cls, interactions: sparse.csr_array, generator: np.random.Generator) -> _Fold:
        """Hides EVIDENCE_SHARE of the items."""
        hidden = hide_items(interactions, generator, EVIDENCE_SHARE)
        train, wanted = hide_columns(interactions, hidden), interactions[:, hidden].toarray() > 0
        users = np.flatnonzero(wanted.any(axis=1) & (np.diff(train.indptr) > 0))
        return cls(train, hidden, users, wanted[users])

    def measure_separation(self, table: Float64, others: ContentSums | None) -> float:
        """Computes the mean score of the wanted items above their user's mean, in standard deviations."""
        own = sum_content(self.train, table)
        sums = own if others is None else own.add(others)
        weights = content_weights(sums, table, USUAL_COLD_RIDGE)
        scores = np.asarray(self.train[self.users] @ table) @ weights @ table[self.hidden].T
        scores -= scores.mean(axis=1, keepdims=True)
        scores /= np.maximum(scores.std(axis=1, keepdims=True), 1e-12)
        return float(scores[self.wanted].mean())


def cold_settings(graph: TrainingGraph) -> tuple[ContentSetting, ...]:
    """Lists the settings for items without interactions, the usual one first."""
    return _usual_first(graph, COLD_RIDGES, USUAL_COLD_RIDGE if graph.others is None else COLD_RIDGES[0])


def content_settings(graph: TrainingGraph) -> tuple[ContentSetting, ...]:
    """Lists the settings of content-EASE to try; none unless the features predict users' positives.

    They are the ridges with the silo's own sums, and with the others' sums where there are any.
    """
    if not graph.compute_once("content predicts taste", lambda: predicts_taste(graph)):
        return ()
    return _usual_first(graph, RIDGES, USUAL_RIDGE)


def _usual_first(graph: TrainingGraph, ridges: Sequence[float], usual_ridge: float) -> tuple[ContentSetting, ...]:
    shares = (0.0,) if graph.others is None else SHARES
    usual = ContentSetting(usual_ridge, shares[0])
    each = (ContentSetting(ridge, share) for share in shares for ridge in ridges)
    return usual, *(one for one in each if one != usual)


def weigh_content(graph: TrainingGraph, setting: ContentSetting) -> float:
    """Computes the usual weight of content-EASE among the scorers.

    It is less where a silo of few training pairs has no sums but its own.
    """
    pairs = graph.interactions.nnz
    return WEIGHT if setting.others > 0.0 else WEIGHT * (pairs / (pairs + PAIRS)) ** 2


CONTENT = ScorerPart(
    "content",
    WEIGHT,
    content_settings,
    None,
    make_content,
    make_each_content,
    loudnesses=LOUDNESSES,
    from_base=False,
    weigh=weigh_content,
    errors=ERRORS,
)
