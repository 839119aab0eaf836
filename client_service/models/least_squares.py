"""Training graph -> scores by weighted least squares on a few low frequencies: every user has a response of its own.

Implicit alternating least squares. Hu, Koren, Volinsky. ICDM 2008; with the frequency-scaled regularisation of Rendle,
Krichene, Zhang, Koren. RecSys 2022. Here it starts at the low frequencies instead of noise, so that two half-steps do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from shared.graph import degrees
from shared.parameters import Float32
from shared.spectrum import Spectrum

BLOCK = 4096  # systems that are solved at a time: bounds memory at BLOCK x d^2
SIZE = 0.3  # of an entry of the item vectors where the alternation starts


@dataclass(frozen=True)
class Weighting:
    """d, the number of low frequencies; alpha, what an absent interaction weighs against one that is there; lambda."""

    rank: int
    absent: float
    ridge: float


@dataclass(frozen=True)
class LeastSquares:
    """Item vectors (N, d). A basket's vector is the one that explains it best, so strangers are served like users."""

    items: Float32
    outer: Float32  # (N, d d): v v^T of each item
    weighting: Weighting

    def scores(self, baskets: sparse.csr_array) -> Float32:
        """f of every item for each basket (B, N)."""
        found: Float32 = _solved(self.items, self.outer, baskets, self.weighting) @ self.items.T
        return found


def least_squares(interactions: sparse.csr_array, spectrum: Spectrum, weighting: Weighting) -> LeastSquares:
    """From the spectrum's item vectors (Phi >= d) one step to users and one back."""
    rank = min(weighting.rank, spectrum.items.shape[1])
    kept = Weighting(rank, weighting.absent, weighting.ridge)
    graph = interactions.astype(np.float32)
    start = (spectrum.items[:, :rank] * np.sqrt(len(spectrum.items)) * SIZE).astype(np.float32)
    users = _solved(start, _outer(start), graph, kept)
    items = _solved(users, _outer(users), sparse.csr_array(graph.T), kept)
    return LeastSquares(items, _outer(items), kept)


def _outer(rows: Float32) -> Float32:
    product: Float32 = (rows[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
    return product


def _solved(other: Float32, outer: Float32, known: sparse.csr_array, weighting: Weighting) -> Float32:
    """Each row's minimiser w of sum_known (1 - wv)^2 + alpha sum_all (wv)^2 + lambda (n + alpha N) |w|^2, (B, d)."""
    count, rank = known.shape[0], other.shape[1]
    everyone = weighting.absent * (other.T @ other)
    strength = weighting.ridge * (degrees(known)[0] + weighting.absent * len(other))
    found = np.empty((count, rank), dtype=np.float32)
    for first in range(0, count, BLOCK):
        rows = slice(first, first + BLOCK)
        systems = (known[rows] @ outer).reshape(-1, rank, rank) + everyone
        systems += strength[rows, None, None].astype(np.float32) * np.eye(rank, dtype=np.float32)
        found[rows] = np.linalg.solve(systems, (known[rows] @ other)[..., None])[..., 0]
    return found
