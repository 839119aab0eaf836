"""Scores of the next click by transitions, beside a trained network or without one.

An item is scored by what came after and before the clicks of the visit, the last ones most, by what goes with that in
turn, and by being one of these clicks itself. Few numbers are chosen, on validation examples, and these lean to usual
values. So do the silo's own transitions, the sum of all silos' and a network: see `VisitScores` and `network_share`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from client_service.data.prefixes import Int64, Prefixes
from client_service.data.sessions import TRAIN, SessionShard, scale_rows
from client_service.evaluation.session_ranking import SCORES, ScoreItems, rank_targets
from client_service.runtime.interruption import NEVER, Interrupt
from client_service.sums.transitions import Transitions, own_transitions, shard_transitions
from shared.method.parameters import Float32

DAMPING = 0.7  # an item's counts of following clicks are divided by their sum to this power
BACKWARD = (0.4, 0.0)  # weight of preceding items beside following ones; the usual first
NEXT_ALONE = (1,)  # other weights that a silo may try on its own visits: the next click alone
DECAYS = (0.4, 0.2, 0.6, 0.8, 0.0)  # of the weight of a click, for each later one; the usual first
REPEATS = (0.1, 0.0, 0.3, 1.0)  # of the visit's own items, beside all others together
SECOND_STEPS = (0.3, 0.1, 0.0, 0.6)  # weight of items two transitions away, beside those one away; the usual first
POPULAR = 0.01  # of popular items, for visits without a known item
CHOSEN_BY = 500  # validation examples by which such a weight is chosen
COMPARED_BY = 1000  # validation examples by which served scores are compared with the silo's own
USUAL_BY = 100  # validation examples that count as much as the usual value
SUM_SHARES = (1.0, 0.5, 0.0)  # of the sum's scores beside those of the silo's own transitions; the usual first
NETWORK_SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
USUAL_SHARE = 0.5
LEAST_GAIN = 1.0  # standard errors of the mean difference by which another value has to be better than the usual one
NETWORK_GAIN = 2.0  # the same for the best share of a network: one of six may win by chance
DEPTH = 20


@dataclass(frozen=True, eq=False)
class TransitionScores:
    """Scorer of the items after a visit, by one set of transitions.

    near: weights of the items that are clicked with each item, (N, N). walk: the same, by rows that add up to 1.
    popular: shares of all clicks, (N,).
    """

    near: sparse.csr_array
    walk: sparse.csr_array
    popular: Float32
    decay: float = DECAYS[0]
    repeats: float = REPEATS[0]
    second: float = SECOND_STEPS[0]

    def score(self, examples: Prefixes) -> Float32:
        """Computes the probability that each item comes next, (B, N); rows add up to 1."""
        found: Float32 = self._weigh_items(examples).toarray()
        found += POPULAR * self.popular
        found /= found.sum(axis=1, keepdims=True)
        return found

    def rank(self, examples: Prefixes) -> Int64:
        """Computes the rank of each example's target, from 1 on, (B,).

        It does not compute the scores of all items.
        """
        weights, popular = self._weigh_items(examples), np.float32(POPULAR) * self.popular
        rows = np.repeat(np.arange(len(examples)), np.diff(weights.indptr))
        values = weights.data + popular[weights.indices]
        targets, order = examples.targets, np.argsort(-popular, kind="stable")
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        own, is_target = popular[targets].copy(), weights.indices == targets[rows]
        own[rows[is_target]] = values[is_target]
        has = np.bincount(rows[is_target], minlength=len(examples)) > 0
        beyond = np.where(has, np.searchsorted(-popular[order], -own), places[targets])  # as if no item had weights
        better = (values > own[rows]) | ((values == own[rows]) & (weights.indices < targets[rows]))
        changed = better.astype(np.int64) - (places[weights.indices] < beyond[rows])
        return 1 + beyond + np.bincount(rows, weights=changed, minlength=len(examples)).astype(np.int64)

    def _weigh_items(self, examples: Prefixes) -> sparse.csr_array:
        """Computes the weights of the items without their popularity, (B, N)."""
        visits = self._weigh_clicks(examples)
        found = _shares(sparse.csr_array(visits @ self.near))
        if self.second:
            further = sparse.csr_array(found @ self.walk)
            owners = np.repeat(np.arange(len(examples)), np.diff(further.indptr))
            # Two steps lead back to the visit's own items, whose weight is `repeats`.
            further.data[_contains(visits, owners, further.indices)] = 0.0
            found = _shares(sparse.csr_array(found + np.float32(self.second) * further))
        found = sparse.csr_array(found + np.float32(self.repeats) * visits)
        found.sum_duplicates()
        return found

    def _weigh_clicks(self, examples: Prefixes) -> sparse.csr_array:
        """Sums the clicks' weights of each visit's items, (B, N)."""
        clicks, lengths = examples.pad()
        age = lengths[:, None] - 1 - np.arange(clicks.shape[1])
        inside = age >= 0
        weights = (self.decay ** age[inside]).astype(np.float32)
        rows = np.nonzero(inside)[0]
        found = sparse.csr_array(
            sparse.coo_array((weights, (rows, clicks[inside])), shape=(len(lengths), len(self.popular)))
        )
        found.sum_duplicates()
        return found


@dataclass(frozen=True, eq=False)
class VisitScores:
    """Scorer of visits without a network.

    own: by the silo's own transitions. summed: by those of all silos. share: weight of `summed` in an item's
    probability.
    """

    own: TransitionScores
    summed: TransitionScores | None = None
    share: float = 0.0

    def score(self, examples: Prefixes) -> Float32:
        """Computes the probability that each item comes next, (B, N); rows add up to 1."""
        if self.summed is None or self.share == 0.0:
            return self.own.score(examples)
        if self.share == 1.0:
            return self.summed.score(examples)
        return (1.0 - self.share) * self.own.score(examples) + self.share * self.summed.score(examples)


def score_visits(shard: SessionShard, known: Transitions | None, interrupt: Interrupt = NEVER) -> VisitScores:
    """Builds the scorer of visits from all silos' transitions, if validation agrees.

    Validation may prefer the own ones or both. known: transitions of all silos; None: the silo's own alone.
    """
    own = score_by_transitions(shard, None, interrupt)
    if known is None:
        return VisitScores(own)
    summed = score_by_transitions(shard, known, interrupt)

    def mixed(some: Prefixes) -> Iterable[Float32]:
        alone, together = own.score(some), summed.score(some)
        return ((1.0 - share) * alone + share * together for share in SUM_SHARES)

    examples = spread_examples(shard.valid, COMPARED_BY)
    values = _compare(examples, len(shard.item_ids), mixed, interrupt)
    return VisitScores(own, summed, SUM_SHARES[_choose_significant(values)])


def score_by_transitions(
    shard: SessionShard, known: Transitions | None, interrupt: Interrupt = NEVER
) -> TransitionScores:
    """Builds the scorer of the transitions of all silos; None: of the shard's own."""
    if known is None:
        counted = [own_transitions(shard), own_transitions(shard, NEXT_ALONE)]
    else:
        counted = [shard_transitions(known, shard)]
    clicks, _ = shard.split_sessions(TRAIN)
    counts = np.bincount(clicks, minlength=len(shard.item_ids)) + (0 if known is None else known.visits[shard.places])
    popular = (counts / max(1.0, float(counts.sum()))).astype(np.float32)
    examples = spread_examples(shard.valid, CHOSEN_BY)

    def choose(tried: Sequence[TransitionScores]) -> TransitionScores:
        return tried[_choose_significant(np.stack([_gains(one.rank(examples)) for one in interrupt.check_each(tried)]))]

    near = [_find_neighbours(pairs, backward) for pairs in counted for backward in BACKWARD]
    # Two steps are looked at last: they take most of the time.
    chosen = choose([TransitionScores(one, _shares(one), popular, second=0.0) for one in near])
    chosen = choose([replace(chosen, repeats=value) for value in REPEATS])
    chosen = choose([replace(chosen, decay=value) for value in DECAYS])
    return choose([replace(chosen, second=value) for value in SECOND_STEPS])


