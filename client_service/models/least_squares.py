"""Training graph -> scores by weighted least squares on a few low frequencies: every user has a response of its own.

Implicit alternating least squares. Hu, Koren, Volinsky. ICDM 2008; with the frequency-scaled regularisation of Rendle,
Krichene, Zhang, Koren. RecSys 2022. Here it starts at the low frequencies instead of noise, so that two half-steps do.
Several ranks see the same users with different errors, so that their mean score ranks better than the best of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from shared.method.graph import degrees
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum

BLOCK = 1 << 21  # numbers in the systems that are solved at a time, each block with its own items' outer products
SIZE = 0.3  # of an entry of the item vectors where the alternation starts


@dataclass(frozen=True)
class Weighting:
    """The ranks d whose scores are averaged; alpha, what an absent interaction weighs against one there; lambda."""

    ranks: tuple[int, ...]
    absent: float
    ridge: float


@dataclass(frozen=True)
class LeastSquares:
    """Item vectors, (N, d) a rank, side by side.

    A basket's vector is the one that explains it best, so strangers are served like users.
    """

    items: Float32
    ranks: tuple[int, ...]
    weighting: Weighting

    def encode(self, baskets: sparse.csr_array) -> Float32:
        """Vectors of each basket (B, N) over the number of ranks, side by side like the items' own."""
        found = [_solve(part, baskets, self.weighting) for part in self._by_rank()]
        return np.concatenate(found, axis=1) / np.float32(len(found))

    def decode(self, vectors: Float32) -> Float32:
        """f of every item (B, N), the mean over the ranks."""
        found: Float32 = vectors @ self.items.T
        return found

    def _by_rank(self) -> list[Float32]:
        return [np.ascontiguousarray(part) for part in np.split(self.items, np.cumsum(self.ranks)[:-1], axis=1)]


def least_squares(interactions: sparse.csr_array, spectrum: Spectrum, weighting: Weighting) -> LeastSquares:
    """From the spectrum's item vectors one step to users and one back. A rank above Phi is Phi."""
    graph = interactions.astype(np.float32)
    turned = sparse.csr_array(graph.T)
    start = (spectrum.items * np.sqrt(len(spectrum.items)) * SIZE).astype(np.float32)
    ranks = tuple(sorted({min(rank, start.shape[1]) for rank in weighting.ranks}))
    users = (_solve(start[:, :rank], graph, weighting) for rank in ranks)
    items = [_solve(one, turned, weighting) for one in users]
    return LeastSquares(np.concatenate(items, axis=1), ranks, weighting)


def _outer(rows: Float32) -> Float32:
    product: Float32 = (rows[:, :, None] * rows[:, None, :]).reshape(len(rows), rows.shape[1] ** 2)
    return product


def _own_columns(block: sparse.csr_array) -> tuple[NDArray[np.int64], sparse.csr_array]:
    """The columns with an entry, and the block without all others."""
    present, place = np.unique(block.indices.astype(np.int64), return_inverse=True)
    shape = (block.shape[0], len(present))
    columns: sparse.csr_array = sparse.csr_array((block.data, place, block.indptr), shape=shape)
    return present, columns


def _solve(other: Float32, known: sparse.csr_array, weighting: Weighting) -> Float32:
    """Each row's minimiser w of sum_known (1 - wv)^2 + alpha sum_all (wv)^2 + lambda (n + alpha N) |w|^2, (B, d)."""
    count, rank = known.shape[0], other.shape[1]
    everyone = weighting.absent * (other.T @ other)
    strength = weighting.ridge * (degrees(known)[0] + weighting.absent * len(other))
    found = np.empty((count, rank), dtype=np.float32)
    step = max(1, BLOCK // rank**2)
    for first in range(0, count, step):
        rows = slice(first, first + step)
        present, block = _own_columns(known[rows])
        systems = (block @ _outer(other[present])).reshape(-1, rank, rank) + everyone
        systems += strength[rows, None, None].astype(np.float32) * np.eye(rank, dtype=np.float32)
        found[rows] = np.linalg.solve(systems, (block @ other[present])[..., None])[..., 0]
    return found
