"""Subspace iteration on W = sum_c R_c^T R_c, each round's product summed over the silos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shared.method.graph import power
from shared.sums.item_basis import DEGREES, PACKED
from shared.sums.sum import STEP, decode_fixed

Float64 = NDArray[np.float64]
RIDGE = 1e-10  # of the largest number in Q^T Y: below it directions are rounding


def start_directions(seed: int, items: int, rank: int) -> Float64:
    """Omega: orthonormal columns that follow from the run's seed alone, (N, r)."""
    return _orthonormalise(np.random.default_rng([seed, items, rank]).standard_normal((items, rank)))


def next_directions(products: Float64, all_degrees: NDArray[np.int64], exponent: float, *, first: bool) -> Float64:
    """Q of the next round from the sum of the last one, (N, r). first: that was the first one."""
    scale = power(all_degrees.astype(np.float64), -exponent)[:, None]
    return _orthonormalise(scale * products if first else products)


def finish_basis(directions: Float64, products: Float64, *, least: float = 0.0) -> tuple[Float64, Float64]:
    """Orthonormal vectors (N, r) and values (r,), descending, of W ~ Y (Q^T Y)^+ Y^T, with Y = W Q of the last round.

    Nystroem's form. It is never further from W than Q Q^T W Q Q^T, whose frequencies are those of a half round before.
    least: the size of the products' errors, which are all that Q^T Y has below it.
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
    """Each vector's largest entry is positive, so that a basis is the same wherever it is computed."""
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
    """What sums tell of W: directions Q (N, k), orthonormal, and W Q (N, k).

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
        """Of the next round, (N, 2 w): where W has sent the last ones; in the second one as many random ones too."""
        last = self.products[:, -2 * self.words :]
        more = _draw(self.seed, len(self.degrees), 2 * self.words - last.shape[1], 2)  # none after the second round
        tried = np.hstack([last, _power(self.degrees, self.exponent) * more])
        return self._make_orthogonal(self._make_orthogonal(tried))

    def _make_orthogonal(self, columns: Float64) -> Float64:
        """Orthonormal, and orthogonal to all directions so far; once more takes off what rounding has left."""
        found: Float64 = np.linalg.qr(columns - self.directions @ (self.directions.T @ columns))[0]
        return found

    def learn(self, sums: UInt32) -> ExploredSubspace:
        """With the next round's sums, (N, w)."""
        directions = np.hstack([self.directions, self.next_directions])
        return replace(self, directions=directions, products=np.hstack([self.products, unpack(sums) * self.steps]))

    def finish(self, rank: int) -> tuple[Float64, Float64]:
        """At most `rank` vectors (N, r) and values (r,) of W, descending.

        Q^T W Q is symmetric, so that how far the sums are from it tells how large the errors of a product are:
        rounding, or a silo that was not in each of the rounds.
        """
        core = self.directions.T @ self.products
        error = float(np.sqrt(np.mean((core - core.T) ** 2) / 2.0) * np.sqrt(len(self.degrees)))
        vectors, values = finish_basis(self.directions, self.products, least=error)
        return vectors[:, :rank], values[:rank]


def first_directions(seed: int, items: int, words: int) -> Float64:
    """Omega: orthonormal columns that follow from the run's seed alone, (N, w - 1); one is the same for all items."""
    drawn = _draw(seed, items, words - 1, 1)
    drawn[:, 0] = 1.0
    found: Float64 = np.linalg.qr(drawn)[0]
    return found


def explore(sums: Sequence[Mapping[str, UInt32]], exponent: float, seed: int) -> ExploredSubspace:
    """From the sums of the rounds so far, the first one's first."""
    found = _explore_first(sums[0], exponent, seed)
    for one in sums[1:]:
        found = found.learn(one[PACKED])
    return found


def _explore_first(sums: Mapping[str, UInt32], exponent: float, seed: int) -> ExploredSubspace:
    """As in subspace.py, the first products are A Omega = D^e W (D^e Omega); after them stands diag A."""
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
    """Nearest integers modulo 2^16, two in a word, (N, 2 w) -> (N, w): sums of words are words of the sums.

    The halves are added as one integer, so that what the lower one carries can be taken off the upper one again.
    """
    whole = np.rint(numbers).astype(np.int64)
    words = whole.shape[1] // 2
    found: UInt32 = (whole[:, :words] + (whole[:, words:] << HALF_BITS)).astype(np.uint32)
    return found


def unpack(sums: UInt32) -> Float64:
    """The integers, each of which has to lie within +-2^15, (N, 2 w)."""
    low = sums.astype(np.uint16).view(np.int16).astype(np.int64)
    high = ((sums.astype(np.int64) - low) >> HALF_BITS).astype(np.uint16).view(np.int16)
    return np.hstack([low.astype(np.float64), high.astype(np.float64)])


def _draw(seed: int, items: int, count: int, number: int) -> Float64:
    """Of round `number`, normal, (N, count)."""
    return np.random.default_rng([seed, items, count, number]).standard_normal((items, count))


def _power(degrees: NDArray[np.int64], exponent: float) -> Float64:
    """(N, 1)."""
    found: Float64 = (degrees.astype(np.float64) ** exponent)[:, None]
    return found
