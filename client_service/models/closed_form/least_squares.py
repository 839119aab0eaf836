"""Training graph -> scores by weighted least squares on a few low frequencies: every user has a response of its own.

Implicit alternating least squares. Hu, Koren, Volinsky. ICDM 2008; with the frequency-scaled regularisation of Rendle,
Krichene, Zhang, Koren. RecSys 2022. Here it starts at the low frequencies instead of noise, so that two half-steps do.
Several ranks see the same users with different errors, so that their mean score ranks better than the best of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.compiled.top_items import inner_products
from client_service.models.closed_form.part import ScorerPart, SummedPairs
from shared.cores import in_threads
from shared.method.graph import Float64
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum

BLOCK = 1 << 20  # numbers in the systems and the vectors of the rows that are solved at a time
SLACK = 1.2  # how many times as many entries as another a row has that is solved with it
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
        found = [_solve(turned, baskets, self.weighting) for turned in self.turned_ranks]
        return np.concatenate(found, axis=1) / np.float32(len(found))

    def decode(self, vectors: Float32) -> Float32:
        """f of every item (B, N), the mean over the ranks."""
        return inner_products(vectors, self.items)

    def contributions(self, basket: NDArray[np.int64], columns: NDArray[np.int64]) -> Float32:
        """v_i A^-1 v_j of the basket's items i and the items j, A the basket's system; the mean over the ranks."""
        strength = self.weighting.ridge * (len(basket) + self.weighting.absent * len(self.items))
        found = np.zeros((len(basket), len(columns)))
        for turned in self.turned_ranks:
            own = turned.vectors[basket].astype(np.float64)
            system = own.T @ own + np.diag(turned.shared + strength)
            found += own @ np.linalg.solve(system, turned.vectors[columns].T.astype(np.float64))
        mean: Float32 = (found / len(self.ranks)).astype(np.float32)
        return mean

    def of_items(self, places: NDArray[np.int64]) -> LeastSquares:
        """Of these items' vectors alone."""
        return replace(self, items=self.items[places])

    @cached_property
    def turned_ranks(self) -> list[TurnedVectors]:
        """Of each rank: what all baskets have in common."""
        parts = np.split(self.items, np.cumsum(self.ranks)[:-1], axis=1)
        return [_turn(np.ascontiguousarray(part), self.weighting.absent) for part in parts]


def least_squares(interactions: sparse.csr_array, spectrum: Spectrum, weighting: Weighting) -> LeastSquares:
    """From the spectrum's item vectors one step to users and one back. A rank above Phi is Phi."""
    graph = interactions.astype(np.float32)
    turned = sparse.csr_array(graph.T)
    start = (spectrum.items * np.sqrt(len(spectrum.items)) * SIZE).astype(np.float32)
    ranks = tuple(sorted({min(rank, start.shape[1]) for rank in weighting.ranks}))
    users = (_solve(_turn(start[:, :rank], weighting.absent), graph, weighting) for rank in ranks)
    items = [_solve(_turn(one, weighting.absent), turned, weighting) for one in users]
    return LeastSquares(np.concatenate(items, axis=1), ranks, weighting)


@dataclass(frozen=True)
class TurnedVectors:
    """The other side's vectors in axes in which what everybody's system has in common is diagonal.

    vectors (N + 1, d): the last is 0, and stands for no entry. shared (d,): alpha V^T V in these axes. axes (d, d).
    """

    vectors: Float32
    shared: Float32
    axes: Float32


def _turn(other: Float32, absent: float) -> TurnedVectors:
    wide = other.astype(np.float64)
    shared, axes = np.linalg.eigh(absent * (wide.T @ wide))
    vectors = np.concatenate([other @ axes.astype(np.float32), np.zeros((1, other.shape[1]), np.float32)])
    return TurnedVectors(vectors, np.maximum(shared, 0.0).astype(np.float32), axes.astype(np.float32))


