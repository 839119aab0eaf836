"""Computes the common basis from sums: frequencies of all silos' graph, denoised after noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh

from client_service.sums.silo_sum import Statistics
from client_service.sums.subspace_iteration import ExploredSubspace, finish_basis
from shared.errors import ProtocolError
from shared.sums.item_basis import DEGREES, NOISE, PAIRS, PRODUCTS, WEIGHTED
from shared.sums.sum import decode_fixed

if TYPE_CHECKING:
    from client_service.data.interactions import Shard
    from client_service.sums.common_items import CommonItems

MOST_USERS = 1 << 31  # of an item, over all silos: beyond it a sum has wrapped around
ROWS = 512  # items whose pairs are looked at at a time


@dataclass(frozen=True, eq=False)
class CommonBasis(Statistics):
    """Statistics of the training data of all silos together, over N catalogue items.

    degrees: (N,), interactions of each item. exact: pairs (N, N), number of users who have both items, float32, with
    the degrees on the diagonal. iterated: vectors (N, r) and values (r,), descending, the leading eigenpairs of W =
    R^T R, R = D_u^-e X D_i^-e. items: the list of common items where the silos have summed one; else a shard's places
    are those in the agreed catalogue.
    """

    kind: Literal["exact", "iterated"]
    exponent: float
    degrees: NDArray[np.int64]
    pairs: NDArray[np.float32] | None = None
    vectors: NDArray[np.float32] | None = None
    values: NDArray[np.float64] | None = None
    items: CommonItems | None = field(default=None, kw_only=True)

    def over(self, items: CommonItems) -> Self:
        """Returns the basis over this list of items, without the places that it leaves empty."""
        size = min(len(self.degrees), len(items.listed))
        return replace(
            self,
            items=items,
            degrees=self.degrees[:size],
            pairs=None if self.pairs is None else self.pairs[:size, :size],
            vectors=None if self.vectors is None else self.vectors[:size],
        )

    def place(self, shard: Shard) -> Shard:
        """Returns the shard with its items' places in the basis."""
        return shard if self.items is None else self.items.place(shard, len(self.degrees)).shard

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the arrays by name, with those of the list of items."""
        return super().arrays() | ({} if self.items is None else self.items.arrays())

    @property
    def directions(self) -> int | None:
        """Number of directions in which the sums are known; None for all."""
        return None if self.values is None else len(self.values)

    def metadata(self) -> dict[str, str]:
        """Returns kind, exponent, and how ids are hashed if a list of items was summed."""
        listed = {} if self.items is None else self.items.metadata()
        return {**listed, "kind": self.kind, "exponent": repr(self.exponent)}


def require_possible(basis: CommonBasis) -> CommonBasis:
    """Returns the basis; raises ProtocolError for sums that no data can have.

    Then a silo or the aggregator gave false numbers, and scores would be NaN. False numbers that are possible are
    found by each silo's validation.
    """
    if (wrong := _find_impossible(basis)) is not None:
        words = "a silo or the aggregator gave false numbers; sum anew (lpsfed run --renew-basis), or train without it"
        raise ProtocolError(f"expected sums of the common basis that data can have, got {wrong}: {words}")
    return basis


def _find_impossible(basis: CommonBasis) -> str | None:
    degrees, values = basis.degrees, basis.values
    if ((degrees < 0) | (degrees >= MOST_USERS)).any():
        return "numbers of users below 0 or beyond 2^31"
    if basis.pairs is not None and not degrees.any():
        return "no user of any item"
    if basis.pairs is not None and any((row > most).any() for row, most in _rows(basis.pairs, degrees)):
        return "a pair of items with more users than one of them"
    if values is not None and not (len(values) and np.isfinite(values).all() and values[0] > 0):
        return "no frequency that is a positive number"
    if basis.vectors is not None and not np.isfinite(basis.vectors).all():
        return "directions that are no numbers"
    return None


def _rows(pairs: NDArray[np.float32], degrees: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.float32], ...]]:
    """Yields blocks of rows of the pairs, each with the largest possible counts."""
    rounded = degrees.astype(np.float32)  # as the pairs are
    for first in range(0, len(pairs), ROWS):
        yield pairs[first : first + ROWS], np.minimum(rounded[first : first + ROWS, None], rounded)


def make_exact_basis(sums: Mapping[str, NDArray[np.uint32]], exponent: float) -> CommonBasis:
    """Computes the basis from the sums of an exact basis run."""
    degrees = sums[DEGREES].astype(np.int64)
    pairs = np.zeros((len(degrees),) * 2, np.float32)
    rows, columns = np.triu_indices(len(degrees), 1)
    pairs[rows, columns] = sums[PAIRS]
    pairs += pairs.T
    np.fill_diagonal(pairs, degrees)
    return CommonBasis("exact", exponent, degrees, pairs=pairs)


def make_iterated_basis(known: ExploredSubspace, degrees: NDArray[np.uint32], rank: int) -> CommonBasis:
    """Computes the basis from the sums of all rounds of an iterated basis run."""
    vectors, values = known.finish(rank)
    whole = degrees.astype(np.int64)
    return CommonBasis("iterated", known.exponent, whole, vectors=vectors.astype(np.float32), values=values)


def make_basis_of_last_round(
    sums: Mapping[str, NDArray[np.uint32]], directions: NDArray[np.float64], exponent: float
) -> CommonBasis:
    """Computes the basis from the last products of an iterated basis run, and their directions."""
    vectors, values = finish_basis(directions, decode_fixed(sums[PRODUCTS]))
    degrees = sums[DEGREES].astype(np.int64)
    return CommonBasis("iterated", exponent, degrees, vectors=vectors.astype(np.float32), values=values)


Float64 = NDArray[np.float64]
START_SEED = 7  # of the solver's first vector: the same sum always gives the same basis
EXPONENT = 0.0  # of the items' degrees: few items have a degree that stands out of the noise


def make_noised_basis(sums: Mapping[str, NDArray[np.uint32]], items: int, rank: int) -> CommonBasis:
    """Computes at most `rank` eigenpairs of the noised H, and degrees from its row sums."""
    variance = float(decode_fixed(sums[NOISE])[0])
    matrix = symmetric_matrix(decode_fixed(sums[WEIGHTED]), items)
    if not (variance > 0.0 and matrix.any()):
        raise ProtocolError("expected a sum of the common basis with noise of a variance above 0, got one without")
    values, vectors = leading_frequencies(matrix, rank)
    edge = np.sqrt(2.0 * items * variance)
    kept = max(1, int(np.count_nonzero(values > edge)))  # popularity alone stands out wherever anything does
    values, vectors = shrink(values[:kept], edge), vectors[:, :kept]
    degrees = np.rint(np.maximum((vectors * values) @ vectors.sum(axis=0), 0.0)).astype(np.int64)
    return CommonBasis("iterated", EXPONENT, degrees, vectors=vectors.astype(np.float32), values=values)


def symmetric_matrix(upper: Float64, items: int) -> Float64:
    """Fills a symmetric matrix from its upper triangle by rows, with the diagonal."""
    matrix = np.zeros((items, items))
    rows, columns = np.triu_indices(items)
    matrix[rows, columns] = upper
    matrix[columns, rows] = upper
    return matrix


def leading_frequencies(matrix: Float64, rank: int) -> tuple[Float64, Float64]:
    """Computes at most `rank` largest eigenvalues, descending, and their vectors.

    The largest entry of each vector is positive.
    """
    if rank >= len(matrix) // 2:
        values, vectors = np.linalg.eigh(matrix)
    else:
        start = np.random.default_rng(START_SEED).standard_normal(len(matrix))
        values, vectors = eigsh(matrix, k=rank, which="LA", v0=start)
    order = np.argsort(-values, kind="stable")[:rank]
    values, vectors = values[order], vectors[:, order]
    largest = vectors[np.argmax(np.abs(vectors), axis=0), np.arange(len(values))]
    return values, vectors * np.where(largest < 0, -1.0, 1.0)


def shrink(values: Float64, edge: float) -> Float64:
    """Computes the eigenvalues of the sum without noise from those with noise."""
    found: Float64 = (values + np.sqrt(np.maximum(values**2 - edge**2, 0.0))) / 2.0
    return found


EXACT_EXPONENT = 0.25  # of the item degrees in W = D^-e G D^-e of exact sums
NOISED_USERS = 0.5  # a noised sum weighs a user by 1 / d_u and leaves the items' degrees alone


def degree_exponents(basis: CommonBasis) -> tuple[float, float]:
    """Returns the exponents of user and item degrees in W = R^T R."""
    if basis.kind == "exact":
        return 0.0, EXACT_EXPONENT
    return basis.exponent or NOISED_USERS, basis.exponent
