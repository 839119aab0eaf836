"""Closed-form scorers from a common basis and a silo's own graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import eigsh

from client_service.models.closed_form.full_spectrum import COMPONENTS, DENSE_ITEMS, MOST_OWN, FullSpectrum
from client_service.models.closed_form.least_squares import squares_from_spectrum
from client_service.models.closed_form.registry import score_sums
from client_service.models.closed_form.scorer_part import ItemScorer, Scorer
from client_service.models.initial_filter import CommonSpectrum
from client_service.sums.basis import EXACT_EXPONENT, CommonBasis, degree_exponents
from client_service.sums.subspace_iteration import fix_signs
from shared.method.graph import Float64, degree_power, degrees
from shared.method.parameters import Float32

START_SEED = 7  # of the solver's first vector: a basis always gives the same scorers

Places = NDArray[np.int64]


def common_scorers(basis: CommonBasis, places: Places, interactions: sparse.csr_array) -> tuple[Scorer, ...]:
    """Builds scorers of a silo's items from all silos' sums.

    Exact sums give EASE, a low-pass filter and least squares; iterated sums the last two. places: (N,), each item's
    row in the catalogue, -1 for an item that is not listed. interactions: (M, N), the silo's own training graph, from
    which unlisted items are scored.
    """
    if basis.pairs is None:
        return _make_direction_scorers(basis, places)
    if (places >= 0).all():
        return tuple(one.select_items(places) for one in _cached_catalogue_scorers(basis).scorers)
    return _make_scorers(shared_pairs(fill_hidden(basis.pairs), places, interactions)).scorers


def fill_hidden(pairs: Float32) -> Float32:
    """Fills hidden pairs with their expected count c d_i d_j, below the smallest shown count.

    c is that of the shown pairs. Where nothing is hidden, the smallest count is 1 and all stays the same. Without
    this, rare items, most of whose pairs are hidden, would seem unrelated.
    """
    degrees, filled = np.diag(pairs).copy(), pairs.copy()
    np.fill_diagonal(filled, 0.0)
    seen = filled > 0
    most = (float(filled[seen].min()) if seen.any() else 1.0) - 1.0
    if most > 0:
        expected = np.outer(degrees, degrees)
        expected *= filled.sum(dtype=np.float64) / expected[seen].sum(dtype=np.float64)
        np.copyto(filled, np.minimum(expected, np.float32(most)), where=~seen)
    np.fill_diagonal(filled, degrees)
    return filled


def shared_pairs(pairs: Float32, places: Places, interactions: sparse.csr_array, weight: float = 1.0) -> Float32:
    """Adds the other silos' pairs to this silo's, on the listed items, (N, N).

    G_c + w (G - G_c) on listed items, G_c elsewhere. The other silos' own sum of squares is added, so the matrix
    stays positive semidefinite for every w in [0, 1]; that fails for a block on another scale, such as a mean over
    silos.
    """
    own: Float32 = (interactions.T @ interactions).toarray().astype(np.float32)
    listed = np.flatnonzero(places >= 0)
    block, rows = np.ix_(listed, listed), places[listed]
    own[block] += np.float32(weight) * (pairs[np.ix_(rows, rows)] - own[block])
    return own


@dataclass(frozen=True)
class PairsOfAll:
    """G of all silos, and what several scorers need of it: see `SummedPairs`."""

    counts: Float32
    exponent: float = EXACT_EXPONENT

    @cached_property
    def degrees(self) -> Float64:
        return np.maximum(np.diag(self.counts), 0.0).astype(np.float64)

    @cached_property
    def graph(self) -> Float32:
        entry = degree_power(self.degrees, -self.exponent)
        found: Float32 = (entry[:, None] * self.counts * entry).astype(np.float32)
        return found

    @cached_property
    def frequencies(self) -> tuple[Float64, Float64]:
        return leading_pairs(self.graph)


class _ScorerCache(NamedTuple):
    """The scorers of a catalogue, and the frequencies of its graph."""

    scorers: tuple[ItemScorer, ...]
    frequencies: tuple[Float64, Float64]


def _make_scorers(counts: Float32) -> _ScorerCache:
    pairs = PairsOfAll(counts)
    return _ScorerCache(score_sums(pairs), pairs.frequencies)


@lru_cache(maxsize=1)
def _cache_cell(digest: str) -> list[_ScorerCache]:
    """Returns the cell that caches a basis's scorers.

    So many silos in one process compute them once.
    """
    del digest
    return []


def _cached_catalogue_scorers(basis: CommonBasis) -> _ScorerCache:
    """Returns the scorers over the whole catalogue; caches the latest unless large."""
    assert basis.pairs is not None
    if len(basis.pairs) > DENSE_ITEMS:
        return _make_scorers(fill_hidden(basis.pairs))
    kept = _cache_cell(basis.digest)
    if not kept:
        kept.append(_make_scorers(fill_hidden(basis.pairs)))
    return kept[0]


def catalogue_frequencies(basis: CommonBasis) -> tuple[Float64, Float64]:
    """Returns the positive eigenvalues (r,) of W, descending, and their vectors (C, r).

    They cover the whole catalogue.
    """
    if basis.pairs is not None:
        return _cached_catalogue_scorers(basis).frequencies
    assert basis.vectors is not None
    assert basis.values is not None
    kept = basis.values > 0
    return basis.values[kept], basis.vectors[:, kept].astype(np.float64)


def find_frame(basis: CommonBasis) -> Float64:
    """Computes the leading vectors (C, r) of W from the sums alone.

    They are the same in every silo.
    """
    if basis.pairs is None:
        return catalogue_frequencies(basis)[1]
    pairs = fill_hidden(basis.pairs)
    entry = degree_power(np.maximum(np.diag(pairs), 0.0).astype(np.float64), -EXACT_EXPONENT)
    return leading_pairs((entry[:, None] * pairs * entry).astype(np.float32))[1]


def leading_pairs(graph: Float32) -> tuple[Float64, Float64]:
    """Computes the leading positive eigenvalues (r,) of W (C, C), descending, and vectors (C, r)."""
    count = min(COMPONENTS, len(graph) - 1)
    if count < 1 or len(graph) <= 2 * COMPONENTS:
        values, vectors = np.linalg.eigh(graph.astype(np.float64))
        values, vectors = values[-max(count, 1) :], vectors[:, -max(count, 1) :]
    else:
        start = np.random.default_rng(START_SEED).standard_normal(len(graph)).astype(np.float32)
        values, vectors = eigsh(graph, k=count, v0=start)
    order = np.argsort(-values, kind="stable")
    kept = order[values[order] > 0]
    return values[kept].astype(np.float64), fix_signs(vectors[:, kept].astype(np.float64))


def _make_direction_scorers(basis: CommonBasis, places: Places) -> tuple[Scorer, ...]:
    """Builds a low-pass filter and least squares from the r frequencies of an iterated basis."""
    assert basis.vectors is not None
    assert basis.values is not None
    values, vectors = basis.values, basis.vectors.astype(np.float64)
    listed = (places >= 0)[:, None]
    own, degrees = np.where(listed, vectors[places], 0.0), np.where(places >= 0, basis.degrees[places], 0)
    squares = squares_from_spectrum(values, vectors)
    known = replace(squares, items=np.where(listed, squares.items[places], np.float32(0.0)))
    return _narrow_filter(values, own, degrees.astype(np.float64), basis.exponent), known


def _narrow_filter(values: Float64, vectors: Float64, degrees: Float64, exponent: float) -> FullSpectrum:
    """Builds the filter of the given frequencies alone, with a zero diagonal.

    x D^-e V h V^T D^e / (1 - diag V h V^T).
    """
    response = values / (values + values[-1])
    diagonal = (vectors**2) @ response
    leave = degree_power(degrees, exponent) / (1.0 - np.minimum(diagonal, MOST_OWN))
    entry, out, own, kept = (
        v.astype(np.float32) for v in (degree_power(degrees, -exponent), leave, diagonal, response)
    )
    low = np.ascontiguousarray(vectors, dtype=np.float32)
    nothing = sparse.csr_array(np.zeros((0, len(vectors)), dtype=np.float32))
    turned_low = np.ascontiguousarray(low.T)
    return FullSpectrum(
        None, entry, out, own, low, turned_low, kept, np.float32(0.0), nothing, sparse.csr_array(nothing.T)
    )


def common_spectrum(
    basis: CommonBasis, places: Places, interactions: sparse.csr_array, cutoff: int, frame: Float64 | None = None
) -> CommonSpectrum:
    """Computes the lowest `cutoff` frequencies of all silos' graph for a shard.

    places (N,): each item's row in the catalogue, -1 for one that is not listed.

    frame: vectors (C, r) that all silos have; then each column is the one most like the frame's, with its sign. So a
    column means nearly the same in all silos, each of which subtracts its own held-out pairs from the sums.
    """
    values, vectors = catalogue_frequencies(basis)
    if frame is not None:
        values, vectors = _match_columns(values, vectors, frame)
    values, vectors = values[:cutoff], vectors[:, :cutoff]
    listed = places >= 0
    items = np.where(listed[:, None], vectors[places], 0.0)
    by_user, by_item = degrees(interactions)
    item_degrees = np.where(listed, basis.degrees[places], by_item).astype(np.float64)
    singular, exponents = np.sqrt(values), degree_exponents(basis)
    entered = degree_power(item_degrees, -exponents[1])[:, None] * items
    users = degree_power(by_user, -exponents[0])[:, None] * (interactions @ entered) / singular
    largest = float(singular.max())
    return CommonSpectrum(singular / largest, users, items, item_degrees, exponents, len(basis.degrees), largest)


def _match_columns(values: Float64, vectors: Float64, frame: Float64) -> tuple[Float64, Float64]:
    """Orders the vectors as the frame's columns: nearly equal frequencies may swap places."""
    from scipy.optimize import linear_sum_assignment  # the package takes a twentieth of a trainer's start

    alike = frame.T @ vectors
    rows, columns = linear_sum_assignment(-np.abs(alike))
    signs = np.where(alike[rows, columns] < 0, -1.0, 1.0)
    return values[columns], vectors[:, columns] * signs
