"""Partition methods: divide users and items of a training graph among silos.

A spectral cut leaves no small separate part: no handful of users that is disconnected, or nearly so, becomes a client.
The leading eigenvectors of a graph of several connected components are the components' indicators, so that the cut
would make a client of each small component before it divides the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, product

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse import csgraph

from shared.errors import DataError
from shared.method.graph import Float64, degrees
from shared.method.spectrum import low_spectrum
from shared.words import count_noun

Int64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

FEWEST = 2  # users and items of a client: less is no graph
LEAST_USERS = 50
EQUAL_SHARES = 10  # of small data a tenth of an equal share of the users is enough
ADDED = (0.0, 1.0, 2.0, 4.0, 16.0)  # mean degrees, added to every degree
NO_CLIENT = -1


@dataclass(frozen=True, eq=False)
class Groups:
    """Client number of each user (M,) and item (N,), -1 for none.

    items is None if items follow their users. least: users that each client must have. notes: what was done about
    small parts.
    """

    users: Int64
    items: Int64 | None = None
    least: int = FEWEST
    notes: tuple[str, ...] = ()


Cut = Callable[[sparse.csr_array, int, float], Groups]
"""Function of graph, number of parts and addend of the degrees, which returns the part of each node."""


def least_users(users: int, clients: int) -> int:
    """Computes the least number of users of a client.

    50 users or, of small data, a tenth of an equal share; never fewer than 2.
    """
    return max(FEWEST, min(LEAST_USERS, users // (EQUAL_SHARES * clients)))


def cut_without_small_parts(graph: sparse.csr_array, clients: int, cut: Cut) -> Groups:
    """Divides a graph into exactly `clients` groups of at least `least_users` users.

    1. Connected components with less than a tenth of an equal share of the users are set aside, and the rest is cut.
    2. Where a part is too small, it is cut again with more and more added to the degrees, which keeps knots of a few
       users from being parts; if that does not do, into twice as many parts, of which the largest are the clients.
    3. Every other part joins the client with which it has most interactions in common; a part that has none in common
       with any client, as each component set aside, joins the client with most users.

    Where the graph has no small part, that is the first cut itself. Where no cut has enough large parts it is the first
    cut too, but with `least` users asked of each client, which not all of them have.
    """
    selected, least = _select_large_components(graph, clients), least_users(graph.shape[0], clients)
    inside = sparse.csr_array(graph[selected[0]][:, selected[1]])
    first = _extend_groups(cut(inside, clients, 0.0), selected)
    numbers = (clients, 2 * clients) if 2 * clients < min(inside.shape) else (clients,)  # of eigenvectors to be had
    others = (
        (added, _extend_groups(cut(inside, parts, added), selected))
        for parts, added in list(product(numbers, ADDED))[1:]
    )
    for added, groups in chain([(0.0, first)], others):
        large = _large_parts(graph, groups, least)
        if len(large) >= clients:
            merged = _merge_parts(graph, groups, large[:clients])
            return replace(merged, notes=_small_part_notes(groups, large[:clients], added, least))
    return replace(first, least=least)


def _small_part_notes(groups: Groups, large: list[int], added: float, least: int) -> tuple[str, ...]:
    apart = int(np.count_nonzero(groups.users == NO_CLIENT))
    merged = int(np.count_nonzero(~np.isin(groups.users, [*large, NO_CLIENT])))
    notes = (
        (apart, f"{count_noun(apart, 'user')} of small components apart from all others put into the largest client"),
        (
            added,
            f"degrees raised by {added:g} times their mean, as the plain cut has parts of fewer than {least} users",
        ),
        (merged, f"{count_noun(merged, 'user')} in parts of fewer than {least} users moved to the nearest client"),
    )
    return tuple(note for count, note in notes if count)


def _select_large_components(graph: sparse.csr_array, clients: int) -> tuple[Mask, Mask]:
    """Selects users (M,) and items (N,) of large components; all where none is large."""
    users, edges = graph.shape[0], graph.tocoo()
    nodes = (edges.row.astype(np.int64), edges.col.astype(np.int64) + users)
    whole = sparse.coo_array((edges.data, nodes), shape=(sum(graph.shape),) * 2)
    count, component = csgraph.connected_components(whole, directed=False)
    sizes = np.bincount(component[:users], minlength=count)
    large = sizes >= max(FEWEST, users // (EQUAL_SHARES * clients))
    inside: Mask = large[component] if large.any() else np.ones(len(component), dtype=bool)
    return inside[:users], inside[users:]


def _extend_groups(groups: Groups, selected: tuple[Mask, Mask]) -> Groups:
    """Extends groups of the selected nodes to all nodes."""
    users = np.full(len(selected[0]), NO_CLIENT, dtype=np.int64)
    users[selected[0]] = groups.users
    if groups.items is None:
        return Groups(users)
    items = np.full(len(selected[1]), NO_CLIENT, dtype=np.int64)
    items[selected[1]] = groups.items
    return Groups(users, items)


def _large_parts(graph: sparse.csr_array, groups: Groups, least: int) -> list[int]:
    """Lists the parts with enough users that have an item inside, most users first.

    Where items are divided, a part needs 2 items.
    """
    edges = graph.tocoo()
    part = groups.users[edges.row]
    inside = part >= 0 if groups.items is None else (part >= 0) & (part == groups.items[edges.col])
    users = np.bincount(groups.users[np.unique(edges.row[inside])])
    large = [int(one) for one in np.flatnonzero(users >= least)]
    if groups.items is not None:
        large = [one for one in large if np.count_nonzero(groups.items == one) >= FEWEST]
    return sorted(large, key=lambda one: (-users[one], one))


def _merge_parts(graph: sparse.csr_array, groups: Groups, large: list[int]) -> Groups:
    """Merges each small part into a large one, and renumbers these."""
    common = _common_interactions(graph, groups)
    client = np.zeros(
        len(common) + 1, dtype=np.int64
    )  # the largest client: for -1 in the last place, and for separate parts
    client[:-1] = np.argmax(common[:, large], axis=1)
    client[large] = np.arange(len(large))
    return Groups(client[groups.users], None if groups.items is None else client[groups.items])


def _common_interactions(graph: sparse.csr_array, groups: Groups) -> Float64:
    """Counts interactions between users of one part and items of another, (parts, parts).

    They count both ways. Where items are not divided, an interaction counts for each part by its share of the item's
    interactions.
    """
    labels = groups.users if groups.items is None else np.concatenate([groups.users, groups.items])
    parts = np.arange(labels.max() + 1)
    by_item = np.asarray(graph.T @ (groups.users[:, None] == parts).astype(np.float64))
    if groups.items is None:
        return by_item.T @ (by_item / np.maximum(degrees(graph)[1], 1.0)[:, None])
    towards: Float64 = by_item.T @ (groups.items[:, None] == parts).astype(np.float64)
    return towards + towards.T


OVERSAMPLING = 4  # columns looked at by the randomised variant, in units of k log k


def joint_labels(interactions: sparse.csr_array, clusters: int, seed: int, added: float = 0.0) -> tuple[Int64, Int64]:
    """Clusters users and items together, as nodes of one bipartite graph.

    interactions: (M, N), 0/1, where every node needs an edge. Returns labels (M,) and (N,). seed 0 is the deterministic
    rule, any other its randomised variant. added: to every degree, as a multiple of the mean degree.
    """
    spectrum = low_spectrum(interactions, _require_clusters(interactions, clusters), added=added)
    labels = pivoted_qr_labels(spectrum.basis, seed)
    return labels[: interactions.shape[0]], labels[interactions.shape[0] :]


def user_labels(interactions: sparse.csr_array, clusters: int, seed: int, added: float = 0.0) -> Int64:
    """Clusters users alone by the left singular vectors of the graph.

    interactions: (M, N), 0/1. Returns labels (M,).
    """
    spectrum = low_spectrum(interactions, _require_clusters(interactions, clusters), added=added)
    return pivoted_qr_labels(spectrum.users, seed)


def pivoted_qr_labels(vectors: Float64, seed: int = 0) -> Int64:
    """Clusters rows of orthonormal columns (n, k) by pivoted QR; labels (n,) in 0..k-1."""
    clusters = vectors.shape[1]
    rows = _columns_to_pivot(vectors, seed)
    _, pivots = linalg.qr(vectors[rows].T, mode="r", pivoting=True)
    left, _, right = linalg.svd(vectors[rows[pivots[:clusters]]].T)
    coordinates = np.abs(vectors @ (left @ right))
    labels: Int64 = np.argmax(coordinates, axis=1)
    return labels


def _columns_to_pivot(vectors: Float64, seed: int) -> Int64:
    """Selects all nodes, or a sample drawn by leverage without replacement.

    Leverage is the row's squared norm.
    """
    count, clusters = vectors.shape
    leverage = np.square(vectors).sum(axis=1)
    sample = max(clusters, int(np.ceil(OVERSAMPLING * clusters * np.log(clusters))))
    if seed == 0 or sample >= np.count_nonzero(leverage):
        return np.arange(count)
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(count, sample, replace=False, p=leverage / leverage.sum()))


def _require_clusters(interactions: sparse.csr_array, clusters: int) -> int:
    most = max(1, min(interactions.shape) - 1)  # number of eigenvectors that can be computed
    if clusters > most:
        users, items = interactions.shape
        there = f"{count_noun(users, 'user')} and {count_noun(items, 'item')}"
        raise DataError(f"expected at most {count_noun(most, 'client')} for {there}, got {clusters}")
    return clusters


def spectral_groups(graph: sparse.csr_array, clients: int, seed: int) -> Groups:
    """Clusters users and items together (Appendix D.2)."""
    return cut_without_small_parts(
        graph, clients, lambda selected, parts, added: Groups(*joint_labels(selected, parts, seed, added))
    )


def user_groups(graph: sparse.csr_array, clients: int, seed: int) -> Groups:
    """Clusters users alone."""
    return cut_without_small_parts(
        graph, clients, lambda selected, parts, added: Groups(user_labels(selected, parts, seed, added))
    )


def random_groups(graph: sparse.csr_array, clients: int, seed: int) -> Groups:
    """Draws random subsets of users of equal size (Random-Const.)."""
    return Groups(np.random.default_rng(seed).permutation(graph.shape[0]) % clients)


def interconnected_groups(graph: sparse.csr_array, clients: int, seed: int) -> Groups:
    """Divides users, and gives each client all of their items (Interconnected-Const.)."""
    # Paper: "a full bipartite graph induced by a group of users", which group is left open; here: the users of the
    # spectral clusters, because then it differs from `spectral_groups` in nothing but the edges that the cut drops.
    return cut_without_small_parts(
        graph, clients, lambda selected, parts, added: Groups(joint_labels(selected, parts, seed, added)[0])
    )


def ego_groups(graph: sparse.csr_array, clients: int, seed: int) -> Groups:
    """Divides users by the nearest ego, and items by the largest share of edges."""
    # Paper: "a 1-hop ego network of a single user", 100 clients a round; here: every user joins the ego that is the
    # fewest hops away, because a client of one user has no other user to learn from and nothing to compare.
    egos = _draw_egos(graph, clients, np.random.default_rng(seed))
    users = _nearest_ego(graph, egos)
    edges = graph.T @ (users[:, None] == np.arange(clients)).astype(np.float64)  # (N, clients)
    share = edges / np.maximum(edges.sum(axis=0), 1.0)  # by number alone the largest client would take all items
    return Groups(users, np.where(edges.any(axis=1), np.argmax(share, axis=1), -1))


def _draw_egos(graph: sparse.csr_array, clients: int, rng: np.random.Generator) -> Int64:
    """Draws egos, (clients,), by degree among users far from those drawn before.

    Far: the half with least in common.
    """
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
    """Finds the ego reached in the fewest hops, (M,); -1: none is reached.

    Of several the one with most items in common.
    """
    label = np.full(graph.shape[0], -1, dtype=np.int64)
    label[egos] = np.arange(len(egos))
    reached: Float64 = np.zeros((graph.shape[0], len(egos)))
    reached[egos, np.arange(len(egos))] = 1.0
    while True:
        items = (graph.T @ reached) > 0
        weight = 1.0 / np.sqrt(np.maximum(items.sum(axis=0), 1))  # without it the ego with most items takes all users
        common = graph @ (items * weight)  # (M, clients): items shared with the users that each ego has reached
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
