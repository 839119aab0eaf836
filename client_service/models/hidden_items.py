"""Validation for items without interactions, by hiding some items.

A method that does not know their users ranks them. Shapes: M users, N items, B rows, C hidden items.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from shared.method.graph import Float64, degrees
from shared.method.parameters import Float32

HIDDEN = 0.1  # share of the items with interactions
FOLDS = 2  # draws of hidden items
MOST_USERS = 2000  # most users in the measure
TOP = 10  # length of the ranked lists
Rows = NDArray[np.int64]


def hide_items(interactions: sparse.csr_array, generator: np.random.Generator, share: float = HIDDEN) -> Rows:
    """Draws a share of the items that have interactions, ascending."""
    warm = np.flatnonzero(degrees(interactions)[1] > 0)
    found: Rows = np.sort(generator.permutation(warm)[: max(1, round(share * len(warm)))]).astype(np.int64)
    return found


def hide_columns(interactions: sparse.csr_array, items: Rows) -> sparse.csr_array:
    """Removes the interactions of these items, which keep their columns."""
    kept = np.ones(interactions.shape[1], dtype=bool)
    kept[items] = False
    coo = interactions.tocoo()
    seen = kept[coo.col]
    return sparse.csr_array((coo.data[seen], (coo.row[seen], coo.col[seen])), shape=interactions.shape)


def mean_gain(scores: Float32, wanted: NDArray[np.bool_]) -> Float64:
    """Computes NDCG@10 of each row of scores.

    scores: (B, C). wanted: at least one item of each row.
    """
    size = min(TOP, scores.shape[1])
    first = np.argpartition(-scores, size - 1, axis=1)[:, :size]
    order = np.argsort(-np.take_along_axis(scores, first, 1), axis=1, kind="stable")
    hits = np.take_along_axis(wanted, np.take_along_axis(first, order, 1), 1)
    discounts = 1.0 / np.log2(np.arange(2, size + 2))
    ideal = np.cumsum(discounts)[np.minimum(wanted.sum(axis=1), size) - 1]
    found: Float64 = (hits @ discounts) / ideal
    return found