def _find_neighbours(pairs: sparse.csr_array, backward: float) -> sparse.csr_array:
    """Computes the neighbours of each item, with damped counts in both directions."""
    return sparse.csr_array(_damp(pairs) + backward * _damp(sparse.csr_array(pairs.T)))


def _damp(pairs: sparse.csr_array) -> sparse.csr_array:
    return scale_rows(pairs, np.maximum(_row_sums(pairs), 1.0) ** -DAMPING)


def _contains(matrix: sparse.csr_array, rows: Int64, columns: np.ndarray) -> np.ndarray:
    """Tells which of these entries the matrix has."""
    width = matrix.shape[1]
    owners = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return np.isin(rows * width + columns, owners * width + matrix.indices)


def _shares(weights: sparse.csr_array) -> sparse.csr_array:
    """Scales rows to the sum 1; empty rows stay empty."""
    return scale_rows(weights, 1.0 / np.maximum(_row_sums(weights), 1e-9))


def _row_sums(matrix: sparse.csr_array) -> np.ndarray:
    return np.asarray(matrix.sum(axis=1)).ravel()


def network_share(
    shard: SessionShard, model: ScoreItems, by_transitions: ScoreItems, interrupt: Interrupt = NEVER
) -> float:
    """Chooses by validation the share of a network beside transitions.

    0 if no share is significantly better than none; else the preferred one, drawn to USUAL_SHARE.
    """
    examples = spread_examples(shard.valid, COMPARED_BY)

    def mixed(some: Prefixes) -> Iterable[Float32]:
        trained, counted = model(some), by_transitions(some)
        return (share * trained + (1.0 - share) * counted for share in NETWORK_SHARES)

    values = _compare(examples, len(shard.item_ids), mixed, interrupt)
    best = NETWORK_SHARES[_choose_significant(values, NETWORK_GAIN)]
    if best == 0.0:
        return 0.0
    return (best * len(examples) + USUAL_SHARE * USUAL_BY) / (len(examples) + USUAL_BY)


