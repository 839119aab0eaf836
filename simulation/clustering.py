"""Leading eigenvectors of a graph -> a label for every node, by QR with column pivoting.

Damle, Minden, Ying: Simple, direct and efficient multi-way spectral clustering, Information and Inference 8(1), 2019,
arXiv 1609.08251. No iteration and no starting point: pivoting picks the k rows that stand for the clusters, the polar
factor of these rows turns the eigenvectors onto the axes, and a node belongs to its largest coordinate.

Of a sparse graph the leading eigenvectors show knots of a few nodes that hang on by an edge or two. A constant added to
every degree makes these knots cost as much as they are worth: Zhang, Rohe: Understanding regularized spectral
clustering via graph conductance, NeurIPS 2018, arXiv 1806.01468.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from shared.errors import DataError
from shared.method.graph import Float64
from shared.method.spectrum import low_spectrum
from shared.words import count_noun

Int64 = NDArray[np.int64]

OVERSAMPLING = 4  # columns looked at by the randomised variant, in units of k log k


def joint_labels(interactions: sparse.csr_array, clusters: int, seed: int, added: float = 0.0) -> tuple[Int64, Int64]:
    """(M, N) 0/1 -> labels (M,) of users and (N,) of items, clustered together as nodes of one bipartite graph.

    Every node needs an edge. seed 0 is the deterministic rule, any other its randomised variant. added: to every
    degree, as a multiple of the mean degree.
    """
    spectrum = low_spectrum(interactions, _require_clusters(interactions, clusters), added=added)
    labels = pivoted_qr_labels(spectrum.basis, seed)
    return labels[: interactions.shape[0]], labels[interactions.shape[0] :]


def user_labels(interactions: sparse.csr_array, clusters: int, seed: int, added: float = 0.0) -> Int64:
    """(M, N) 0/1 -> labels (M,) of the users, clustered alone by the left singular vectors."""
    spectrum = low_spectrum(interactions, _require_clusters(interactions, clusters), added=added)
    return pivoted_qr_labels(spectrum.users, seed)


def pivoted_qr_labels(vectors: Float64, seed: int = 0) -> Int64:
    """(n, k) orthonormal columns -> (n,) labels in 0..k-1."""
    clusters = vectors.shape[1]
    rows = _columns_to_pivot(vectors, seed)
    _, pivots = linalg.qr(vectors[rows].T, mode="r", pivoting=True)
    left, _, right = linalg.svd(vectors[rows[pivots[:clusters]]].T)
    coordinates = np.abs(vectors @ (left @ right))
    labels: Int64 = np.argmax(coordinates, axis=1)
    return labels


def _columns_to_pivot(vectors: Float64, seed: int) -> Int64:
    """All nodes, or a sample drawn by leverage (the row's squared norm) without replacement."""
    count, clusters = vectors.shape
    leverage = np.square(vectors).sum(axis=1)
    sample = max(clusters, int(np.ceil(OVERSAMPLING * clusters * np.log(clusters))))
    if seed == 0 or sample >= np.count_nonzero(leverage):
        return np.arange(count)
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(count, sample, replace=False, p=leverage / leverage.sum()))


def _require_clusters(interactions: sparse.csr_array, clusters: int) -> int:
    most = max(1, min(interactions.shape) - 1)  # so many eigenvectors are to be had
    if clusters > most:
        users, items = interactions.shape
        there = f"{count_noun(users, 'user')} and {count_noun(items, 'item')}"
        raise DataError(f"expected at most {count_noun(most, 'client')} for {there}, got {clusters}")
    return clusters
