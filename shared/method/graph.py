"""User-item graph: degrees and the normalised interaction matrix.

Shapes used throughout: M users, N items, E edges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # most who import this module need a type of it, and none of the memory that scipy takes
    from scipy import sparse

Float64 = NDArray[np.float64]


def interaction_matrix(users: NDArray[np.int64], items: NDArray[np.int64], shape: tuple[int, int]) -> sparse.csr_array:
    """Makes the 0/1 matrix R (M, N) of index pairs (E,), (E,).

    A pair given twice counts once.
    """
    from scipy import sparse

    ones = np.ones(len(users), dtype=np.float64)
    matrix = sparse.csr_array((ones, (users, items)), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix


def degrees(interactions: sparse.csr_array) -> tuple[Float64, Float64]:
    """Counts the edges of each user (M,) and each item (N,)."""
    by_user, by_item = interactions.sum(axis=1), interactions.sum(axis=0)
    return np.asarray(by_user, dtype=np.float64).ravel(), np.asarray(by_item, dtype=np.float64).ravel()


def degree_power(degree: Float64, exponent: float) -> Float64:
    """Computes degree ** exponent, with 0 for nodes without an edge.

    Their rows stay zero instead of becoming infinite.
    """
    positive = np.maximum(degree, 1.0)
    return np.where(degree > 0, positive**exponent, 0.0)


def normalise(interactions: sparse.csr_array, exponent: float = 0.5, added: float = 0.0) -> sparse.csr_array:
    """Computes R_hat = D_u^-e R D_i^-e, (M, N).

    With e = 1/2 it is the off-diagonal block of I - L, so its singular triplets (u, s, v) give the low end of the
    normalised Laplacian: lambda = 1 - s with eigenvector [u; v] / sqrt(2). added: to each degree, as a multiple of
    the mean degree of the users, and of the items.
    """
    from scipy import sparse

    by_user, by_item = (degree + added * degree.mean() for degree in degrees(interactions))
    rows, columns = (
        sparse.diags_array(degree_power(by_user, -exponent)),
        sparse.diags_array(degree_power(by_item, -exponent)),
    )
    return sparse.csr_array(rows @ interactions @ columns)
