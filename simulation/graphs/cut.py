"""Divides a node graph among silos, and draws each silo's splits.

The methods are METIS, balanced growth, random parts, and overlapping samples. METIS and growth differ: METIS keeps 89
% of Cora's edges in ten parts, breadth growth 67 %. Each shard's notes therefore name the method, and the share of
edges that it keeps.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.foreign_edges import build_foreign_edges
from client_service.data.node_graphs import TEST, TRAIN, UNKNOWN, UNLABELLED, VALID, Int64, NodeShard, sort_entries
from shared.errors import SettingsError
from shared.words import count_noun
from simulation.graphs.read import SHARES

SAMPLES = 5  # of each part, in an overlapping cut
CHUNKS = 20  # in which a growing part takes its nodes
LARGEST_WEIGHT = 1000  # of an edge, for METIS, which wants whole numbers


@dataclass(frozen=True)
class GraphCut:
    """Nodes of each silo, as ascending rows of the whole graph.

    kept: the share of edges inside at least one silo.
    """

    method: str
    nodes: tuple[Int64, ...]
    kept: float

    @property
    def note(self) -> str:
        """Method in words, and the share of edges that it keeps."""
        return f"cut by {self.method} into {count_noun(len(self.nodes), 'silo')}: {self.kept:.1%} of the edges kept"


def cut_by_metis(adjacency: sparse.csr_array, parts: int, seed: int) -> Int64:
    """Cuts by METIS: parts of equal size with few edges between them.

    SettingsError if pymetis is not installed.
    """
    if importlib.util.find_spec("pymetis") is None:
        raise SettingsError(
            "--method metis: expected the package pymetis, got none: install it (pip install pymetis), or use growth"
        )
    import pymetis

    if parts == 1:
        return np.zeros(adjacency.shape[0], np.int64)
    data = adjacency.data
    weights = None
    if len(data) and data.min() != data.max():
        weights = np.clip(np.rint(data / data.max() * LARGEST_WEIGHT), 1, LARGEST_WEIGHT).astype(np.int64).tolist()
    found = pymetis.part_graph(
        parts,
        adjacency=pymetis.CSRAdjacency(adjacency.indptr.tolist(), adjacency.indices.tolist()),
        eweights=weights,
        options=pymetis.Options(seed=seed + 1),  # METIS draws by the seeds 0 and 1 alike
    )
    return np.asarray(found[1], np.int64)


def cut_by_growth(adjacency: sparse.csr_array, parts: int, seed: int) -> Int64:
    """Cuts by balanced growth: the smallest part takes its nearest free nodes.

    Nearest are those that have most edges to the part.
    """
    nodes, rng = adjacency.shape[0], np.random.default_rng(seed)
    owners = np.full(nodes, -1, np.int64)
    sizes = np.full(parts, nodes // parts) + (np.arange(parts) < nodes % parts)
    step = max(1, nodes // parts // CHUNKS)
    links = np.zeros((parts, nodes))
    held = np.zeros(parts, np.int64)
    tie = rng.random(nodes) * 1e-6
    while (free := owners < 0).any():
        part = int(np.argmin(np.where(held < sizes, held / np.maximum(sizes, 1), np.inf)))
        places = np.flatnonzero(free)
        wanted = min(step, int(sizes[part] - held[part]), len(places))
        reach = links[part][places]
        if not reach.any():  # a new place to grow from
            places, reach, wanted = rng.permutation(places)[:1], np.ones(1), 1
        best = places[np.argsort(-(reach + tie[places]), kind="stable")[:wanted]]
        best = best[links[part][best] > 0] if wanted > 1 else best
        owners[best] = part
        held[part] += len(best)
        links[part] += np.asarray(adjacency[best].sum(0)).reshape(-1)
    return owners


def cut_at_random(adjacency: sparse.csr_array, parts: int, seed: int) -> Int64:
    """Draws parts of equal size."""
    return np.random.default_rng(seed).permutation(adjacency.shape[0]) % parts


CUTS: dict[str, Callable[[sparse.csr_array, int, int], Int64]] = {
    "metis": cut_by_metis,
    "growth": cut_by_growth,
    "random": cut_at_random,
}
"""(adjacency, parts, seed) -> the part of each node, (n,)."""
OVERLAPPING = "overlapping"  # by METIS, or by growth without it
METHODS = (*CUTS, OVERLAPPING)


def default_cut() -> str:
    """Returns the default method: METIS where it is installed, else growth."""
    return "metis" if importlib.util.find_spec("pymetis") is not None else "growth"


def cut_graph(graph: NodeShard, silos: int, seed: int, method: str | None = None) -> GraphCut:
    """Chooses the nodes of each silo.

    method: None for the default. Raises SettingsError for more silos than nodes.
    """
    method = method or default_cut()
    if method not in METHODS:
        raise SettingsError(f"--method: expected one of {', '.join(METHODS)} for nodes, got {method!r}")
    if silos > (most := len(graph.node_ids)):
        raise SettingsError(f"--clients: expected at most {most:,}, as there are nodes, got {silos:,}")
    if method == OVERLAPPING:
        nodes, used = _overlapping_samples(graph, silos, seed)
        method = f"{OVERLAPPING} ({used})"
    else:
        owners = CUTS[method](graph.adjacency, silos, seed)
        nodes = tuple(np.flatnonzero(owners == part) for part in range(silos))
    return GraphCut(method, tuple(one for one in nodes if len(one)), share_of_kept_edges(graph, nodes))


def _overlapping_samples(graph: NodeShard, silos: int, seed: int) -> tuple[tuple[Int64, ...], str]:
    """Draws five samples of half of the nodes of each of floor(M / 5) parts."""
    if silos < SAMPLES or silos % SAMPLES:
        raise SettingsError(f"--clients: expected a multiple of {SAMPLES} with --method {OVERLAPPING}, got {silos}")
    used = default_cut()
    owners, rng = CUTS[used](graph.adjacency, silos // SAMPLES, seed), np.random.default_rng([seed, SAMPLES])
    parts = [np.flatnonzero(owners == part) for part in range(silos // SAMPLES)]
    samples = [np.sort(rng.permutation(part)[: max(1, len(part) // 2)]) for part in parts for _ in range(SAMPLES)]
    return tuple(samples), used


def share_of_kept_edges(graph: NodeShard, nodes: Sequence[Int64]) -> float:
    """Computes the share of edges inside one silo; 1 of a graph without edges."""
    sources, targets, _ = graph.list_edges()
    inside = np.zeros(len(sources), bool)
    for own in nodes:
        member = np.zeros(len(graph.node_ids), bool)
        member[own] = True
        inside |= member[sources] & member[targets]
    return float(inside.mean()) if len(inside) else 1.0


def select_nodes(graph: NodeShard, name: str, nodes: Int64) -> NodeShard:
    """Returns a silo's graph: these nodes (ascending rows), with the edges between them.

    Their other edges become foreign edges, beside those that were foreign to the whole graph.
    """
    rows = graph.adjacency[nodes]
    outside = np.ones(len(graph.node_ids), bool)
    outside[nodes] = False
    ends = sparse.coo_array(rows)
    foreign = outside[ends.col]
    others = [graph.node_ids[column] for column in ends.col[foreign]]
    beyond, weights = ends.row[foreign].astype(np.int64), ends.data[foreign]
    if graph.foreign is not None:
        outer = sparse.coo_array(graph.foreign.weights[nodes])
        others += [graph.foreign.ids[column] for column in outer.col.tolist()]
        beyond, weights = np.concatenate([beyond, outer.row]), np.concatenate([weights, outer.data])
    return replace(
        graph,
        name=name,
        node_ids=tuple(graph.node_ids[row] for row in nodes),
        features=sort_entries(graph.features[nodes]),
        adjacency=sort_entries(rows[:, nodes]),
        labels=graph.labels[nodes],
        splits=graph.splits[nodes],
        foreign=build_foreign_edges(beyond.astype(np.int64), others, weights, len(nodes)),
    )


def draw_splits(
    labels: Int64, seed: Sequence[int] | int, shares: tuple[float, float, float] = SHARES
) -> NDArray[np.int8]:
    """Draws TRAIN, VALID and TEST of the labelled nodes of one silo, (n,).

    Where few nodes are labelled, one of them is for training.
    """
    known = np.random.default_rng(seed).permutation(np.flatnonzero(labels != UNKNOWN))
    found = np.full(len(labels), UNLABELLED, np.int8)
    train = max(1, round(shares[0] * len(known)))
    ends = train, train + round(shares[1] * len(known))
    found[known[: ends[0]]], found[known[ends[0] : ends[1]]], found[known[ends[1] :]] = TRAIN, VALID, TEST
    return found


def draw_stratified_splits(
    labels: Int64, seed: Sequence[int] | int, shares: tuple[float, float, float]
) -> NDArray[np.int8]:
    """Draws TRAIN, VALID and TEST within each class, (n,).

    Of each class the first node is for training, the next for validation.
    """
    found, rng = np.full(len(labels), UNLABELLED, np.int8), np.random.default_rng(seed)
    for label in np.unique(labels[labels != UNKNOWN]):
        own = rng.permutation(np.flatnonzero(labels == label))
        train = max(1, round(shares[0] * len(own)))
        ends = train, train + max(1, round(shares[1] * len(own)))
        found[own] = TEST
        found[own[: ends[1]]] = VALID
        found[own[: ends[0]]] = TRAIN
    return found


def divide_graph(
    graph: NodeShard,
    cut: GraphCut,
    *,
    split_seed: int | None = 0,
    names: Sequence[str] | None = None,
    shares: tuple[float, float, float] = SHARES,
) -> list[NodeShard]:
    """Builds a shard for each silo.

    split_seed: draws each silo's splits by the shares; None keeps the graph's own splits.

    Where silos overlap they are drawn once for the whole graph: no silo trains on the test nodes of another.
    """
    names = names or [f"client-{place:0{len(str(len(cut.nodes)))}d}" for place in range(1, len(cut.nodes) + 1)]
    whole = np.bincount(graph.adjacency.indices, minlength=len(graph.node_ids))
    overlap = sum(map(len, cut.nodes)) > len(np.unique(np.concatenate(cut.nodes)))
    if split_seed is not None and overlap:
        graph = graph.with_splits(draw_splits(graph.labels, split_seed, shares))
    found = []
    for place, (name, nodes) in enumerate(zip(names, cut.nodes, strict=True)):
        part = select_nodes(graph, name, nodes)
        if split_seed is not None and not overlap:
            part = part.with_splits(draw_splits(part.labels, [split_seed, place], shares))
        ends = int(whole[nodes].sum())
        own = f"{part.adjacency.nnz:,} of {ends:,} ends of edges of this silo's nodes lie inside"
        found.append(replace(part, notes=(*graph.notes, cut.note, own)))
    return found
