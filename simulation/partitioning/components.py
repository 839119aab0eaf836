"""A spectral cut without stray parts: no handful of users that stands apart, or hangs on by little, is a client.

The leading eigenvectors of a graph of several connected components are the components' indicators, so that the cut
would make a client of each stray component before it divides the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, product

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from shared.method.graph import Float64, degrees
from shared.words import count_noun

Int64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

FEWEST = 2  # users and items of a client: less is no graph
LEAST_USERS = 50
EQUAL_SHARES = 10  # of small data a tenth of an equal share of the users is enough
ADDED = (0.0, 1.0, 2.0, 4.0, 16.0)  # mean degrees, added to every degree
NOWHERE = -1


@dataclass(frozen=True, eq=False)
class Groups:
    """users (M,), items (N,): a client's number, -1 for none. items is None where items follow their users.

    least: how many users each client must have. notes: what was done about stray parts.
    """

    users: Int64
    items: Int64 | None = None
    least: int = FEWEST
    notes: tuple[str, ...] = ()


Cut = Callable[[sparse.csr_array, int, float], Groups]
"""(graph, number of parts, what is added to its degrees) -> the part of each node."""


def least_users(users: int, clients: int) -> int:
    """What a client must have: 50 users or, of small data, a tenth of an equal share; never fewer than 2."""
    return max(FEWEST, min(LEAST_USERS, users // (EQUAL_SHARES * clients)))


def cut_without_strays(graph: sparse.csr_array, clients: int, cut: Cut) -> Groups:
    """Exactly `clients` groups of `least_users` or more.

    1. Connected components with less than a tenth of an equal share of the users are set aside, and the rest is cut.
    2. Where a part is too small, it is cut again with more and more added to the degrees, which keeps knots of a few
       users from being parts; if that does not do, into twice as many parts, of which the largest are the clients.
    3. Every other part joins the client with which it has most interactions in common; a part that has none in common
       with anybody, as each component set aside, joins the client with most users.

    Where the graph has no stray part, that is the first cut itself. Where no cut has enough large parts it is the first
    cut too, but with `least` users asked of each client, which not all of them have.
    """
    body, least = _body(graph, clients), least_users(graph.shape[0], clients)
    inside = sparse.csr_array(graph[body[0]][:, body[1]])
    first = _spread(cut(inside, clients, 0.0), body)
    numbers = (clients, 2 * clients) if 2 * clients < min(inside.shape) else (clients,)  # of eigenvectors to be had
    others = ((added, _spread(cut(inside, parts, added), body)) for parts, added in list(product(numbers, ADDED))[1:])
    for added, groups in chain([(0.0, first)], others):
        large = _large_parts(graph, groups, least)
        if len(large) >= clients:
            merged = _merge_parts(graph, groups, large[:clients])
            return replace(merged, notes=_stray_notes(groups, large[:clients], added, least))
    return replace(first, least=least)


def _stray_notes(groups: Groups, large: list[int], added: float, least: int) -> tuple[str, ...]:
    apart = int(np.count_nonzero(groups.users == NOWHERE))
    merged = int(np.count_nonzero(~np.isin(groups.users, [*large, NOWHERE])))
    notes = (
        (apart, f"{count_noun(apart, 'user')} of small components apart from all others put into the largest client"),
        (added, f"{added:g} mean degrees added to every degree: the plain cut has parts of less than {least} users"),
        (merged, f"{count_noun(merged, 'user')} of parts of less than {least} users put into the nearest client"),
    )
    return tuple(note for count, note in notes if count)


def _body(graph: sparse.csr_array, clients: int) -> tuple[Mask, Mask]:
    """Users (M,) and items (N,) of the components that are large enough, all of them where none is."""
    users, edges = graph.shape[0], graph.tocoo()
    nodes = (edges.row.astype(np.int64), edges.col.astype(np.int64) + users)
    whole = sparse.coo_array((edges.data, nodes), shape=(sum(graph.shape),) * 2)
    count, component = csgraph.connected_components(whole, directed=False)
    sizes = np.bincount(component[:users], minlength=count)
    large = sizes >= max(FEWEST, users // (EQUAL_SHARES * clients))
    inside: Mask = large[component] if large.any() else np.ones(len(component), dtype=bool)
    return inside[:users], inside[users:]


def _spread(groups: Groups, body: tuple[Mask, Mask]) -> Groups:
    """Groups of the nodes of the body -> of all nodes."""
    users = np.full(len(body[0]), NOWHERE, dtype=np.int64)
    users[body[0]] = groups.users
    if groups.items is None:
        return Groups(users)
    items = np.full(len(body[1]), NOWHERE, dtype=np.int64)
    items[body[1]] = groups.items
    return Groups(users, items)


def _large_parts(graph: sparse.csr_array, groups: Groups, least: int) -> list[int]:
    """The parts with users enough that have an item inside, most users first; with 2 items too where items are cut."""
    edges = graph.tocoo()
    part = groups.users[edges.row]
    inside = part >= 0 if groups.items is None else (part >= 0) & (part == groups.items[edges.col])
    users = np.bincount(groups.users[np.unique(edges.row[inside])])
    large = [int(one) for one in np.flatnonzero(users >= least)]
    if groups.items is not None:
        large = [one for one in large if np.count_nonzero(groups.items == one) >= FEWEST]
    return sorted(large, key=lambda one: (-users[one], one))


def _merge_parts(graph: sparse.csr_array, groups: Groups, large: list[int]) -> Groups:
    """The large parts, numbered as they stand, and every other part in one of them."""
    common = _common_interactions(graph, groups)
    client = np.zeros(len(common) + 1, dtype=np.int64)  # the largest: for the last place, -1, and for what stands apart
    client[:-1] = np.argmax(common[:, large], axis=1)
    client[large] = np.arange(len(large))
    return Groups(client[groups.users], None if groups.items is None else client[groups.items])


def _common_interactions(graph: sparse.csr_array, groups: Groups) -> Float64:
    """(parts, parts): the interactions between users of the one and items of the other, both ways.

    Where items are not divided, an interaction counts for each part by its share of the item's interactions.
    """
    labels = groups.users if groups.items is None else np.concatenate([groups.users, groups.items])
    parts = np.arange(labels.max() + 1)
    by_item = np.asarray(graph.T @ (groups.users[:, None] == parts).astype(np.float64))
    if groups.items is None:
        shares: Float64 = by_item.T @ (by_item / np.maximum(degrees(graph)[1], 1.0)[:, None])
        return shares
    towards: Float64 = by_item.T @ (groups.items[:, None] == parts).astype(np.float64)
    return towards + towards.T