def probabilities(scores: Float32) -> Float32:
    """Computes the softmax of each row."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    found: Float32 = powers / powers.sum(axis=1, keepdims=True)
    return found


def spread_examples(examples: Prefixes, most: int) -> Prefixes:
    """Selects at most `most` examples, evenly spread."""
    step = max(1, -(-len(examples) // most))
    return Prefixes(examples.clicks, examples.begin[::step], examples.end[::step])


def _compare(
    examples: Prefixes, items: int, score: Callable[[Prefixes], Iterable[Float32]], interrupt: Interrupt
) -> np.ndarray:
    """Computes the gain of each example's target by each candidate's scores, (candidates, P)."""
    step = max(1, min(128, SCORES // max(1, items)))
    found = []
    for begin in interrupt.check_each(range(0, len(examples), step)):
        some = examples.select(np.arange(begin, min(begin + step, len(examples))))
        ranks = np.stack([rank_targets(one, some.targets) for one in score(some)])
        found.append(_gains(ranks))
    return np.concatenate(found, axis=1) if found else np.zeros((1, 0))


def _gains(ranks: Int64) -> np.ndarray:
    """Computes the gain of each rank: 1 / log2(1 + rank).

    0 beyond DEPTH and for a miss. It lies between hits and reciprocal ranks, and is steadier than both.
    """
    return np.where((ranks > 0) & (ranks <= DEPTH), 1.0 / np.log2(1.0 + np.maximum(ranks, 1)), 0.0)


def _choose_significant(values: np.ndarray, least_gain: float = LEAST_GAIN) -> int:
    """Chooses the best candidate, or the first where no gain is significant.

    The first is the usual one.
    """
    if not values.size:
        return 0
    best = int(values.mean(axis=1).argmax())
    gains = values[best] - values[0]
    return best if gains.mean() > least_gain * gains.std() / np.sqrt(len(gains)) else 0
