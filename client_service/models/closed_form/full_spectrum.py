"""Training graph -> a low-pass score that keeps every frequency: ridge response below, a straight line above.

The model's own convolution sees Phi frequencies. On sparse graphs much of what is known of a user lies above them, so
this filter treats the low ones exactly and all others linearly, which needs no more than products with the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.compiled.top_items import inner_products
from client_service.models.closed_form.part import ItemWeights, ScorerPart, SummedPairs, TrainingGraph
from shared.method.graph import Float64, degrees, normalise, power
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum

EXPONENT = 0.25  # of the degree normalisation: halfway between none and the Laplacian's
COMPONENTS = 128
DENSE_ITEMS = 4096  # up to so many items the whole item-item matrix is kept, 16 N^2 bytes at most
SPARSE = 0.01  # share of users who have an item of a basket, below which a product by them alone is faster
MOST_OWN = 0.95  # of an item's score that may come from itself
RIDGES, USUAL_RIDGE = (3.0, 10.0, 20.0), 10.0
LEVEL = 10.0  # of the filter on sums, in units of the mean of diag W; chosen once, on ml-100k and lastfm


@dataclass(frozen=True)
class FullSpectrum:
    """f of a basket x (N,): x D^-a W D^a / (1 - diag W), with W = V diag(h - c s^2) V^T + c R^T R and a zero diagonal.

    R = D_u^-a X D_i^-a with its lowest frequencies s, V; h = s^2 / (s^2 + lambda); c = 1 / (lambda + s_last^2 / 2), the
    line through h at half of the last square kept. lambda = ridge x the mean of diag R^T R. As in EASE an item does not
    speak for itself.
    """

    weights: Float32 | None  # (N, N), where it fits
    entry: Float32  # (N,) D^-a
    exit: Float32  # (N,) D^a / (1 - diag W)
    own: Float32  # (N,) diag W, which a basket's own items do not get
    low: Float32  # V, (N, Phi), by rows: the product with a sparse basket would copy what is laid out otherwise
    turned_low: Float32  # V^T, (Phi, N), by rows: one basket times it reads memory three times as fast as times V
    response: Float32  # (Phi,) h - c s^2
    slope: np.float32  # c
    graph: sparse.csr_array  # R, (M, N)
    turned: sparse.csr_array  # R^T, (N, M): scipy would turn it anew for each basket

    def encode(self, baskets: sparse.csr_array) -> sparse.csr_array:
        """x D^-a of each basket (B, N)."""
        return sparse.csr_array(baskets * self.entry[None, :])

    def decode(self, entered: sparse.csr_array) -> Float32:
        """f of every item for each x D^-a (B, N)."""
        return self.leave(entered, self.walk(entered))

    def walk(self, entered: sparse.csr_array) -> Float32 | None:
        """x D^-a R^T R of each x D^-a (B, N); None where the whole matrix W is kept, which needs none."""
        if self.weights is not None:
            return None
        users = entered @ self.turned
        if users.nnz < SPARSE * users.shape[0] * users.shape[1]:
            return (users @ self.graph).toarray()  # type: ignore[no-any-return]
        return np.ascontiguousarray((self.turned @ users.toarray().T).T)

    def leave(self, entered: sparse.csr_array, walked: Float32 | None) -> Float32:
        """f of every item for each x D^-a (B, N) and its walk, which is left as it is."""
        if walked is None:
            assert self.weights is not None
            whole: Float32 = entered @ self.weights
            return whole * self.exit
        found = inner_products((entered @ self.low) * self.response, self.turned_low.T)
        found += walked * self.slope
        found[np.repeat(np.arange(entered.shape[0]), np.diff(entered.indptr)), entered.indices] -= (
            entered.data * self.own[entered.indices]
        )
        found *= self.exit
        return found

    def contributions(self, basket: NDArray[np.int64], columns: NDArray[np.int64]) -> Float32:
        """D^-a W D^a / (1 - diag W) of these rows and columns, (b, n)."""
        found: Float32
        if self.weights is not None:
            found = self.weights[np.ix_(basket, columns)]
        else:
            walked: Float32 = (self.turned[basket] @ sparse.csr_array(self.turned[columns].T)).toarray()
            found = (self.low[basket] * self.response) @ self.turned_low[:, columns] + self.slope * walked
            found -= np.where(basket[:, None] == columns, self.own[basket, None], np.float32(0.0))
        return self.entry[basket, None] * found * self.exit[columns]


def filter_scores_of_each(filters: Sequence[FullSpectrum], baskets: sparse.csr_array) -> Iterator[Float32]:
    """f of every item (B, N) by filters of one graph that differ in their ridge, in turn."""
    entered = filters[0].encode(baskets)
    walked = filters[0].walk(entered)
    return (one.leave(entered, walked) for one in filters)


def full_spectra(interactions: sparse.csr_array, spectrum: Spectrum, ridges: Sequence[float]) -> list[FullSpectrum]:
    """The filter of a training graph (M, N) with its spectrum, float32, for each ridge.

    All is common that a ridge does not change.
    """
    graph = normalise(interactions, EXPONENT)
    own = np.asarray(graph.power(2).sum(axis=0)).ravel()  # diag R^T R
    walk = graph.astype(np.float32)
    turned = sparse.csr_array(walk.T)
    pairs: Float32 | None = (turned @ walk).toarray() if interactions.shape[1] <= DENSE_ITEMS else None
    _, by_item = degrees(interactions)
    entry = power(by_item, -EXPONENT).astype(np.float32)
    low: Float32 = np.ascontiguousarray(spectrum.items, dtype=np.float32)
    turned_low: Float32 = np.ascontiguousarray(low.T)

    def build(ridge: float) -> FullSpectrum:
        response, slope = _line(spectrum, ridge * own.mean())
        diagonal = (spectrum.items**2) @ response + slope * own
        leave = (power(by_item, EXPONENT) / (1.0 - np.minimum(diagonal, MOST_OWN))).astype(np.float32)
        kept, straight, own_part = response.astype(np.float32), np.float32(slope), diagonal.astype(np.float32)
        low_part: Float32 = low * kept
        weights = None if pairs is None else _dense(low_part @ low.T, straight * pairs)
        return FullSpectrum(weights, entry, leave, own_part, low, turned_low, kept, straight, walk, turned)

    return [build(ridge) for ridge in ridges]


def _line(spectrum: Spectrum, level: float) -> tuple[Float64, float]:
    """h - c s^2 of each frequency kept, and c."""
    squares = spectrum.singular**2
    slope = float(1.0 / (level + squares[-1] / 2.0))
    found: Float64 = squares / (squares + level) - slope * squares
    return found, slope


def _dense(weights: Float32, walked: Float32) -> Float32:
    weights += walked
    np.fill_diagonal(weights, 0.0)
    return weights


def filters_of_graph(graph: TrainingGraph, ridges: Sequence[float]) -> list[FullSpectrum]:
    """One for each ridge, on one spectrum."""
    return full_spectra(graph.interactions, graph.low_frequencies(COMPONENTS, EXPONENT), ridges)


def filter_weights(graph: Float32, values: Float64, vectors: Float64) -> Float32:
    """V diag(h - c s^2) V^T + c W over 1 - its diagonal, as `FullSpectrum` has it of a graph, (C, C)."""
    own = np.diag(graph).astype(np.float64)
    level = LEVEL * own.mean()
    slope = 1.0 / (level + values[-1] / 2.0)
    response = values / (values + level) - slope * values
    diagonal = (vectors**2) @ response + slope * own
    weights: Float32 = (vectors * response).astype(np.float32) @ vectors.astype(np.float32).T
    weights += np.float32(slope) * graph
    np.fill_diagonal(weights, 0.0)
    weights /= (1.0 - np.minimum(diagonal, MOST_OWN)).astype(np.float32)
    return weights


def filter_of_sums(pairs: SummedPairs) -> ItemWeights:
    """The filter of the graph W of all silos, between its degrees."""
    weights = filter_weights(pairs.graph, *pairs.frequencies)
    weights *= power(pairs.degrees, -pairs.exponent).astype(np.float32)[:, None]
    weights *= power(pairs.degrees, pairs.exponent).astype(np.float32)
    return ItemWeights(weights)


FILTER = ScorerPart(
    name="filter",
    weight=1.0,
    settings=lambda _: RIDGES,
    usual=USUAL_RIDGE,
    make=lambda graph, ridge: filters_of_graph(graph, (ridge,))[0],
    make_each=filters_of_graph,
    score_each=filter_scores_of_each,
    of_sums=filter_of_sums,
)
