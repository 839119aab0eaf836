"""Scores of the next click from transitions of visits, and their weight beside a trained model's.

An item is scored by what came after and before the clicks of the visit, the last ones most, and by being one of these
clicks itself. Few numbers are chosen, on validation examples, and these lean to usual values: see `usual_share`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy import sparse

from client_service.data.sessions import TRAIN, Prefixes, SessionShard, scale_rows
from client_service.evaluation.session_ranking import SCORES, ScoreItems, rank_targets
from client_service.runtime.interruption import NEVER, Interrupt
from client_service.sums.transitions import Transitions, own_transitions, shard_transitions
from shared.method.parameters import Float32

DAMPING = 0.7  # of an item that much is clicked after: its counts are divided by their sum to this power
BACKWARD = 0.4  # of what came before, beside what came after
DECAYS = (0.6, 0.4, 0.8)  # of the weight of a click, for each later one; the usual first
REPEATS = (0.1, 0.0, 0.3, 1.0)  # of the visit's own items, beside all others together
POPULAR = 0.01  # of popular items, for visits of which nothing is known
CHOSEN_BY = 500  # validation examples
USUAL_BY = 100  # examples as much as which the usual value counts
SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
USUAL_SHARE = 0.5
LEAST_GAIN = 1.0  # standard errors of the mean difference by which another value has to be better than the usual one
DEPTH = 20


@dataclass(frozen=True, eq=False)
class TransitionScores:
    """near: what goes with each item, row by row, (N, N). popular: shares of all clicks, (N,)."""

    near: sparse.csr_array
    popular: Float32
    decay: float = DECAYS[0]
    repeats: float = REPEATS[0]

    def score(self, examples: Prefixes) -> Float32:
        """How likely each item comes next, by rows that add up to 1, (B, N)."""
        visits = self._weigh_clicks(examples)
        found: Float32 = (visits @ self.near).toarray()
        found /= np.maximum(found.sum(axis=1, keepdims=True), 1e-9)
        own = visits.tocoo()
        found[own.row, own.col] += self.repeats * own.data
        found += POPULAR * self.popular
        found /= found.sum(axis=1, keepdims=True)
        return found

    def _weigh_clicks(self, examples: Prefixes) -> sparse.csr_array:
        """Each visit's items by their clicks' weights, (B, N)."""
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


def score_by_transitions(
    shard: SessionShard, known: Transitions | None, interrupt: Interrupt = NEVER
) -> TransitionScores:
    """By the transitions of all silos, or None: by the shard's own."""
    pairs = own_transitions(shard) if known is None else shard_transitions(known, shard)
    clicks, _ = shard.split_sessions(TRAIN)
    counts = np.bincount(clicks, minlength=len(shard.item_ids)) + (0 if known is None else known.visits[shard.places])
    popular = (counts / max(1.0, float(counts.sum()))).astype(np.float32)
    near = sparse.csr_array(_damped(pairs) + BACKWARD * _damped(sparse.csr_array(pairs.T)))
    examples = spread_examples(shard.valid, CHOSEN_BY)

    def choose(tried: Sequence[TransitionScores]) -> TransitionScores:
        return tried[_choose_steadily(_compare(examples, len(popular), partial(_score_each, tried), interrupt))]

    chosen = choose([TransitionScores(near, popular, repeats=repeats) for repeats in REPEATS])
    return choose([replace(chosen, decay=decay) for decay in DECAYS])


def _score_each(tried: Sequence[TransitionScores], examples: Prefixes) -> Iterable[Float32]:
    return (one.score(examples) for one in tried)


def _damped(pairs: sparse.csr_array) -> sparse.csr_array:
    sums = np.asarray(pairs.sum(axis=1)).ravel()
    return scale_rows(pairs, np.maximum(sums, 1.0) ** -DAMPING)


def usual_share(shard: SessionShard, model: ScoreItems, by_counts: ScoreItems, interrupt: Interrupt = NEVER) -> float:
    """The share of the counts beside a model's probabilities: what validation prefers, drawn to USUAL_SHARE."""
    examples = spread_examples(shard.valid, CHOSEN_BY)

    def mixed(some: Prefixes) -> Iterable[Float32]:
        trained, counted = model(some), by_counts(some)
        return ((1.0 - share) * trained + share * counted for share in SHARES)

    if not len(examples):
        return USUAL_SHARE
    values = _compare(examples, len(shard.item_ids), mixed, interrupt)
    best = SHARES[int(values.mean(axis=1).argmax())]
    return (best * len(examples) + USUAL_SHARE * USUAL_BY) / (len(examples) + USUAL_BY)


def probabilities(scores: Float32) -> Float32:
    """Softmax of each row."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    found: Float32 = powers / powers.sum(axis=1, keepdims=True)
    return found


def spread_examples(examples: Prefixes, most: int) -> Prefixes:
    """At most so many examples, spread evenly."""
    step = max(1, -(-len(examples) // most))
    return Prefixes(examples.clicks, examples.begin[::step], examples.end[::step])


def _compare(
    examples: Prefixes, items: int, score: Callable[[Prefixes], Iterable[Float32]], interrupt: Interrupt
) -> np.ndarray:
    """The reciprocal rank, 0 beyond DEPTH, of each example's target in each of the ways' scores, (ways, P)."""
    step = max(1, min(128, SCORES // max(1, items)))
    found = []
    for begin in interrupt.each(range(0, len(examples), step)):
        some = examples.select(np.arange(begin, min(begin + step, len(examples))))
        ranks = np.stack([rank_targets(one, some.targets) for one in score(some)])
        found.append(np.where((ranks > 0) & (ranks <= DEPTH), 1.0 / np.maximum(ranks, 1), 0.0))
    return np.concatenate(found, axis=1) if found else np.zeros((1, 0))


def _choose_steadily(values: np.ndarray) -> int:
    """The best way, or the first, the usual one, where no other is better by more than chance."""
    if not values.size:
        return 0
    best = int(values.mean(axis=1).argmax())
    gains = values[best] - values[0]
    return best if gains.mean() > LEAST_GAIN * gains.std() / np.sqrt(len(gains)) else 0
