"""Normalised interaction matrix -> low end of the Laplacian's spectrum, by the bipartite singular value decomposition.

Phi is the cut-off: how many of the lowest frequencies are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg, sparse
from scipy.sparse.linalg import svds

from shared.method.block_lanczos import leading_vectors
from shared.method.graph import Float64, normalise

DENSE_LIMIT = 256  # below this many rows or columns a dense decomposition is both faster and exact
BLOCK_COUNT, BLOCK_SHARE = 64, 32  # so many vectors, of so many times as many rows or columns, are found in blocks
NULL = 1e-9  # a singular value below this is zero up to rounding
START_SEED = 7  # the iterative solver starts from a fixed vector, so that a shard always gives the same basis


@dataclass(frozen=True)
class Spectrum:
    """The Phi largest singular triplets of R_hat, in descending order of the singular value.

    singular (Phi,), users (M, Phi), items (N, Phi): orthonormal columns; a node without an edge has a zero row.
    """

    singular: Float64
    users: Float64
    items: Float64

    @property
    def eigenvalues(self) -> Float64:
        """The Phi smallest Laplacian eigenvalues lambda = 1 - s, ascending, in [0, 1]."""
        values: Float64 = np.clip(1.0 - self.singular, 0.0, None)
        return values

    @property
    def basis(self) -> Float64:
        """P, (M + N, Phi): the Laplacian's eigenvectors [u; v] / sqrt(2)."""
        basis: Float64 = np.concatenate([self.users, self.items]) / np.sqrt(2.0)
        return basis

    def cut(self, cutoff: int) -> Spectrum:
        """The same spectrum with at most `cutoff` components."""
        return Spectrum(self.singular[:cutoff], self.users[:, :cutoff], self.items[:, :cutoff])


def low_spectrum(interactions: sparse.csr_array, cutoff: int, exponent: float = 0.5, added: float = 0.0) -> Spectrum:
    """The lowest frequencies of a graph (Section 3.2), float64, signs fixed: Phi = min(cutoff, min(M, N) - 1, rank).

    With one user or one item a single component is returned, since nothing smaller exists. Directions of singular
    value zero carry no edge and are left out. added: to the degrees, see `normalise`.
    """
    matrix = normalise(interactions, exponent, added)
    count = max(1, min(cutoff, min(matrix.shape) - 1))
    dense = min(matrix.shape) <= max(DENSE_LIMIT, 2 * count)
    left, singular, right = _dense(matrix, count) if dense else _iterative(matrix, count)
    rank = max(1, int((singular > NULL).sum()))
    return _orient(left[:, :rank], singular[:rank], right[:, :rank])


def _dense(matrix: sparse.csr_array, count: int) -> tuple[Float64, Float64, Float64]:
    left, singular, right = linalg.svd(matrix.toarray(), full_matrices=False)
    return left[:, :count], singular[:count], right[:count].T


def _iterative(matrix: sparse.csr_array, count: int) -> tuple[Float64, Float64, Float64]:
    if count >= BLOCK_COUNT and min(matrix.shape) >= BLOCK_SHARE * count:
        return _by_blocks(matrix, count)
    start = np.random.default_rng(START_SEED).standard_normal(min(matrix.shape))
    left, singular, right = svds(matrix, k=count, v0=start, solver="arpack")
    order = np.argsort(-singular, kind="stable")
    return left[:, order], np.asarray(singular, dtype=np.float64)[order], right[order].T


def _by_blocks(matrix: sparse.csr_array, count: int) -> tuple[Float64, Float64, Float64]:
    """The vectors of the smaller side first; those of the other and the values follow from a small decomposition."""
    if matrix.shape[0] < matrix.shape[1]:
        right, singular, left = _by_blocks(sparse.csr_array(matrix.T), count)
        return left, singular, right
    vectors = leading_vectors(matrix, count)
    across, upper = np.linalg.qr(matrix @ vectors)  # a decomposition of all rows takes five times as long
    left, singular, turn = linalg.svd(upper)
    return across @ left, singular, vectors @ turn.T


def _orient(left: Float64, singular: Float64, right: Float64) -> Spectrum:
    """A singular pair is defined up to its sign: make the item vector's largest entry positive."""
    peak = np.argmax(np.abs(right), axis=0)
    sign = np.where(np.take_along_axis(right, peak[None], axis=0)[0] < 0, -1.0, 1.0)
    return Spectrum(singular, left * sign, right * sign)
