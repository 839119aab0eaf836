"""Low end of a graph's spectrum, by block Lanczos on its normalised interaction matrix."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shared.cores import map_in_threads
from shared.method.graph import Float64, normalise

if TYPE_CHECKING:  # an aggregator imports this module, and decomposes a graph only where a method has an anchor
    from scipy import sparse

BLOCK = 16
PARTS = 4  # slices of the rows, the same number on every machine, so that sums are rounded alike
MOST_NUMBERS = 40_000_000  # numbers of the basis, 320 MB; a larger basis restarts from its best vectors
DEPENDENT = 1e-8  # part of a vector's length outside the basis, below which it is mostly rounding
START_SEED = 7


@dataclass(frozen=True)
class Accuracy:
    """Accuracy to which leading vectors are computed.

    tolerance: |A^T A v - s^2 v| of each vector, as a share of the largest s^2. dtype: of the numbers. checks: how
    many times the error is checked while the basis grows by as many vectors as are asked for.
    """

    tolerance: float
    dtype: type[np.floating[Any]]
    checks: int = 1

    def step(self, count: int) -> int:
        """Returns how many vectors the basis grows by between two checks.

        It is a multiple of BLOCK.
        """
        return max(1, count // (BLOCK * self.checks)) * BLOCK


TRAINING = Accuracy(1e-9, np.float64)
"""Accuracy of spectra that a model is trained on: a digest of training depends on every bit."""
RANKING = Accuracy(1e-4, np.float32, checks=2)
"""Accuracy of spectra of scorers that only rank: the same lists in a third of the time (docs/performance.md)."""


def leading_vectors(matrix: sparse.csr_array, count: int, accuracy: Accuracy = TRAINING) -> Float64:
    """Computes the leading right singular vectors of a matrix.

    A is (M, N), the result V (N, count), in descending order of the singular values.

    `count` is at least BLOCK and well below N: see `low_spectrum`. The same bits on any number of cores.
    """
    basis = _Basis(_Gram(matrix.astype(accuracy.dtype, copy=False)), count)
    step = accuracy.step(count)
    while True:
        basis.grow()
        if basis.full or (basis.size >= 2 * count and basis.size % step == 0):
            values, vectors, errors = basis.solve()
            if errors[-count:].max() <= accuracy.tolerance * values[-1]:
                return np.ascontiguousarray(basis.turned(vectors[:, -count:])[::-1].T)
            if basis.full:
                basis.restart(values, vectors)


class _Gram:
    """Operator x (N, b) to A^T A x, computed by rows in parts."""

    def __init__(self, matrix: sparse.csr_array) -> None:
        turned = matrix.T.tocsr()
        self.size, self.dtype = turned.shape[0], matrix.dtype
        self._halves = [[half[rows] for rows in _parts(half.shape[0])] for half in (matrix, turned)]

    def __matmul__(self, block: Float64) -> Float64:
        for half in self._halves:
            block = np.concatenate(map_in_threads(lambda rows, block=block: rows @ block, half))  # type: ignore[misc]
        return block


@dataclass
class _Basis:
    """Orthonormal rows Q (j, N) and H = Q A^T A Q^T.

    following (b, N): the next block. link: what joins it to the last.
    """

    gram: _Gram
    count: int
    size: int = 0
    link: Float64 = field(default_factory=lambda: np.zeros((BLOCK, BLOCK)))

    def __post_init__(self) -> None:
        width, dtype = self.gram.size, self.gram.dtype
        self.kept = (-(-self.count // BLOCK) + 1) * BLOCK  # more than are asked for: the last converge the sooner
        self.most = max(2 * self.kept, min(MOST_NUMBERS // width, width - 2 * BLOCK)) // BLOCK * BLOCK
        self.rows = np.empty((self.most, width), dtype)
        self.projected = np.zeros((self.most, self.most))
        start = np.random.default_rng(START_SEED).standard_normal((width, BLOCK))
        self.following = np.linalg.qr(start)[0].T.astype(dtype, copy=False)
        self.parts = _parts(width)

    @property
    def full(self) -> bool:
        return bool(self.size + BLOCK > self.most)

    def grow(self) -> None:
        """Adds the next block. H gets the block's products with the basis."""
        here = slice(self.size, self.size + BLOCK)
        self.rows[here] = self.following
        self.size += BLOCK
        product = np.ascontiguousarray((self.gram @ np.ascontiguousarray(self.following.T)).T)
        recent = max(0, self.size - 2 * BLOCK)
        common = np.zeros((BLOCK, self.size))
        common[:, recent:] = self._without_basis(product, recent)  # nearly all of it: the rest is what rounding leaves
        common += self._without_basis(product)
        self.projected[: self.size, here] = common.T
        self.following, self.link = self._orthonormal(product)

    def solve(self) -> tuple[Float64, Float64, Float64]:
        """Computes the largest eigenvalues of H, ascending, their vectors, and their errors."""
        from scipy import linalg

        upper = np.triu(self.projected[: self.size, : self.size])
        whole = upper + np.triu(upper, 1).T
        values, vectors = linalg.eigh(whole, subset_by_index=[self.size - self.kept, self.size - 1])
        return values, vectors, np.linalg.norm(self.link @ vectors[-BLOCK:], axis=0)

    def turned(self, vectors: Float64) -> Float64:
        """Computes vectors^T Q."""
        rows, vectors = self.rows[: self.size], vectors.astype(self.rows.dtype, copy=False)
        return np.concatenate(map_in_threads(lambda part: vectors.T @ rows[:, part], self.parts), axis=1)

    def restart(self, values: Float64, vectors: Float64) -> None:
        """Keeps the best vectors and the next block, which is orthogonal to them."""
        self.rows[: self.kept] = self.turned(vectors)
        self.size = self.kept
        self.projected[:] = 0.0
        np.fill_diagonal(self.projected[: self.size, : self.size], values)

    def _without_basis(self, block: Float64, first: int = 0) -> Float64:
        """Subtracts from the block (b, N), in place, its part in the basis.

        From row `first` of the basis on; returns the products, (b, j).
        """
        rows = self.rows[first : self.size]
        common: Float64 = sum(map_in_threads(lambda part: block[:, part] @ rows[:, part].T, self.parts))  # type: ignore[assignment]

        def take(part: slice) -> None:
            block[:, part] -= common @ rows[:, part]

        map_in_threads(take, self.parts)
        return common

    def _orthonormal(self, block: Float64) -> tuple[Float64, Float64]:
        """Factors a block into orthonormal rows orthogonal to the basis, and R.

        X, R with R^T X = block, also where the block has nothing new.
        """
        found, link = _orthonormal_columns(block)
        if np.abs(np.diag(link)).min() > DEPENDENT * np.abs(np.diag(self.projected)).max():
            return found.T, link
        for _ in range(2):
            rest = np.ascontiguousarray(found.T)
            self._without_basis(rest)
            found, again = np.linalg.qr(rest.T)
            link = again @ link
        return found.T, link


