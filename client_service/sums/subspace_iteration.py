"""Subspace iteration on W = sum_c R_c^T R_c, each round's product summed over the silos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shared.method.graph import degree_power
from shared.sums.item_basis import DEGREES, PACKED
from shared.sums.sum import STEP, decode_fixed

Float64 = NDArray[np.float64]
RIDGE = 1e-10  # of the largest number in Q^T Y: below it directions are rounding


def start_directions(seed: int, items: int, rank: int) -> Float64:
    """Draws Omega from the run's seed: orthonormal columns, (N, r)."""
    return _orthonormalise(np.random.default_rng([seed, items, rank]).standard_normal((items, rank)))


def next_directions(products: Float64, all_degrees: NDArray[np.int64], exponent: float, *, first: bool) -> Float64:
    """Computes Q of the next round from the last sum, (N, r).

    first: whether that was the first round's sum.
    """
    scale = degree_power(all_degrees.astype(np.float64), -exponent)[:, None]
    return _orthonormalise(scale * products if first else products)


def finish_basis(directions: Float64, products: Float64, *, least: float = 0.0) -> tuple[Float64, Float64]:
    """Computes orthonormal vectors (N, r) and values (r,), descending, of W.

    W ~ Y (Q^T Y)^+ Y^T, with Y = W Q of the last round: Nystroem's form. It is never further from W than Q Q^T W Q
    Q^T, whose frequencies are those of a half round before. least: the size of the products' errors; Q^T Y has
    nothing else below it.
    """
    core = directions.T @ products
    values, rotation = np.linalg.eigh((core + core.T) / 2.0)
    kept = values > max(RIDGE * values[-1], least)
    root = products @ (rotation[:, kept] / np.sqrt(values[kept]))
    vectors, singular, _ = np.linalg.svd(root, full_matrices=False)
    return fix_signs(vectors), singular**2


def _orthonormalise(columns: Float64) -> Float64:
    found: Float64 = np.linalg.qr(columns)[0]
    return found


def fix_signs(vectors: Float64) -> Float64:
    """Makes each vector's largest entry positive, so that a basis is reproducible."""
    largest = vectors[np.argmax(np.abs(vectors), axis=0), np.arange(vectors.shape[1])]
    found: Float64 = vectors * np.where(largest < 0, -1.0, 1.0)
    return found


UInt32 = NDArray[np.uint32]
HALF_BITS = 16
MOST_SILOS = 10_000
ROUNDING = MOST_SILOS * STEP / 2.0  # of a number in the first sum, at most
ROOM = 2.0 ** (HALF_BITS - 1) - MOST_SILOS / 2  # steps, for a product: each silo may round half a step up


@dataclass(frozen=True)
class ExploredSubspace:
    """Explored part of W: orthonormal directions Q (N, k), and W Q (N, k).

    degrees: (N,), of the items over all silos, at least 1. exponent: e. seed: of the run. words: w. steps: (N, 1), of
    the products from the second round on.
    """

    directions: Float64
    products: Float64
    degrees: NDArray[np.int64]
    exponent: float
    seed: int
    words: int
    steps: Float64

    @cached_property
    def next_directions(self) -> Float64:
        """Directions of the next round, (N, 2 w): the last products, made orthogonal.

        In the second round as many random directions are added.
        """
        last = self.products[:, -2 * self.words :]
        more = _draw(self.seed, len(self.degrees), 2 * self.words - last.shape[1], 2)  # none after the second round
        tried = np.hstack([last, _power(self.degrees, self.exponent) * more])
        return self._make_orthogonal(self._make_orthogonal(tried))

    def _make_orthogonal(self, columns: Float64) -> Float64:
        """Orthonormalises columns against all directions so far.

        The caller does it twice, to remove what rounding has left.
        """
        found: Float64 = np.linalg.qr(columns - self.directions @ (self.directions.T @ columns))[0]
        return found

    def learn(self, sums: UInt32) -> ExploredSubspace:
        """Adds the sums of the next round, (N, w)."""
        directions = np.hstack([self.directions, self.next_directions])
        return replace(self, directions=directions, products=np.hstack([self.products, unpack(sums) * self.steps]))

    def finish(self, rank: int) -> tuple[Float64, Float64]:
        """Computes at most `rank` vectors (N, r) and values (r,) of W, descending.

        Q^T W Q is symmetric, so its asymmetry in the sums measures the errors of a product: rounding, or a silo that
        was not in all rounds.
        """
        core = self.directions.T @ self.products
        error = float(np.sqrt(np.mean((core - core.T) ** 2) / 2.0) * np.sqrt(len(self.degrees)))
        vectors, values = finish_basis(self.directions, self.products, least=error)
        return vectors[:, :rank], values[:rank]


def first_directions(seed: int, items: int, words: int) -> Float64:
    """Draws Omega from the run's seed: orthonormal columns, (N, w - 1).

    The first column is constant.
    """
    drawn = _draw(seed, items, words - 1, 1)
    drawn[:, 0] = 1.0
    found: Float64 = np.linalg.qr(drawn)[0]
    return found


def explore(sums: Sequence[Mapping[str, UInt32]], exponent: float, seed: int) -> ExploredSubspace:
    """Computes the explored subspace from the sums of all rounds so far, in order."""
    found = _explore_first(sums[0], exponent, seed)
    for one in sums[1:]:
        found = found.learn(one[PACKED])
    return found


def _explore_first(sums: Mapping[str, UInt32], exponent: float, seed: int) -> ExploredSubspace:
    """Computes the explored subspace of the first round.

    As in subspace.py, the products are A Omega = D^e W (D^e Omega); after them stands diag A.
    """
    degrees = np.maximum(sums[DEGREES].astype(np.int64), 1)
    items, words = sums[PACKED].shape
    start, scale = first_directions(seed, items, words), _power(degrees, exponent)
    directions, change = np.linalg.qr(scale * start)
    sent = decode_fixed(sums[PACKED])
    entered = sent[:, :-1] / scale
    positive, diagonal = ((np.abs(sent[:, [one]]) + ROUNDING) / scale**2 for one in (0, -1))
    largest = float((positive / np.abs(start[:, :1])).max())
    products = np.linalg.solve(change.T, entered.T).T
    return ExploredSubspace(directions, products, degrees, exponent, seed, words, np.sqrt(largest * diagonal) / ROOM)


def pack(numbers: Float64) -> UInt32:
    """Packs pairs of integers modulo 2^16 into words, (N, 2 w) to (N, w).

    Sums of words are words of the sums: the halves are added as one integer, so that the carry of the lower one can
    be removed from the upper one.
    """
    whole = np.rint(numbers).astype(np.int64)
    words = whole.shape[1] // 2
    found: UInt32 = (whole[:, :words] + (whole[:, words:] << HALF_BITS)).astype(np.uint32)
    return found


def unpack(sums: UInt32) -> Float64:
    """Unpacks the integers, each within +-2^15, (N, 2 w)."""
    low = sums.astype(np.uint16).view(np.int16).astype(np.int64)
    high = ((sums.astype(np.int64) - low) >> HALF_BITS).astype(np.uint16).view(np.int16)
    return np.hstack([low.astype(np.float64), high.astype(np.float64)])


def _draw(seed: int, items: int, count: int, number: int) -> Float64:
    """Draws normal numbers for a round, (N, count)."""
    return np.random.default_rng([seed, items, count, number]).standard_normal((items, count))


def _power(degrees: NDArray[np.int64], exponent: float) -> Float64:
    """Raises degrees to a power, (N, 1)."""
    found: Float64 = (degrees.astype(np.float64) ** exponent)[:, None]
    return found
