"""Partition methods: the training graph -> the silo of each user and item."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from shared.errors import DataError
from shared.method.graph import Float64, degrees
from shared.method.spectrum import low_spectrum
from shared.words import count_noun
from simulation.partitioning.components import Groups, cut_without_strays

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


def spectral_groups(graph: sparse.csr_array, clients: int, seed: int) -> Groups:
    """Users and items clustered together (Appendix D.2)."""
    return cut_without_strays(
        graph, clients, lambda body, parts, added: Groups(*joint_labels(body, parts, seed, added))
    )


def user_groups(graph: sparse.csr_array, clients: int, seed: int) -> Groups:
    """Users clustered alone."""
    return cut_without_strays(graph, clients, lambda body, parts, added: Groups(user_labels(body, parts, seed, added)))


def random_groups(graph: sparse.csr_array, clients: int, seed: int) -> Groups:
    """Random-Const.: random subsets of users, of equal size."""
    return Groups(np.random.default_rng(seed).permutation(graph.shape[0]) % clients)


def interconnected_groups(graph: sparse.csr_array, clients: int, seed: int) -> Groups:
    """Interconnected-Const.: the graph that a group of users induces, with all of their items."""
    # Paper: "a full bipartite graph induced by a group of users", which group is left open; here: the users of the
    # spectral clusters, because then it differs from `spectral_groups` in nothing but the edges that the cut drops.
    return cut_without_strays(
        graph, clients, lambda body, parts, added: Groups(joint_labels(body, parts, seed, added)[0])
    )


def ego_groups(graph: sparse.csr_array, clients: int, seed: int) -> Groups:
    """Ego-graph: users by the nearest ego, items by the client in whose edges they have the largest share."""
    # Paper: "a 1-hop ego network of a single user", 100 clients a round; here: every user joins the ego that is the
    # fewest hops away, because a client of one user has nobody to learn from and nothing to compare.
    egos = _draw_egos(graph, clients, np.random.default_rng(seed))
    users = _nearest_ego(graph, egos)
    edges = graph.T @ (users[:, None] == np.arange(clients)).astype(np.float64)  # (N, clients)
    share = edges / np.maximum(edges.sum(axis=0), 1.0)  # by number alone the largest client would take all items
    return Groups(users, np.where(edges.any(axis=1), np.argmax(share, axis=1), -1))


def _draw_egos(graph: sparse.csr_array, clients: int, rng: np.random.Generator) -> Int64:
    """(clients,) users, drawn by degree among the half that has least in common with those drawn before."""
    degree = degrees(graph)[0]
    closeness = np.zeros(graph.shape[0])
    chosen: list[int] = []
    for _ in range(clients):
        closeness[chosen] = np.inf
        distant = closeness <= np.median(closeness)
        weight = np.where(distant & np.isfinite(closeness), degree, 0.0)
        chosen.append(int(rng.choice(len(weight), p=weight / weight.sum())))
        common = graph @ graph[[chosen[-1]]].toarray()[0]
        closeness = np.maximum(closeness, common / np.sqrt(degree * degree[chosen[-1]]))
    return np.array(chosen, dtype=np.int64)


def _nearest_ego(graph: sparse.csr_array, egos: Int64) -> Int64:
    """(M,): the ego reached in the fewest hops, the one with most items in common among several; -1: none reached."""
    label = np.full(graph.shape[0], -1, dtype=np.int64)
    label[egos] = np.arange(len(egos))
    reached: Float64 = np.zeros((graph.shape[0], len(egos)))
    reached[egos, np.arange(len(egos))] = 1.0
    while True:
        items = (graph.T @ reached) > 0
        weight = 1.0 / np.sqrt(np.maximum(items.sum(axis=0), 1))  # without it the ego with most items takes everybody
        common = graph @ (items * weight)  # (M, clients): items shared with what each ego has reached so far
        new = (label < 0) & common.any(axis=1)
        if not new.any():
            return label
        label[new] = np.argmax(common[new], axis=1)
        reached = np.maximum(reached, common > 0)


METHODS: dict[str, Callable[[sparse.csr_array, int, int], Groups]] = {
    "spectral": spectral_groups,
    "users": user_groups,
    "random": random_groups,
    "ego": ego_groups,
    "interconnected": interconnected_groups,
}