def _solve(turned: TurnedVectors, known: sparse.csr_array, weighting: Weighting) -> Float32:
    """Each row's minimiser w of sum_known (1 - wv)^2 + alpha sum_all (wv)^2 + lambda (n + alpha N) |w|^2, (B, d)."""
    counts, rank = np.diff(known.indptr), len(turned.shared)
    strength = (weighting.ridge * (counts + weighting.absent * known.shape[1])).astype(np.float32)
    found = np.zeros((known.shape[0], rank), dtype=np.float32)

    def solve(rows: NDArray[np.int64]) -> None:
        found[rows] = _solve_alike(turned, known, rows, turned.shared + strength[rows, None])

    in_threads(solve, _alike(counts, rank))
    return found @ turned.axes.T


def _alike(counts: NDArray[np.integer[Any]], rank: int) -> list[NDArray[np.int64]]:
    """The rows with entries, those of like many together, so that few places are left empty."""
    order = np.argsort(counts, kind="stable")
    ascending, blocks = counts[order], []
    first = int(np.searchsorted(ascending, 0, side="right"))
    while first < len(order):
        most = int(ascending[first] * SLACK) + 1
        step = max(1, BLOCK // (most * rank + min(most, rank) ** 2))
        last = min(int(np.searchsorted(ascending, most, side="right")), first + step)
        blocks.append(order[first:last])
        first = last
    return blocks


def _solve_alike(
    turned: TurnedVectors, known: sparse.csr_array, rows: NDArray[np.int64], diagonal: Float32
) -> NDArray[np.float32]:
    """(D + V^T V) w = V^T 1 of each row with its entries' vectors V (n, d) and its diagonal D (d,), (B, d).

    Where n < d by the n equations of w = D^-1 V^T (I + V D^-1 V^T)^-1 1, else by the d of w.
    """
    entries, inside = _entries(known, rows)
    vectors = turned.vectors[np.where(inside, entries, len(turned.vectors) - 1)]
    if entries.shape[1] < diagonal.shape[1]:
        scaled = (vectors / diagonal[:, None, :]).transpose(0, 2, 1)
        systems = _with_diagonal(vectors @ scaled, np.float32(1.0))
        return (scaled @ np.linalg.solve(systems, inside.astype(np.float32)[..., None]))[..., 0]
    systems = _with_diagonal(vectors.transpose(0, 2, 1) @ vectors, diagonal)
    return np.linalg.solve(systems, vectors.sum(axis=1)[..., None])[..., 0]


def _with_diagonal(systems: Float32, added: Float32 | np.float32) -> Float32:
    each = np.arange(systems.shape[1])
    systems[:, each, each] += added
    return systems


def _entries(known: sparse.csr_array, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The columns of each row's entries, (B, n) with n that of the longest, and which places hold one."""
    starts, lengths = known.indptr[rows], np.diff(known.indptr)[rows]
    inside = np.arange(lengths.max()) < lengths[:, None]
    places = np.where(inside, starts[:, None] + np.arange(lengths.max()), 0)
    return known.indices[places].astype(np.int64), inside


WEIGHTINGS = (Weighting((24, 48, 96), 0.3, 0.01), Weighting((64,), 0.03, 0.003))
SUMS_WEIGHTING = Weighting((24, 48, 96), 0.3, 0.05)  # on sums; chosen once, on ml-100k and lastfm
STRETCH = 0.25  # power of a frequency in the item vectors on sums


def squares_of(values: Float64, vectors: Float64) -> LeastSquares:
    """Each rank's item vectors s^(2 STRETCH) V, at the size at which least squares begin; users are solved for."""
    ranks = tuple(sorted({min(rank, len(values)) for rank in SUMS_WEIGHTING.ranks}))
    parts = [vectors[:, :rank] * values[:rank] ** STRETCH for rank in ranks]
    scaled = [part * (SIZE / np.sqrt(np.mean(part**2))) for part in parts]
    return LeastSquares(np.concatenate(scaled, axis=1).astype(np.float32), ranks, SUMS_WEIGHTING)


def squares_of_sums(pairs: SummedPairs) -> LeastSquares:
    """On the frequencies of all silos' graph."""
    return squares_of(*pairs.frequencies)


SQUARES = ScorerPart(
    "squares",
    1.0,
    lambda _: WEIGHTINGS,
    WEIGHTINGS[0],
    lambda graph, weighting: least_squares(graph.interactions, graph.spectrum, weighting),
    of_sums=squares_of_sums,
)
