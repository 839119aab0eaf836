"""Subspace iteration that keeps the products of all rounds, with half the bits from the second round on.

Each round tries directions that are orthogonal to all before, so that after T of them W is known on T blocks and not on
one (block Krylov; Musco and Musco, arXiv 1504.05477). The first round sends its products in fixed point, a word each;
one of its directions is the same for all items, and one word has the diagonal of A in place of a product. From then on
it is known what no product can exceed: |(W q)_i| <= sqrt(W_ii lambda_1), and lambda_1 <= max_i (W x)_i / x_i for any
positive x (Collatz and Wielandt), here D_i^e 1. So 16 bits are enough, and two products share a word of 32.
The sum alone has to fit: a silo's own part may wrap around.

Shapes: N items of the catalogue, k directions that have been tried, w words of an item and round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from client_service.basis.subspace import finish_basis
from shared.strategies.common_basis import DEGREES, PACKED, STEP, decode_products

Float64 = NDArray[np.float64]
UInt32 = NDArray[np.uint32]
HALF_BITS = 16
MOST_SILOS = 10_000
ROUNDING = MOST_SILOS * STEP / 2.0  # of a number in the first sum, at most
ROOM = 2.0 ** (HALF_BITS - 1) - MOST_SILOS / 2  # steps, for a product: each silo may round half a step up


@dataclass(frozen=True)
class Explored:
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
        return self._beside(self._beside(tried))

    def _beside(self, columns: Float64) -> Float64:
        """Orthonormal, and orthogonal to all directions so far; once more takes off what rounding has left."""
        found: Float64 = np.linalg.qr(columns - self.directions @ (self.directions.T @ columns))[0]
        return found

    def learn(self, sums: UInt32) -> Explored:
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


def explore(sums: Sequence[Mapping[str, UInt32]], exponent: float, seed: int) -> Explored:
    """From the sums of the rounds so far, the first one's first."""
    found = _explore_first(sums[0], exponent, seed)
    for one in sums[1:]:
        found = found.learn(one[PACKED])
    return found


def _explore_first(sums: Mapping[str, UInt32], exponent: float, seed: int) -> Explored:
    """As in subspace.py, the first products are A Omega = D^e W (D^e Omega); after them stands diag A."""
    degrees = np.maximum(sums[DEGREES].astype(np.int64), 1)
    items, words = sums[PACKED].shape
    start, scale = first_directions(seed, items, words), _power(degrees, exponent)
    directions, change = np.linalg.qr(scale * start)
    sent = decode_products(sums[PACKED])
    entered = sent[:, :-1] / scale
    positive, diagonal = ((np.abs(sent[:, [one]]) + ROUNDING) / scale**2 for one in (0, -1))
    largest = float((positive / np.abs(start[:, :1])).max())
    products = np.linalg.solve(change.T, entered.T).T
    return Explored(directions, products, degrees, exponent, seed, words, np.sqrt(largest * diagonal) / ROOM)


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
