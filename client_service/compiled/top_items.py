"""Computes scores of blocks of users, and finds each user's best items.

A user's scores do not depend on the other users of the block. Finding the best items costs a twentieth of a partial
sort of all scores.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.method.parameters import Float32

FOLD = 32  # most columns in a group, of which one maximum is taken
SMALL_PRODUCT, MOST_ADDED = 1 << 20, 64  # multiplications up to which BLAS rounds otherwise; most rows that are added
GROUPS = 8  # times k: with fewer groups of columns than this, grouping saves little


def inner_products(users: Float32, items: Float32) -> Float32:
    """Computes the inner products of rows (B, q) and rows (N, q), (B, N).

    BLAS rounds single rows and small products in another way. Rows of zeros are added to these, so that a user's
    scores are the same alone and among others.
    """
    rows = max(2, min(MOST_ADDED, -(-SMALL_PRODUCT // max(1, items.size))))
    if len(users) >= rows:
        found: Float32 = users @ items.T
        return found
    wide = np.zeros((rows, users.shape[1]), dtype=users.dtype)
    wide[: len(users)] = users
    return np.ascontiguousarray((wide @ items.T)[: len(users)])


def top_columns(scores: Float32, k: int) -> tuple[NDArray[np.int64], Float32]:
    """Finds the min(k, N) columns with the highest scores, and these scores.

    scores: (B, N). The best come first, and of equal scores the first column, so that a shorter list is the beginning
    of a longer one. Columns with the score -inf come in any order. The k best lie in the k groups of columns with the
    highest maxima, so that only these groups are sorted.
    """
    count = scores.shape[1]
    k = min(k, count)
    fold = min(FOLD, count // (GROUPS * k))
    if fold < 2:
        found, best = _sorted_top(scores, k)
        tied = np.count_nonzero(scores >= best[:, -1:], axis=1) > k
    else:
        groups = -(-count // fold)
        maxima = _group_maxima(scores, groups)
        chosen = _largest(maxima, k)
        columns = (chosen[:, :, None] + groups * np.arange(fold)).reshape(len(scores), -1)
        outside = columns >= count
        columns[outside] = 0
        values = np.take_along_axis(scores, columns, 1)
        values[outside] = -np.inf
        found, best = _sorted_top(values, k, columns)
        least = best[:, -1:]
        tied = np.count_nonzero(values >= least, axis=1) > k
        tied |= np.count_nonzero(maxima >= least, axis=1) > k
    rows = np.flatnonzero(tied & np.isfinite(best[:, -1]))
    if len(rows):
        found[rows] = _first_of_tied(scores[rows], best[rows, -1], k)
    return found, best


def top_of_row(scores: Float32, k: int) -> tuple[NDArray[np.int64], Float32]:
    """Finds the min(k, N) columns with the highest scores of one row (N,).

    They have the order of `top_columns`. At least k columns reach the k-th highest maximum of the groups of columns,
    and only these are sorted.
    """
    k = min(k, len(scores))
    if k == 0:
        return np.zeros(0, dtype=np.int64), scores[:0]
    groups = len(scores) // max(1, min(FOLD, len(scores) // (GROUPS * k)))
    maxima = scores[: len(scores) // groups * groups].reshape(-1, groups).max(axis=0)
    found = np.flatnonzero(scores >= np.partition(maxima, groups - k)[groups - k])
    best = scores[found]
    order = np.argsort(-best, kind="stable")[:k]
    return found[order], best[order]


def _first_of_tied(scores: Float32, least: Float32, k: int) -> NDArray[np.int64]:
    """Finds the k best columns (B, k) of rows with ties at the last place.

    In these rows, more than k columns have the score `least` (B,) or a higher one.
    """
    rows, columns = np.nonzero(scores >= least[:, None])
    order = np.lexsort((columns, -scores[rows, columns], rows))
    rows, columns = rows[order], columns[order]
    starts = np.searchsorted(rows, np.arange(len(scores)))
    first: NDArray[np.int64] = columns[starts[:, None] + np.arange(k)]
    return first


def _group_maxima(scores: Float32, groups: int) -> Float32:
    """Computes the maxima of groups of columns, (B, groups).

    Group g has the columns g, g + groups, g + 2 groups, ...
    """
    found = scores[:, :groups].copy()
    for first in range(groups, scores.shape[1], groups):
        part = scores[:, first : first + groups]
        np.maximum(found[:, : part.shape[1]], part, out=found[:, : part.shape[1]])
    return found


def _largest(values: Float32, k: int) -> NDArray[np.int64]:
    count = values.shape[1]
    return np.argpartition(values, count - k, axis=1)[:, count - k :]


def _sorted_top(values: Float32, k: int, columns: NDArray[np.int64] | None = None) -> tuple[NDArray[np.int64], Float32]:
    """Finds the k highest values of each row, best first.

    columns: the columns that the values belong to, (B, n); None: their places in the row.
    """
    chosen = _largest(values, k)
    if columns is None:
        found = chosen = np.sort(chosen, axis=1)
    else:
        found = np.take_along_axis(columns, chosen, 1)
        first = np.argsort(found, axis=1)
        found, chosen = np.take_along_axis(found, first, 1), np.take_along_axis(chosen, first, 1)
    best = np.take_along_axis(values, chosen, 1)
    order = np.argsort(-best, axis=1, kind="stable")
    return np.take_along_axis(found, order, 1), np.take_along_axis(best, order, 1)
