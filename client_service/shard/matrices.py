"""Ids -> row numbers, and row numbers -> 0/1 matrices."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from shared.method.graph import interaction_matrix


def row_numbers(ids: pl.Series, listed: pl.Series) -> NDArray[np.int64]:
    """The place of each id in `listed` (sorted, distinct); -1 where it is not listed."""
    codes = ids.cast(pl.Enum(listed), strict=False).to_physical()
    return codes.cast(pl.Int64).fill_null(-1).to_numpy()


def pair_matrix(rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]) -> sparse.csr_array:
    """(E,), (E,) -> (M, N), 0/1, with sorted indices."""
    pairs = interaction_matrix(rows, columns, shape)
    pairs.sort_indices()
    return pairs
