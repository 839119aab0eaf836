"""Sparse matrix of weights, read by rows from mapped arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.arrays import Arrays

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]


def weight_arrays(
    name: str, indptr: NDArray[Any], indices: NDArray[Any], weights: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """Makes the arrays of a sparse matrix under a name."""
    return {
        f"{name}-indptr": indptr.astype(np.int64),
        f"{name}-indices": indices.astype(np.int32),
        f"{name}-weights": weights.astype(np.float32),
    }


class WeightRows:
    """Sparse matrix of weights (N, N), stored by rows."""

    def __init__(self, arrays: Arrays, name: str, count: int) -> None:
        self.indptr, self.indices = arrays[f"{name}-indptr"], arrays[f"{name}-indices"]
        self.weights: Float32 = arrays[f"{name}-weights"]
        if len(self.indptr) != count + 1 or {len(self.indices), len(self.weights)} != {int(self.indptr[-1])}:
            raise ValueError(f"weights of {count:,} rows in {name}-*.npy, got others")

    def select(self, rows: Int64) -> tuple[Int64, Int64, Float32]:
        """Collects the entries of some rows: their places in `rows`, columns and weights."""
        starts, lengths = self.indptr[rows], self.indptr[rows + 1] - self.indptr[rows]
        owners = np.repeat(np.arange(len(rows)), lengths)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        places = starts[owners] + within
        return owners, self.indices[places].astype(np.int64), self.weights[places]

    def row(self, row: int) -> tuple[Int64, Float32]:
        """Returns columns and weights of one row."""
        inside = slice(int(self.indptr[row]), int(self.indptr[row + 1]))
        return self.indices[inside].astype(np.int64), self.weights[inside]
