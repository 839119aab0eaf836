"""EASE, the closed-form linear autoencoder (Steck, WWW 2019): users' scores by the smaller side of the graph.

With X (M, N) the training edges and P = (X^T X + ridge I)^-1, the scores are X B with B = I - P diag(P)^-1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import sparse
from scipy.linalg import lapack

from client_service.models.ranker import Rows
from shared.method.parameters import Float32

BLOCK = 1024  # rows at a time


def ease_scores(train: sparse.csr_array, ridge: float) -> Callable[[Rows], Float32]:
    """User rows (B,) -> (B, N). One inverse of min(M, N) rows: n^3 operations, 4 n^2 bytes."""
    binary = train.astype(np.float32)
    by_items = train.shape[1] <= train.shape[0]
    return _by_items(binary, ridge) if by_items else _by_users(binary, ridge)


def ease_weights(train: sparse.csr_array, ridge: float) -> Float32:
    """B, (N, N): its diagonal is zero."""
    inverse = _ridge_inverse(sparse.csr_array(train.T), ridge)
    inverse /= -np.diag(inverse)
    np.fill_diagonal(inverse, 0.0)
    return inverse


def _by_items(train: sparse.csr_array, ridge: float) -> Callable[[Rows], Float32]:
    weights = ease_weights(train, ridge)
    return lambda rows: train[rows] @ weights


def _by_users(train: sparse.csr_array, ridge: float) -> Callable[[Rows], Float32]:
    """X P = K X with K = (X X^T + ridge I)^-1, and diag P = (1 - diag X^T K X) / ridge (Woodbury)."""
    inverse = _ridge_inverse(train, ridge)
    kept = np.zeros(train.shape[1], np.float32)
    for start in range(0, train.shape[0], BLOCK):
        rows = train[start : start + BLOCK]
        kept += np.asarray(rows.multiply(inverse[start : start + BLOCK] @ train).sum(axis=0))
    scale = ridge / (1 - kept)
    return lambda rows: train[rows].toarray() - (inverse[rows] @ train) * scale


def _ridge_inverse(rows: sparse.csr_array, ridge: float) -> Float32:
    """(R R^T + ridge I)^-1, (n, n), in the one matrix that is made."""
    matrix = np.empty((rows.shape[0],) * 2, np.float32)
    across = sparse.csc_array(rows.T)
    for start in range(0, len(matrix), BLOCK):
        matrix[start : start + BLOCK] = (rows[start : start + BLOCK] @ across).toarray()
    matrix.flat[:: len(matrix) + 1] += ridge
    # LAPACK's matrices go by columns: to it this is the transpose, and its lower triangle our upper one.
    factor, failed = lapack.spotrf(matrix.T, lower=1, clean=0, overwrite_a=1)
    inverse, singular = lapack.spotri(factor, lower=1, overwrite_c=1)
    if failed or singular:
        raise np.linalg.LinAlgError(f"expected a ridge that makes the matrix definite, got {ridge:g}")
    return _mirror_upper(inverse.T)


def _mirror_upper(matrix: Float32) -> Float32:
    """The upper triangle on both sides, in place."""
    for start in range(0, len(matrix), BLOCK):
        here, below = slice(start, start + BLOCK), slice(start + BLOCK, None)
        upper = np.triu(matrix[here, here])
        matrix[here, here] = upper + np.triu(upper, 1).T
        matrix[below, here] = matrix[here, below].T
    return matrix
