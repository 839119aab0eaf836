"""Attack on border sums: features of single nodes, solved from the rows that silos read.

A silo reads a sum for each of its nodes with enough foreign neighbours. Two nodes whose neighbours differ by one
reveal that one by subtraction; all rows together are equations, from which some nodes' features follow. Colluding
silos know their own nodes and combine their rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.common import render_table
from client_service.data.node_graphs import NodeShard
from client_service.models.nodes.spectral_bases import inverse_roots
from simulation.graphs.cut import cut_graph
from simulation.graphs.read import read_graph

Int64 = NDArray[np.int64]
Flags = NDArray[np.bool_]
LEAST = 5
OWN = (2, 3, 5)
RANK = 1e-12  # of the largest eigenvalue: less is rounding
EXACT = 1e-6  # of a node's direction outside the rows: less is rounding


def build_equations(graph: NodeShard, owners: Int64, own: int, least: int = LEAST) -> sparse.csr_array:
    """Builds the equations that border sums give: weights of each node's foreign neighbours, (n, n).

    own: number of a silo's nodes below which it adds nothing. least: number of added nodes below which nothing is
    read.
    """
    edges = sparse.coo_array(graph.adjacency)
    rows, columns = edges.row.astype(np.int64), edges.col.astype(np.int64)
    foreign = owners[rows] != owners[columns]
    silos = int(owners.max()) + 1
    of_silo = np.bincount((rows * silos + owners[columns])[foreign], minlength=len(owners) * silos)
    added = foreign & (of_silo[rows * silos + owners[columns]] >= own)
    counts = np.bincount(rows[added], minlength=len(owners))
    kept = added & (counts[rows] >= least)
    scales = inverse_roots(np.asarray(graph.adjacency.sum(1), np.float64).ravel())
    values = edges.data[kept] * scales[columns[kept]]
    return sparse.csr_array(sparse.coo_array((values, (rows[kept], columns[kept])), shape=graph.adjacency.shape))


def find_by_subtraction(equations: sparse.csr_array) -> Flags:
    """Finds the nodes that two rows reveal because they differ only by them, (n,)."""
    present = sparse.csr_array(equations)
    present.data = np.ones_like(present.data, dtype=np.float32)
    sizes, shared = np.diff(present.indptr), (present @ present.T).toarray()
    more, fewer = np.nonzero((sizes[:, None] == sizes[None, :] + 1) & (shared == sizes[None, :]) & (sizes[None, :] > 0))
    found = np.zeros(present.shape[1], bool)
    for first, second in zip(more.tolist(), fewer.tolist(), strict=True):
        found[np.setdiff1d(equations[[first]].indices, equations[[second]].indices)] = True
    return found


def find_by_elimination(equations: sparse.csr_array) -> Flags:
    """Finds the nodes whose features follow from all rows together, (n,).

    Their unit vector is in the rows' span.
    """
    columns = np.unique(equations.indices)
    found = np.zeros(equations.shape[1], bool)
    if not len(columns):
        return found
    values = sparse.csr_array(equations.tocsc()[:, columns])
    wide = values.shape[0] <= values.shape[1]
    sizes, axes = np.linalg.eigh((values @ values.T if wide else values.T @ values).toarray())
    axes, sizes = axes[:, sizes > sizes[-1] * RANK], sizes[sizes > sizes[-1] * RANK]
    span = (values.T @ axes) / np.sqrt(sizes) if wide else axes
    found[columns] = (span**2).sum(1) > 1.0 - EXACT
    return found


def attack_silos(
    graph: NodeShard, owners: Int64, own: int, attackers: Sequence[Sequence[int]]
) -> Iterator[list[float]]:
    """Attacks with each group of silos; yields counts of nodes.

    The counts are nodes in their rows, revealed by subtraction, and revealed by all rows.
    """
    equations = build_equations(graph, owners, own)
    for group in attackers:
        inside = np.isin(owners, group)
        rows = equations[np.flatnonzero(inside)] @ sparse.diags_array((~inside).astype(np.float64))
        rows = sparse.csr_array(rows)
        rows.eliminate_zeros()
        rows = rows[np.flatnonzero(np.diff(rows.indptr))]
        touched = np.unique(rows.indices)
        yield [len(touched), int(find_by_subtraction(rows).sum()), int(find_by_elimination(rows).sum())]


def make_table(graph: NodeShard, parts: int, seed: int, cut: str | None, groups_of_each: int) -> str:
    """Renders the attack: means over some groups of silos."""
    found = cut_graph(graph, parts, seed, cut)
    owners = np.zeros(len(graph.node_ids), np.int64)
    for place, nodes in enumerate(found.nodes):
        owners[nodes] = place
    groups = {
        "one silo": [[one] for one in range(parts)][:groups_of_each],
        "two silos together": [[one, (one + 1) % parts] for one in range(parts)][:groups_of_each],
        "all silos but one": [[one for one in range(parts) if one != left] for left in range(parts)][:1],
    }
    lines = []
    for own in OWN:
        for name, some in groups.items():
            touched, subtracted, solved = np.mean(list(attack_silos(graph, owners, own, some)), axis=0)
            shares = (f"{count:,.1f} ({count / max(touched, 1):.2%})" for count in (subtracted, solved))
            lines.append([str(own), name, f"{touched:,.0f}", *shares])
    head = ["border_own", "attacker", "foreign nodes in its rows", "revealed by two rows", "revealed by all rows"]
    return f"{graph.name}: {parts} silos, cut: {found.method}, seed {seed}\n\n" + render_table(head, lines)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path, help="a file or folder with a graph of nodes")
    parser.add_argument("--parts", type=int, default=10, help="silos")
    parser.add_argument("--seed", type=int, default=0, help="of the cut")
    parser.add_argument("--cut", help="metis, growth or random")
    parser.add_argument("--groups", type=int, default=3, help="of silos that attack, of each kind")
    given = parser.parse_args()
    print(make_table(read_graph(given.graph), given.parts, given.seed, given.cut, given.groups))


if __name__ == "__main__":
    main()
