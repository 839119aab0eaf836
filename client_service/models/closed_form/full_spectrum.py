"""Low-pass filter over all frequencies: ridge response for low ones, linear for high ones.

The model's own convolution has Phi frequencies. On sparse graphs much of the information on a user lies above them, so
this filter treats the low ones exactly and all others linearly, which takes only products with the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.compiled.top_items import inner_products
from client_service.models.closed_form.scorer_part import ItemWeights, ScorerPart, SummedPairs, TrainingGraph
from shared.method.graph import Float64, degree_power, degrees, normalise
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum

EXPONENT = 0.25  # of the degree normalisation: halfway between none and the Laplacian's
COMPONENTS = 128
DENSE_ITEMS = 4096  # most items for which the whole item-item matrix is stored, 16 N^2 bytes at most
SPARSE = 0.01  # share of users who have an item of a basket, below which a product by them alone is faster
MOST_OWN = 0.95  # of an item's score that may come from itself
RIDGES, USUAL_RIDGE = (3.0, 10.0, 20.0), 10.0
LEVEL = 10.0  # of the filter on sums, in units of the mean of diag W; chosen once, on ml-100k and lastfm


@dataclass(frozen=True)
class FullSpectrum:
    """Scores of a basket by a graph filter over all frequencies.

    f = x D^-a W D^a / (1 - diag W) of a basket x (N,), with W = V diag(h - c s^2) V^T + c R^T R and a zero diagonal. R
    = D_u^-a X D_i^-a with its lowest frequencies s, V; h = s^2 / (s^2 + lambda); c = 1 / (lambda + s_last^2 / 2), the
    line through h at half of the last square kept. lambda = ridge x the mean of diag R^T R. As in EASE an item has no
    weight for itself.
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
        """Normalises baskets (B, N) by the items' degrees, x D^-a."""
        return sparse.csr_array(baskets * self.entry[None, :])

    def decode(self, entered: sparse.csr_array) -> Float32:
        """Computes the scores of all items, (B, N), from normalised baskets (B, N)."""
        return self.combine(entered, self.propagate(entered))

    def propagate(self, entered: sparse.csr_array) -> Float32 | None:
        """Computes two steps on the graph, x D^-a R^T R, for normalised baskets (B, N).

        None if the whole matrix W is stored, which needs no steps.
        """
        if self.weights is not None:
            return None
        users = entered @ self.turned
        if users.nnz < SPARSE * users.shape[0] * users.shape[1]:
            return (users @ self.graph).toarray()  # type: ignore[no-any-return]
        return np.ascontiguousarray((self.turned @ users.toarray().T).T)

    def combine(self, entered: sparse.csr_array, propagated: Float32 | None) -> Float32:
        """Computes the scores of all items from normalised baskets (B, N) and their two steps.

        `propagated` is not changed.
        """
        if propagated is None:
            assert self.weights is not None
            whole: Float32 = entered @ self.weights
            return whole * self.exit
        found = inner_products((entered @ self.low) * self.response, self.turned_low.T)
        found += propagated * self.slope
        found[np.repeat(np.arange(entered.shape[0]), np.diff(entered.indptr)), entered.indices] -= (
            entered.data * self.own[entered.indices]
        )
        found *= self.exit
        return found

    def contributions(self, basket: NDArray[np.int64], columns: NDArray[np.int64]) -> Float32:
        """Computes the weights of these rows and columns, (b, n).

        D^-a W D^a / (1 - diag W).
        """
        found: Float32
        if self.weights is not None:
            found = self.weights[np.ix_(basket, columns)]
        else:
            propagated: Float32 = (self.turned[basket] @ sparse.csr_array(self.turned[columns].T)).toarray()
            found = (self.low[basket] * self.response) @ self.turned_low[:, columns] + self.slope * propagated
            found -= np.where(basket[:, None] == columns, self.own[basket, None], np.float32(0.0))
        return self.entry[basket, None] * found * self.exit[columns]