def _orthonormal_columns(rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Factors rows^T (N, b) into X R with orthonormal columns X (N, b).

    In float32 two Cholesky factorings of b x b products do it, in a fifth of the time of Householder reflections.
    """
    if rows.dtype != np.float32:
        found, upper = np.linalg.qr(rows.T)
        return found, upper
    from scipy import linalg

    link = np.eye(len(rows))
    try:
        for _ in range(2):
            upper = linalg.cholesky((rows @ rows.T).astype(np.float64))
            rows = linalg.inv(upper).T.astype(np.float32) @ rows
            link = upper @ link
    except linalg.LinAlgError:  # the rows are nearly linearly dependent
        found, upper = np.linalg.qr(rows.T)
        return found, upper @ link
    return rows.T, link


def _parts(length: int) -> list[slice]:
    """Splits a length into PARTS slices of nearly equal length."""
    step = -(-length // PARTS)
    return [slice(first, min(first + step, length)) for first in range(0, length, step)]


DENSE_LIMIT = 256  # below this many rows or columns a dense decomposition is both faster and exact
BLOCK_COUNT, BLOCK_SHARE = 64, 32  # block method: 64 vectors or more, each side of the matrix 32 times as long
NULL = 1e-9  # a singular value below this is zero up to rounding


@dataclass(frozen=True)
class Spectrum:
    """Phi largest singular triplets of R_hat, in descending order.

    singular (Phi,), users (M, Phi), items (N, Phi): orthonormal columns; a node without an edge has a zero row.
    """

    singular: Float64
    users: Float64
    items: Float64

    @property
    def eigenvalues(self) -> Float64:
        """Phi smallest Laplacian eigenvalues lambda = 1 - s, ascending, in [0, 1]."""
        return np.clip(1.0 - self.singular, 0.0, None)

    @property
    def basis(self) -> Float64:
        """P (M + N, Phi): the Laplacian's eigenvectors [u; v] / sqrt(2)."""
        basis: Float64 = np.concatenate([self.users, self.items])
        basis /= np.sqrt(2.0)
        return basis

    def cut(self, cutoff: int) -> Spectrum:
        """Returns the spectrum with at most `cutoff` components."""
        return replace(
            self, singular=self.singular[:cutoff], users=self.users[:, :cutoff], items=self.items[:, :cutoff]
        )

    def ranking_spectrum(self, interactions: sparse.csr_array, cutoff: int, exponent: float) -> Spectrum:
        """Computes a further spectrum of the same graph for scorers that only rank.

        The graph is normalised by another power of the degrees.
        """
        return low_spectrum(interactions, cutoff, exponent, accuracy=RANKING)


def low_spectrum(
    interactions: sparse.csr_array,
    cutoff: int,
    exponent: float = 0.5,
    added: float = 0.0,
    accuracy: Accuracy = TRAINING,
) -> Spectrum:
    """Computes the lowest frequencies of a graph (Section 3.2).

    The result is float64 with fixed signs; Phi = min(cutoff, min(M, N) - 1, rank). With one user or one item a single
    component is returned, since nothing smaller exists. Directions of singular value zero carry no edge and are left
    out. added: to the degrees, see `normalise`. accuracy: of vectors computed by blocks, as in large graphs alone.
    """
    matrix = normalise(interactions, exponent, added)
    count = max(1, min(cutoff, min(matrix.shape) - 1))
    dense = min(matrix.shape) <= max(DENSE_LIMIT, 2 * count)
    left, singular, right = _dense(matrix, count) if dense else _iterative(matrix, count, accuracy)
    rank = max(1, int((singular > NULL).sum()))
    wide = (part.astype(np.float64, copy=False) for part in (left[:, :rank], singular[:rank], right[:, :rank]))
    return _orient(*wide)


def _dense(matrix: sparse.csr_array, count: int) -> tuple[Float64, Float64, Float64]:
    from scipy import linalg

    left, singular, right = linalg.svd(matrix.toarray(), full_matrices=False)
    return left[:, :count], singular[:count], right[:count].T


def _iterative(matrix: sparse.csr_array, count: int, accuracy: Accuracy) -> tuple[Float64, Float64, Float64]:
    if count >= BLOCK_COUNT and min(matrix.shape) >= BLOCK_SHARE * count:
        return _by_blocks(matrix, count, accuracy)
    from scipy.sparse.linalg import svds

    start = np.random.default_rng(START_SEED).standard_normal(min(matrix.shape))
    left, singular, right = svds(matrix, k=count, v0=start, solver="arpack")
    order = np.argsort(-singular, kind="stable")
    return left[:, order], np.asarray(singular, dtype=np.float64)[order], right[order].T


def _by_blocks(matrix: sparse.csr_array, count: int, accuracy: Accuracy) -> tuple[Float64, Float64, Float64]:
    """Computes the vectors of the smaller side by blocks, then those of the other.

    The others and the values follow from a small decomposition.
    """
    from scipy import linalg

    if matrix.shape[0] < matrix.shape[1]:
        right, singular, left = _by_blocks(matrix.T.tocsr(), count, accuracy)
        return left, singular, right
    matrix = matrix.astype(accuracy.dtype, copy=False)
    vectors = leading_vectors(matrix, count, accuracy)
    across, upper = _orthonormal_columns((matrix @ vectors).T)  # an SVD of all rows takes five times as long
    left, singular, turn = linalg.svd(upper)
    return across @ left, singular, vectors @ turn.T


def _orient(left: Float64, singular: Float64, right: Float64) -> Spectrum:
    """Fixes the sign of each singular pair: the item vector's largest entry is positive."""
    peak = np.argmax(np.abs(right), axis=0)
    sign = np.where(np.take_along_axis(right, peak[None], axis=0)[0] < 0, -1.0, 1.0)
    return Spectrum(singular, left * sign, right * sign)
