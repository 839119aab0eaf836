"""Weighted least squares on the low frequencies: implicit ALS that starts at the spectrum.

Collaborative Filtering for Implicit Feedback Datasets. Hu, Koren, Volinsky. ICDM 2008; with the frequency-scaled
regularisation of Rendle, Krichene, Zhang, Koren. RecSys 2022. Every user has a response of its own. Here it starts at
the low frequencies instead of noise, so that two half-steps are enough. Several ranks have different errors for the
same user, so that their mean score ranks better than the best of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.compiled.top_items import inner_products
from client_service.models.closed_form.scorer_part import ScorerPart, SummedPairs
from shared.cores import map_in_threads
from shared.method.graph import Float64
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum

BLOCK = 1 << 20  # numbers in the systems and the vectors of the rows that are solved at a time
SLACK = 1.2  # how many times as many entries as another a row has that is solved with it
SIZE = 0.3  # of an entry of the item vectors where the alternation starts


@dataclass(frozen=True)
class Weighting:
    """Settings of weighted least squares.

    ranks: the dimensions d whose scores are averaged. absent: alpha, the weight of an absent interaction. ridge:
    lambda.
    """

    ranks: tuple[int, ...]
    absent: float
    ridge: float


@dataclass(frozen=True)
class LeastSquares:
    """Least squares scorer with given item vectors, (N, d) a rank.

    A basket's vector is the one that explains it best, so strangers are served like users.
    """

    items: Float32
    ranks: tuple[int, ...]
    weighting: Weighting

    def encode(self, baskets: sparse.csr_array) -> Float32:
        """Solves for the user vectors of baskets (B, N), all ranks in one row.

        They are divided by the number of ranks.
        """
        found = [_solve(turned, baskets, self.weighting) for turned in self.rank_systems]
        return np.concatenate(found, axis=1) / np.float32(len(found))

    def decode(self, vectors: Float32) -> Float32:
        """Computes the scores of all items (B, N), the mean over the ranks."""
        return inner_products(vectors, self.items)

    def contributions(self, basket: NDArray[np.int64], columns: NDArray[np.int64]) -> Float32:
        """Computes each basket item's summand in the scores of some items, (b, n).

        v_i A^-1 v_j with A the basket's system; the mean over the ranks.
        """
        strength = self.weighting.ridge * (len(basket) + self.weighting.absent * len(self.items))
        found = np.zeros((len(basket), len(columns)))
        for turned in self.rank_systems:
            own = turned.vectors[basket].astype(np.float64)
            system = own.T @ own + np.diag(turned.shared + strength)
            found += own @ np.linalg.solve(system, turned.vectors[columns].T.astype(np.float64))
        mean: Float32 = (found / len(self.ranks)).astype(np.float32)
        return mean

    def select_items(self, places: NDArray[np.int64]) -> LeastSquares:
        """Returns the scorer with the vectors of these items alone."""
        return replace(self, items=self.items[places])

    @cached_property
    def rank_systems(self) -> list[DiagonalisedVectors]:
        """Shared system of all baskets, for each rank."""
        parts = np.split(self.items, np.cumsum(self.ranks)[:-1], axis=1)
        return [_diagonalise(np.ascontiguousarray(part), self.weighting.absent) for part in parts]


def least_squares(interactions: sparse.csr_array, spectrum: Spectrum, weighting: Weighting) -> LeastSquares:
    """Fits item vectors by one step from the spectrum to the users and one back.

    A rank above Phi is reduced to Phi.
    """
    graph = interactions.astype(np.float32)
    turned = sparse.csr_array(graph.T)
    start = (spectrum.items * np.sqrt(len(spectrum.items)) * SIZE).astype(np.float32)
    ranks = tuple(sorted({min(rank, start.shape[1]) for rank in weighting.ranks}))
    users = (_solve(_diagonalise(start[:, :rank], weighting.absent), graph, weighting) for rank in ranks)
    items = [_solve(_diagonalise(one, weighting.absent), turned, weighting) for one in users]
    return LeastSquares(np.concatenate(items, axis=1), ranks, weighting)


@dataclass(frozen=True)
class DiagonalisedVectors:
    """Vectors of the other side, in axes where the shared matrix is diagonal.

    The shared matrix is the part that all systems have in common. vectors (N + 1, d): the last row is 0, and stands for
    no entry. shared (d,): alpha V^T V in these axes. axes (d, d).
    """

    vectors: Float32
    shared: Float32
    axes: Float32


def _diagonalise(other: Float32, absent: float) -> DiagonalisedVectors:
    wide = other.astype(np.float64)
    shared, axes = np.linalg.eigh(absent * (wide.T @ wide))
    vectors = np.concatenate([other @ axes.astype(np.float32), np.zeros((1, other.shape[1]), np.float32)])
    return DiagonalisedVectors(vectors, np.maximum(shared, 0.0).astype(np.float32), axes.astype(np.float32))


def _solve(turned: DiagonalisedVectors, known: sparse.csr_array, weighting: Weighting) -> Float32:
    """Solves the weighted least squares problem of each row, (B, d).

    w minimises sum_known (1 - wv)^2 + alpha sum_all (wv)^2 + lambda (n + alpha N) |w|^2.
    """
    counts, rank = np.diff(known.indptr), len(turned.shared)
    strength = (weighting.ridge * (counts + weighting.absent * known.shape[1])).astype(np.float32)
    found = np.zeros((known.shape[0], rank), dtype=np.float32)

    def solve(rows: NDArray[np.int64]) -> None:
        found[rows] = _solve_batch(turned, known, rows, turned.shared + strength[rows, None])

    map_in_threads(solve, _batch_rows(counts, rank))
    return found @ turned.axes.T


def _batch_rows(counts: NDArray[np.integer[Any]], rank: int) -> list[NDArray[np.int64]]:
    """Groups rows with a similar number of entries, so that padding stays small.

    Rows without entries are left out.
    """
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


def _solve_batch(
    turned: DiagonalisedVectors, known: sparse.csr_array, rows: NDArray[np.int64], diagonal: Float32
) -> NDArray[np.float32]:
    """Solves the systems of rows that have a similar number of entries, (B, d).

    (D + V^T V) w = V^T 1 with the row's entries' vectors V (n, d) and its diagonal D (d,). Where n < d it is solved by
    the n equations of w = D^-1 V^T (I + V D^-1 V^T)^-1 1, else by the d of w.
    """
    entries, inside = _padded_entries(known, rows)
    vectors = turned.vectors[np.where(inside, entries, len(turned.vectors) - 1)]
    if entries.shape[1] < diagonal.shape[1]:
        scaled = (vectors / diagonal[:, None, :]).transpose(0, 2, 1)
        systems = _add_diagonal(vectors @ scaled, np.float32(1.0))
        return (scaled @ np.linalg.solve(systems, inside.astype(np.float32)[..., None]))[..., 0]
    systems = _add_diagonal(vectors.transpose(0, 2, 1) @ vectors, diagonal)
    return np.linalg.solve(systems, vectors.sum(axis=1)[..., None])[..., 0]


def _add_diagonal(systems: Float32, added: Float32 | np.float32) -> Float32:
    each = np.arange(systems.shape[1])
    systems[:, each, each] += added
    return systems


def _padded_entries(known: sparse.csr_array, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Returns the columns of each row's entries, padded to the longest row.

    Also returns which places hold a real entry. Both are (B, n).
    """
    starts, lengths = known.indptr[rows], np.diff(known.indptr)[rows]
    inside = np.arange(lengths.max()) < lengths[:, None]
    places = np.where(inside, starts[:, None] + np.arange(lengths.max()), 0)
    return known.indices[places].astype(np.int64), inside


