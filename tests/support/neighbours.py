"""Tests of secure rounds on the full graph, and on the smallest graph of neighbours that the settings can give."""

from __future__ import annotations

import pytest

from shared.protocol.schemas import GraphBounds
from shared.protocol.secure import graph

FEWEST = 4  # each draws two of the three others; of five silos, one of whom may drop out, each masks with three
BOUNDS = GraphBounds(colluders=0.0, dropouts=0.2)
BOTH_GRAPHS = pytest.mark.parametrize("bounds", ["everybody", "drawn"], indirect=True)


def force_graph(monkeypatch: pytest.MonkeyPatch) -> GraphBounds:
    """From four silos on rounds are held on a graph, where aggregator and silos take nobody to collude."""
    monkeypatch.setattr(graph, "FEWEST_MEMBERS", FEWEST)
    monkeypatch.setenv("LPSFED_CLIENT_POLICY__COLLUDERS", f"{BOUNDS.colluders}")
    graph.plan_graph.cache_clear()
    for members in (4, 5):
        plan = graph.plan_graph(members, BOUNDS)
        assert plan is not None and plan.degree < members - 1
    return BOUNDS
