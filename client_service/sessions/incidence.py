"""Pairs of rows and columns -> sparse matrices that count them, or say that they occur."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from client_service.sessions.prefixes import Int64


def count_pairs(rows: Int64, columns: Int64, shape: tuple[int, int]) -> sparse.csr_array:
    """How often each pair occurs, float32."""
    ones = np.ones(len(rows), dtype=np.float32)
    return sparse.csr_array(sparse.coo_array((ones, (rows, columns)), shape=shape))


def occurring_pairs(rows: Int64, columns: Int64, shape: tuple[int, int]) -> sparse.csr_array:
    """1 where a pair occurs, float32."""
    found = count_pairs(rows, columns, shape)
    found.data[:] = 1.0
    return found


def scale_rows(matrix: sparse.csr_array, weights: np.ndarray) -> sparse.csr_array:
    """Each row times its weight."""
    found = matrix.copy()
    found.data = found.data * np.repeat(weights, np.diff(found.indptr)).astype(found.data.dtype)
    return found