WEIGHTINGS = (Weighting((24, 48, 96), 0.3, 0.01), Weighting((64,), 0.03, 0.003))
SUMS_WEIGHTING = Weighting((24, 48, 96), 0.3, 0.05)  # on sums; chosen once, on ml-100k and lastfm
STRETCH = 0.25  # power of a frequency in the item vectors on sums


def squares_from_spectrum(values: Float64, vectors: Float64) -> LeastSquares:
    """Builds the least squares scorer from the spectrum of an item graph.

    Item vectors are given, user vectors are solved for. The item vectors are s^(2 STRETCH) V, scaled to the size at
    which least squares begins.
    """
    ranks = tuple(sorted({min(rank, len(values)) for rank in SUMS_WEIGHTING.ranks}))
    parts = [vectors[:, :rank] * values[:rank] ** STRETCH for rank in ranks]
    scaled = [part * (SIZE / np.sqrt(np.mean(part**2))) for part in parts]
    return LeastSquares(np.concatenate(scaled, axis=1).astype(np.float32), ranks, SUMS_WEIGHTING)


def squares_from_sums(pairs: SummedPairs) -> LeastSquares:
    """Builds the scorer from the frequencies of all silos' graph."""
    return squares_from_spectrum(*pairs.frequencies)


SQUARES = ScorerPart(
    "squares",
    1.0,
    lambda _: WEIGHTINGS,
    WEIGHTINGS[0],
    lambda graph, weighting: least_squares(graph.interactions, graph.spectrum, weighting),
    from_sums=squares_from_sums,
)
