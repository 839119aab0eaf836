"""Training graph -> a low-pass score that keeps every frequency: ridge response below, a straight line above.

The model's own convolution sees Phi frequencies. On sparse graphs much of what is known of a user lies above them, so
this filter treats the low ones exactly and all others linearly, which needs no more than products with the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from shared.method.graph import degrees, normalise, power
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum, low_spectrum

EXPONENT = 0.25  # of the degree normalisation: halfway between none and the Laplacian's
COMPONENTS = 128
DENSE_ITEMS = 4096  # up to so many items the whole item-item matrix is kept, 16 N^2 bytes at most
MOST_OWN = 0.95  # of an item's score that may come from itself


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
    low: Float32  # V, (N, Phi)
    response: Float32  # (Phi,) h - c s^2
    graph: sparse.csr_array  # sqrt(c) R, (M, N)
    turned: sparse.csr_array  # R^T sqrt(c), (N, M): scipy would turn it anew for each basket

    def encode(self, baskets: sparse.csr_array) -> sparse.csr_array:
        """x D^-a of each basket (B, N)."""
        return sparse.csr_array(baskets * self.entry[None, :])

    def decode(self, entered: sparse.csr_array) -> Float32:
        """f of every item for each x D^-a (B, N)."""
        if self.weights is not None:
            found: Float32 = entered @ self.weights
            return found * self.exit
        scores: Float32 = ((entered @ self.low) * self.response) @ self.low.T
        walked = (entered @ self.turned) @ self.graph
        _add_entries(scores, walked.indptr, walked.indices, walked.data)
        _add_entries(scores, entered.indptr, entered.indices, -entered.data * self.own[entered.indices])
        scores *= self.exit
        return scores


def quarter_spectrum(interactions: sparse.csr_array) -> Spectrum:
    """The lowest frequencies of the quarter-normalised graph: what every ridge of the filter needs."""
    return low_spectrum(interactions, COMPONENTS, EXPONENT)


def full_spectrum(interactions: sparse.csr_array, spectrum: Spectrum, ridge: float) -> FullSpectrum:
    """The filter of a training graph (M, N) with its quarter spectrum, float32."""
    graph = normalise(interactions, EXPONENT)
    own = np.asarray(graph.power(2).sum(axis=0)).ravel()  # diag R^T R
    squares = spectrum.singular**2
    level = ridge * own.mean()
    slope = 1.0 / (level + squares[-1] / 2.0)
    response = squares / (squares + level) - slope * squares
    diagonal = (spectrum.items**2) @ response + slope * own
    _, by_item = degrees(interactions)
    # By rows: the product with a sparse basket copies what is laid out otherwise, all of it, each time.
    low = np.ascontiguousarray(spectrum.items, dtype=np.float32)
    walk = (graph * np.sqrt(slope)).astype(np.float32)
    leave = power(by_item, EXPONENT) / (1.0 - np.minimum(diagonal, MOST_OWN))
    entry, out, own_part, response = (
        v.astype(np.float32) for v in (power(by_item, -EXPONENT), leave, diagonal, response)
    )
    weights = _dense(low, response, walk) if interactions.shape[1] <= DENSE_ITEMS else None
    return FullSpectrum(weights, entry, out, own_part, low, response, walk, sparse.csr_array(walk.T))


def _add_entries(scores: Float32, starts: NDArray[Any], columns: NDArray[Any], values: Float32) -> None:
    """Add a sparse matrix by rows, each of whose places comes once. Row by row is three times as fast as all places."""
    for row, (first, last) in enumerate(pairwise(starts.tolist())):
        scores[row][columns[first:last]] += values[first:last]


def _dense(low: Float32, response: Float32, walk: sparse.csr_array) -> Float32:
    weights: Float32 = (low * response) @ low.T + (walk.T @ walk).toarray()
    np.fill_diagonal(weights, 0.0)
    return weights
