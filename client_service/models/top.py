"""Scores of a block of users -> the columns of each user's best, at a twentieth of what a partial sort of all costs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.method.parameters import Float32

FOLD = 32  # columns at most that one maximum stands for
GROUPS = 8  # times k, at least: with fewer groups of columns there is little to gain by them


def top_columns(scores: Float32, k: int) -> tuple[NDArray[np.int64], Float32]:
    """The min(k, N) columns with the highest scores (B, N), best first, and these scores; a column whose score is -inf
    may be any. Which of equal ones is left open, but the same whatever the other rows are.

    The k best lie in the k groups of columns with the highest maxima: only these are sorted.
    """
    count = scores.shape[1]
    fold = min(FOLD, count // (GROUPS * k))
    if fold < 2:
        return _sorted_top(scores, min(k, count))
    groups = -(-count // fold)
    chosen = _largest(_group_maxima(scores, groups), k)
    columns = (chosen[:, :, None] + groups * np.arange(fold)).reshape(len(scores), -1)
    outside = columns >= count
    columns[outside] = 0
    values = np.take_along_axis(scores, columns, 1)
    values[outside] = -np.inf
    places, best = _sorted_top(values, k)
    return np.take_along_axis(columns, places, 1), best


def _group_maxima(scores: Float32, groups: int) -> Float32:
    """Of columns g, g + groups, g + 2 groups, ..., (B, groups)."""
    found = scores[:, :groups].copy()
    for first in range(groups, scores.shape[1], groups):
        part = scores[:, first : first + groups]
        np.maximum(found[:, : part.shape[1]], part, out=found[:, : part.shape[1]])
    return found


def _largest(values: Float32, k: int) -> NDArray[np.int64]:
    count = values.shape[1]
    return np.argpartition(values, count - k, axis=1)[:, count - k :]


def _sorted_top(values: Float32, k: int) -> tuple[NDArray[np.int64], Float32]:
    chosen = _largest(values, k)
    best = np.take_along_axis(values, chosen, 1)
    order = np.argsort(-best, axis=1, kind="stable")
    return np.take_along_axis(chosen, order, 1), np.take_along_axis(best, order, 1)
