"""Attack: single nodes' features, solved for from the rows of border sums that a silo reads.

Two nodes whose foreign neighbours differ by one tell that one. Below the floor that each silo keeps by itself nothing
is in a row, whatever the node's silo says: docs/privacy.md has figures of a real graph.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.attacks.borders import (
    attack_silos,
    build_equations,
    find_by_elimination,
    find_by_subtraction,
    make_table,
)
from client_service.data.node_graphs import Int64, NodeShard, sort_entries
from tests.support.node_silos import BorderRun, border_settings, cut_graph, draw_graph


def chain_of_neighbours() -> tuple[Int64, NodeShard]:
    """Nodes 0 and 1 of silo 0; node 0 has one foreign neighbour more."""
    graph = draw_graph(11, 0.0)
    edges = graph.adjacency.tolil()
    for node, last in ((0, 8), (1, 7)):
        for place in range(2, last + 1):
            edges[node, place] = edges[place, node] = 1.0
    return np.array([0, 0, *[1] * 9]), replace(graph, adjacency=sort_entries(edges.tocsr()))


def test_two_rows_tell_the_node_by_which_they_differ_and_the_attack_finds_it() -> None:
    owners, graph = chain_of_neighbours()
    equations = build_equations(graph, owners, own=3)[[0, 1]]
    assert np.flatnonzero(find_by_subtraction(equations)).tolist() == [8]
    assert np.flatnonzero(find_by_elimination(equations)).tolist() == [8]
    assert list(attack_silos(graph, owners, 3, [[0]])) == [[7, 1, 1]]
    borders = BorderRun(cut_graph(graph, owners.tolist()), border_settings()).completed()[0].borders
    assert borders is not None
    told = borders.sums[0, 0] - borders.sums[0, 1]
    np.testing.assert_allclose(told, graph.features[[8]].toarray()[0], atol=1e-4)


def test_rows_below_the_floors_are_no_equations() -> None:
    owners, graph = chain_of_neighbours()
    assert build_equations(graph, owners, own=8).nnz == 0, "six and seven of one silo"
    assert build_equations(graph, owners, own=3, least=8).nnz == 0


def test_the_equations_are_what_silos_read() -> None:
    graph = draw_graph(40, 0.4)
    owners = np.arange(40) % 4
    shards = cut_graph(graph, owners.tolist())
    equations = build_equations(graph, owners, own=3)
    for shard in BorderRun(shards, border_settings()).completed():
        rows = [graph.rows[one] for one in shard.node_ids]
        assert shard.borders is not None
        assert shard.borders.counts.tolist() == np.diff(equations[rows].indptr).tolist()
        np.testing.assert_allclose(shard.borders.sums[0], equations[rows] @ graph.features.toarray(), atol=1e-3)
    assert "all silos but one" in make_table(graph, 4, 0, "random", 1)
