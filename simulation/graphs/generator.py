"""Generates the graph of accounts of several platforms, with planted rings of fraud.

What it plants: frauds stand in rings whose members are joined with each other, in all platforms alike. Beside its ring
an account has edges by the stochastic block model: a share `homophily` of them, each platform its own, leads to an
account of the same label. Features say little of an account itself, because a few of many columns lean by its label:
with few labels a platform cannot tell which, and all platforms together can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from client_service.data.node_graphs import (
    TRAIN,
    UNKNOWN,
    UNLABELLED,
    Int64,
    NodeShard,
    build_adjacency,
    sort_entries,
)
from simulation.graphs.cut import GraphCut, share_of_kept_edges

HOMOPHILY = (0.9, 0.75, 0.6, 0.4)  # of the platforms, again from the first where they are more
CLASSES = ("honest", "fraud")
FRAUDS = 0.15  # of the accounts
RING = (4, 9)  # members of a ring
CHORD = 0.3  # probability of an edge between two members that do not follow each other
EDGES = 3.0  # that an account begins, in the mean
ABROAD = 0.05  # of the edges, to another platform
COLUMNS, LEANING, LEAN = 24, 6, 0.45  # features; those that lean by the label, by so much of their deviation
LABELLED = 0.5  # of the accounts


@dataclass(frozen=True)
class GraphSizes:
    """Sizes of a generated graph.

    accounts: of each platform. homophily: of each platform, repeated where they are more. labelled: share of the
    accounts whose label is known.
    """

    accounts: int = 700
    homophily: tuple[float, ...] = HOMOPHILY
    labelled: float = LABELLED


DEFAULT_SIZES = GraphSizes()


def generate_graph(seed: int, platforms: int, sizes: GraphSizes = DEFAULT_SIZES) -> tuple[NodeShard, GraphCut]:
    """Generates the graph of all platforms, and lists the accounts of each.

    The same seed gives the same graph.
    """
    rng = np.random.default_rng(seed)
    accounts = platforms * sizes.accounts
    owners = np.arange(accounts) // sizes.accounts
    labels, rings = _plant_rings(owners, platforms, rng)
    pairs = np.concatenate([rings, _draw_edges(owners, labels, sizes.homophily, rng)])
    adjacency = build_adjacency(pairs[:, 0], pairs[:, 1], np.ones(len(pairs), np.float32), accounts)
    lean = np.zeros(COLUMNS)
    lean[rng.permutation(COLUMNS)[:LEANING]] = LEAN * rng.choice([-1.0, 1.0], LEANING)
    features = rng.normal(size=(accounts, COLUMNS)) + labels[:, None] * lean
    known = rng.random(accounts) < sizes.labelled
    digits = len(str(platforms)), len(str(sizes.accounts))
    ids = [f"p{owner + 1:0{digits[0]}d}-{place + 1:0{digits[1]}d}" for owner, place in _places(owners, sizes.accounts)]
    graph = NodeShard(
        "rings",
        tuple(ids),
        sort_entries(sparse.csr_array(features.astype(np.float32))),
        tuple(f"habit-{number:02d}" for number in range(1, COLUMNS + 1)),
        adjacency,
        np.where(known, labels, UNKNOWN).astype(np.int64),
        CLASSES,
        np.where(known, TRAIN, UNLABELLED).astype(np.int8),
    )
    nodes = tuple(np.flatnonzero(owners == platform) for platform in range(platforms))
    return graph, GraphCut("platform", nodes, share_of_kept_edges(graph, nodes))


def _places(owners: Int64, accounts: int) -> Sequence[tuple[int, int]]:
    return [(int(owner), place % accounts) for place, owner in enumerate(owners)]


def _plant_rings(owners: Int64, platforms: int, rng: np.random.Generator) -> tuple[Int64, Int64]:
    """Draws labels (n,), 1 for members of rings, and the rings' edges, (E, 2)."""
    labels, edges = np.zeros(len(owners), np.int64), list[tuple[int, int]]()
    for platform in range(platforms):
        own = rng.permutation(np.flatnonzero(owners == platform))
        frauds = own[: max(RING[0], round(FRAUDS * len(own)))]
        labels[frauds] = 1
        while len(frauds):
            ring = frauds[: rng.integers(RING[0], RING[1] + 1)]
            frauds = frauds[len(ring) :]
            for place, member in enumerate(ring):
                following = int(ring[(place + 1) % len(ring)])
                edges.append((int(member), following))
                chords = ring[place + 2 :][rng.random(len(ring[place + 2 :])) < CHORD]
                edges += [(int(member), int(other)) for other in chords]
    return labels, np.array(edges, np.int64).reshape(-1, 2)


def _draw_edges(owners: Int64, labels: Int64, homophily: tuple[float, ...], rng: np.random.Generator) -> Int64:
    """Draws edges by the stochastic block model, (E, 2).

    A partner has the same label with its platform's probability.
    """
    sources = np.repeat(np.arange(len(owners)), rng.poisson(EDGES, len(owners)))
    same = rng.random(len(sources)) < np.asarray(homophily)[owners[sources] % len(homophily)]
    platforms = int(owners.max()) + 1
    away = (rng.random(len(sources)) < ABROAD) & (platforms > 1)
    there = (owners[sources] + np.where(away, rng.integers(1, max(platforms, 2), len(sources)), 0)) % platforms
    wanted = np.where(same, labels[sources], 1 - labels[sources])
    targets = np.full(len(sources), -1, np.int64)
    for platform in range(platforms):
        for label in (0, 1):
            chosen = (there == platform) & (wanted == label)
            pool = np.flatnonzero((owners == platform) & (labels == label))
            targets[chosen] = rng.choice(pool, int(chosen.sum()))
    return np.stack([sources, targets], axis=1)
