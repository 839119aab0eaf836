"""What sessions tell without a network: popular items, the visit's own, what followed the last click, items that share
sessions.

Hidasi et al., ICLR 2016, and Jannach, Ludewig, RecSys 2017, found such figures hard to beat.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from client_service.data.sessions import Int64, Prefixes, count_pairs, occurring_pairs, scale_rows
from client_service.evaluation.session_metrics import ScoreItems
from shared.method.parameters import Float32

SMOOTHING = 20.0  # of the item neighbours: an item of few sessions is not near to all of them


def floors_of(clicks: Int64, starts: Int64, items: int) -> dict[str, ScoreItems]:
    """Each floor by its name, from training sessions over `items` items."""
    return {
        "popularity": score_by_popularity(clicks, items),
        "repeats": score_by_recency(items),
        "successors": score_by_successors(clicks, starts, items),
        "item-knn": score_by_neighbours(clicks, starts, items),
    }


def score_by_popularity(clicks: Int64, items: int) -> ScoreItems:
    """How often an item was clicked."""
    counts = np.bincount(clicks, minlength=items).astype(np.float32)
    return lambda examples: np.broadcast_to(counts, (len(examples), items))


def score_by_recency(items: int) -> ScoreItems:
    """The place of an item's last click in the session: nothing but repeats, the last clicked item first."""

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
    """How often an item was clicked next after the last click."""
    within = np.ones(len(clicks), dtype=bool)
    within[starts[1:] - 1] = False  # the last click of a session has none behind it
    before = np.flatnonzero(within)
    counts = count_pairs(clicks[before], clicks[before + 1], (items, items))
    return lambda examples: _rows(counts, examples.last)


def score_by_neighbours(clicks: Int64, starts: Int64, items: int) -> ScoreItems:
    """The cosine of an item's sessions and those of the last click, |both| / sqrt(|a| |b|), damped for rare items."""
    owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    having = occurring_pairs(owners, clicks, (len(starts) - 1, items))
    both = sparse.csr_array(having.T @ having)
    weight = 1.0 / np.sqrt(having.sum(axis=0) + SMOOTHING)
    near = scale_rows(sparse.csr_array(scale_rows(both, weight).T), weight)  # symmetric, so that columns are rows
    near.setdiag(0.0)
    return lambda examples: _rows(near, examples.last)


def _rows(matrix: sparse.csr_array, rows: Int64) -> Float32:
    dense: Float32 = matrix[rows].toarray()
    return dense
