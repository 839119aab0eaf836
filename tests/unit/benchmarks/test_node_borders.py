"""Border sums in the benchmark of node graphs: beside Gram sums of own edges, and of all edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.nodes.borders import BORDER_METHODS, border_method, complete_exactly, describe_borders, sum_borders
from benchmarks.nodes.cuts import DividedGraph
from client_service.models.nodes.closed_form import build_design_spec, make_design
from shared.method.settings import method_settings
from tests.support.node_silos import cut_graph, draw_graph


def divided(least: int = 5) -> DividedGraph:
    graph = draw_graph(60, 0.5)
    owners = np.arange(60) % 3
    sizes = {"nodes.features": 3, "nodes.classes": 2, "nodes.hops": 2, "nodes.random_features": 4}
    method = method_settings(**sizes, **{"nodes.border_least": least, "nodes.border_numbers": 1 << 12})
    silos = tuple(replace(one, splits=np.arange(20, dtype=np.int8) % 3) for one in cut_graph(graph, owners.tolist()))
    rows = tuple(np.flatnonzero(owners == place) for place in range(3))
    return DividedGraph("drawn", graph, silos, rows, method, 0)


def test_with_all_neighbours_known_the_design_is_that_of_the_whole_graph() -> None:
    given = divided()
    spec = build_design_spec(given.nodes)
    whole = make_design(given.whole, spec)
    for silo, rows in zip(complete_exactly(given), given.rows, strict=True):
        np.testing.assert_allclose(make_design(silo, spec), whole[rows], rtol=1e-4, atol=1e-4)


def test_silos_read_of_their_borders_what_the_whole_graph_says() -> None:
    given = divided()
    known, secrets = sum_borders(given.silos, border_method(given), "run")
    read = [known.complete(silo, secret) for silo, secret in zip(given.silos, secrets, strict=True)]
    assert describe_borders(read)["ends"] > 0.95
    for silo, exact in zip(read, complete_exactly(given), strict=True):
        assert silo.borders is not None and exact.borders is not None
        whole = silo.borders.counts == exact.borders.counts
        assert whole.mean() > 0.8
        np.testing.assert_allclose(silo.borders.sums[0, whole], exact.borders.sums[0, whole], atol=1e-3)


def test_each_method_scores_all_nodes_of_all_silos_and_says_its_bytes() -> None:
    given = divided()
    for name, method in BORDER_METHODS.items():
        found = method.together(given)
        assert [scores.shape for scores in found.scores] == [(20, 2)] * 3
        assert (found.bytes_up > 3 * 4 * (1 << 12)) == (name == "borders")
        assert method.alone is not None and len(method.alone(given).scores) == 3
