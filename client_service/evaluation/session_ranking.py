"""Ranks the next click among all items, by a model or by a baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy import sparse

from client_service.data.prefixes import Int64, Prefixes
from client_service.data.sessions import count_pairs, mark_pairs, scale_rows
from client_service.evaluation.metrics import Measures, measure_ranks
from client_service.runtime.interruption import NEVER, Interrupt
from shared.method.parameters import Float32

SCORES = 1 << 23  # that are computed at a time
MOST = 512  # examples at a time

ScoreItems = Callable[[Prefixes], Float32]
"""(some examples) -> the scores of all N items, by their numbers, (B, N)."""


def rank_targets(scores: Float32, columns: Int64) -> Int64:
    """Computes the rank, from 1, of one column of each row.

    Better scores rank above it, and equal ones further left. The rank is 0, a miss, where a score of its row is NaN:
    a model that has diverged would otherwise rank everything first.
    """
    own = scores[np.arange(len(scores)), columns][:, None]
    better = np.count_nonzero(scores > own, axis=1)
    equal = scores == own
    tied = np.flatnonzero(np.count_nonzero(equal, axis=1) > 1)  # most have nothing but the column itself
    better[tied] += np.count_nonzero(equal[tied] & (np.arange(scores.shape[1]) < columns[tied, None]), axis=1)
    return np.where(np.isnan(scores.max(axis=1)), 0, 1 + better)


def measure_prefixes(score: ScoreItems, examples: Prefixes, items: int, interrupt: Interrupt = NEVER) -> Measures:
    """Measures scores of all examples.

    items: N, the number of the scores' columns.
    """
    return measure_ranks(rank_prefixes(score, examples, items, interrupt))


def rank_prefixes(score: ScoreItems, examples: Prefixes, items: int, interrupt: Interrupt = NEVER) -> Int64:
    """Computes the rank of each example's target, 0 for a miss, (P,)."""
    ranks = np.zeros(len(examples), dtype=np.int64)
    for rows in interrupt.check_each(_blocks(examples, items)):
        block = examples.select(rows)
        ranks[rows] = rank_targets(score(block), block.targets)
    return ranks


def _blocks(examples: Prefixes, items: int) -> Iterator[Int64]:
    """Yields rows of examples of similar lengths, to keep padding small."""
    order = np.argsort(examples.lengths, kind="stable")
    step = max(1, min(MOST, SCORES // max(items, 1)))
    return (order[first : first + step] for first in range(0, len(order), step))


SMOOTHING = 20.0  # of the item neighbours: an item of few sessions is not near to all of them


def build_floors(clicks: Int64, starts: Int64, items: int) -> dict[str, ScoreItems]:
    """Builds each baseline from training sessions over `items` items, by name."""
    return {
        "popularity": score_by_popularity(clicks, items),
        "repeats": score_by_recency(items),
        "successors": score_by_successors(clicks, starts, items),
        "item-knn": score_by_neighbours(clicks, starts, items),
    }


def score_by_popularity(clicks: Int64, items: int) -> ScoreItems:
    """Scores an item by its number of clicks."""
    counts = np.bincount(clicks, minlength=items).astype(np.float32)
    return lambda examples: np.broadcast_to(counts, (len(examples), items))


def score_by_recency(items: int) -> ScoreItems:
    """Scores an item by the position of its last click in the session.

    So only repeats are recommended, the last clicked item first.
    """

    def score(examples: Prefixes) -> Float32:
        clicks, lengths = examples.pad()
        places = np.arange(1, clicks.shape[1] + 1, dtype=np.float32)
        scores = np.zeros((len(examples), items), dtype=np.float32)
        np.maximum.at(
            scores, (np.arange(len(clicks))[:, None], clicks), np.where(places <= lengths[:, None], places, 0)
        )
        return scores

    return score


def score_by_successors(clicks: Int64, starts: Int64, items: int) -> ScoreItems:
    """Scores an item by how often it was clicked right after the last click."""
    counts = count_successors(clicks, starts, items)
    return lambda examples: _rows(counts, examples.last)


def count_successors(clicks: Int64, starts: Int64, items: int) -> sparse.csr_array:
    """Counts how often each item was clicked right after each other item, (N, N)."""
    within = np.ones(len(clicks), dtype=bool)
    within[starts[1:] - 1] = False  # the last click of a session has none behind it
    before = np.flatnonzero(within)
    return count_pairs(clicks[before], clicks[before + 1], (items, items))


def score_by_neighbours(clicks: Int64, starts: Int64, items: int) -> ScoreItems:
    """Scores an item by the cosine of its sessions with those of the last click.

    |both| / sqrt(|a| |b|), damped for rare items.
    """
    owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    having = mark_pairs(owners, clicks, (len(starts) - 1, items))
    both = sparse.csr_array(having.T @ having)
    weight = 1.0 / np.sqrt(having.sum(axis=0) + SMOOTHING)
    near = scale_rows(sparse.csr_array(scale_rows(both, weight).T), weight)  # symmetric, so that columns are rows
    near.setdiag(0.0)
    return lambda examples: _rows(near, examples.last)


def _rows(matrix: sparse.csr_array, rows: Int64) -> Float32:
    dense: Float32 = matrix[rows].toarray()
    return dense
