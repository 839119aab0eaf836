"""The sum H = X^T D_u^-1 X with known noise in it -> the frequencies that stand out of the noise, as a common basis.

The noise alone is a symmetric matrix of independent normal entries: its eigenvalues lie within s sqrt(2 N), with s^2
the variance on its diagonal and s^2 / 2 beside it. What of H + noise is beyond that edge is kept; the rest is not.
An eigenvalue t > sigma of H, with sigma^2 = N s^2 / 2, comes out as t + sigma^2 / t, and is put back.
All of it follows from what the aggregator hands out, so that it costs nothing of anybody's budget.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh

from client_service.basis.common_basis import CommonBasis
from shared.errors import ProtocolError
from shared.strategies.common_basis import NOISE, WEIGHTED, decode_products

Float64 = NDArray[np.float64]
START_SEED = 7  # of the solver's first vector: the same sum always gives the same basis
EXPONENT = 0.0  # of the items' degrees: few items have a degree that stands out of the noise


def basis_of_noised(sums: Mapping[str, NDArray[np.uint32]], items: int, rank: int) -> CommonBasis:
    """At most `rank` vectors and values of H, and degrees, which are the row sums of H."""
    variance = float(decode_products(sums[NOISE])[0])
    matrix = symmetric_matrix(decode_products(sums[WEIGHTED]), items)
    if not (variance > 0.0 and matrix.any()):
        raise ProtocolError("expected a sum of the common basis with noise of a variance above 0, got one without")
    values, vectors = leading_frequencies(matrix, rank)
    edge = np.sqrt(2.0 * items * variance)
    kept = max(1, int(np.count_nonzero(values > edge)))  # popularity alone stands out wherever anything does
    values, vectors = shrink(values[:kept], edge), vectors[:, :kept]
    degrees = np.rint(np.maximum((vectors * values) @ vectors.sum(axis=0), 0.0)).astype(np.int64)
    return CommonBasis("iterated", EXPONENT, degrees, vectors=vectors.astype(np.float32), values=values)


def symmetric_matrix(upper: Float64, items: int) -> Float64:
    """From its upper triangle by rows, with the diagonal."""
    matrix = np.zeros((items, items))
    rows, columns = np.triu_indices(items)
    matrix[rows, columns] = upper
    matrix[columns, rows] = upper
    return matrix


def leading_frequencies(matrix: Float64, rank: int) -> tuple[Float64, Float64]:
    """The greatest eigenvalues, descending, at most `rank`, and their vectors, each with a positive largest entry."""
    if rank >= len(matrix) // 2:
        values, vectors = np.linalg.eigh(matrix)
    else:
        start = np.random.default_rng(START_SEED).standard_normal(len(matrix))
        values, vectors = eigsh(matrix, k=rank, which="LA", v0=start)
    order = np.argsort(-values, kind="stable")[:rank]
    values, vectors = values[order], vectors[:, order]
    largest = vectors[np.argmax(np.abs(vectors), axis=0), np.arange(len(values))]
    return values, vectors * np.where(largest < 0, -1.0, 1.0)


def shrink(values: Float64, edge: float) -> Float64:
    """Eigenvalues of the sum without noise, for eigenvalues with noise."""
    found: Float64 = (values + np.sqrt(np.maximum(values**2 - edge**2, 0.0))) / 2.0
    return found
