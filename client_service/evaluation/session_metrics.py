"""Ranks the click that came next among all items, and measures it by the session metrics.

An item that the session has had stays in the list: in a third of real sessions the last click repeats an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from client_service.data.sessions import Int64, Prefixes
from client_service.evaluation.metrics import Measures, measure_ranks
from client_service.runtime.interruption import NEVER, Interrupt
from shared.method.parameters import Float32

SCORES = 1 << 23  # that are computed at a time
MOST = 512  # examples at a time

ScoreItems = Callable[[Prefixes], Float32]
"""Some examples -> the scores of all N items, by their numbers, (B, N)."""


def rank_targets(scores: Float32, columns: Int64) -> Int64:
    """The rank, from 1 on, of one column of each row: above it are better scores, and equal ones further left.

    The rank is 0, a miss, where a score of its row is no number: a model that has diverged would otherwise have
    everything in the first place.
    """
    rows = np.arange(len(scores))
    own = scores[rows, columns][:, None]
    better = (scores > own).sum(axis=1)
    ties = (scores == own) & (np.arange(scores.shape[1]) < columns[:, None])
    return np.where(np.isnan(scores).any(axis=1), 0, 1 + better + ties.sum(axis=1))


def measure_prefixes(score: ScoreItems, examples: Prefixes, items: int, interrupt: Interrupt = NEVER) -> Measures:
    """The measures of a way to score on all examples. items: N, the number of the scores' columns."""
    return measure_ranks(rank_prefixes(score, examples, items, interrupt))


def rank_prefixes(score: ScoreItems, examples: Prefixes, items: int, interrupt: Interrupt = NEVER) -> Int64:
    """The rank of each example's target, 0 for a miss, (P,)."""
    ranks = np.zeros(len(examples), dtype=np.int64)
    for rows in interrupt.each(_blocks(examples, items)):
        block = examples.select(rows)
        ranks[rows] = rank_targets(score(block), block.targets)
    return ranks


def _blocks(examples: Prefixes, items: int) -> Iterator[Int64]:
    """Rows of examples of similar lengths, so that little is padding."""
    order = np.argsort(examples.lengths, kind="stable")
    step = max(1, min(MOST, SCORES // max(items, 1)))
    return (order[first : first + step] for first in range(0, len(order), step))