def filter_scores_of_each(filters: Sequence[FullSpectrum], baskets: sparse.csr_array) -> Iterator[Float32]:
    """Yields the scores of all items by each of several filters.

    Scores are (B, N); the filters differ in the ridge alone.
    """
    entered = filters[0].encode(baskets)
    propagated = filters[0].propagate(entered)
    return (one.combine(entered, propagated) for one in filters)


def full_spectra(interactions: sparse.csr_array, spectrum: Spectrum, ridges: Sequence[float]) -> list[FullSpectrum]:
    """Builds the filter of a training graph (M, N) for each ridge, in float32.

    The filters share the arrays that do not depend on the ridge.
    """
    graph = normalise(interactions, EXPONENT)
    own = np.asarray(graph.power(2).sum(axis=0)).ravel()  # diag R^T R
    walk = graph.astype(np.float32)
    turned = sparse.csr_array(walk.T)
    pairs: Float32 | None = (turned @ walk).toarray() if interactions.shape[1] <= DENSE_ITEMS else None
    _, by_item = degrees(interactions)
    entry = degree_power(by_item, -EXPONENT).astype(np.float32)
    low: Float32 = np.ascontiguousarray(spectrum.items, dtype=np.float32)
    turned_low: Float32 = np.ascontiguousarray(low.T)

    def build(ridge: float) -> FullSpectrum:
        response, slope = _line(spectrum, ridge * own.mean())
        diagonal = (spectrum.items**2) @ response + slope * own
        leave = (degree_power(by_item, EXPONENT) / (1.0 - np.minimum(diagonal, MOST_OWN))).astype(np.float32)
        kept, straight, own_part = response.astype(np.float32), np.float32(slope), diagonal.astype(np.float32)
        low_part: Float32 = low * kept
        weights = None if pairs is None else _dense(low_part @ low.T, straight * pairs)
        return FullSpectrum(weights, entry, leave, own_part, low, turned_low, kept, straight, walk, turned)

    return [build(ridge) for ridge in ridges]


def _line(spectrum: Spectrum, level: float) -> tuple[Float64, float]:
    """Computes the response above the line for each frequency kept, and the line's slope.

    h - c s^2, and c.
    """
    squares = spectrum.singular**2
    slope = float(1.0 / (level + squares[-1] / 2.0))
    found: Float64 = squares / (squares + level) - slope * squares
    return found, slope


def _dense(weights: Float32, propagated: Float32) -> Float32:
    weights += propagated
    np.fill_diagonal(weights, 0.0)
    return weights


def make_filters(graph: TrainingGraph, ridges: Sequence[float]) -> list[FullSpectrum]:
    """Builds the filter of a graph for each ridge, on one spectrum."""
    return full_spectra(graph.interactions, graph.low_frequencies(COMPONENTS, EXPONENT), ridges)


def filter_weights(graph: Float32, values: Float64, vectors: Float64) -> Float32:
    """Computes the item weights of the filter from an item graph and its spectrum.

    All are (C, C). V diag(h - c s^2) V^T + c W, over 1 - its diagonal; see `FullSpectrum`.
    """
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


def filter_from_sums(pairs: SummedPairs) -> ItemWeights:
    """Builds the filter of the item graph W of all silos, scaled by its degrees."""
    weights = filter_weights(pairs.graph, *pairs.frequencies)
    weights *= degree_power(pairs.degrees, -pairs.exponent).astype(np.float32)[:, None]
    weights *= degree_power(pairs.degrees, pairs.exponent).astype(np.float32)
    return ItemWeights(weights)


FILTER = ScorerPart(
    name="filter",
    weight=1.0,
    settings=lambda _: RIDGES,
    usual=USUAL_RIDGE,
    make=lambda graph, ridge: make_filters(graph, (ridge,))[0],
    make_each=make_filters,
    score_each=filter_scores_of_each,
    from_sums=filter_from_sums,
)
