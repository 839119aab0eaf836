"""Every network of the benchmark of node graphs runs in its quick form, and answers by its best round."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from benchmarks.nodes.cuts import DividedGraph
from benchmarks.nodes.networks import (
    LOCAL,
    NETWORK_METHODS,
    judge_validation,
    network_settings,
    train_network_federation,
)
from client_service.data.node_graphs import VALID, NodeShard
from shared.method.node_settings import NodeSettings
from shared.method.settings import MethodSettings
from simulation.graphs.cut import cut_graph, divide_graph
from tests.unit.client_service.training.test_node_networks import draw_shard

WHOLE = draw_shard(nodes=90, classes=2, edges=300)


def divide(whole: NodeShard = WHOLE) -> DividedGraph:
    cut = cut_graph(whole, 3, 0, "growth")
    sizes = NodeSettings(features=whole.features.shape[1], classes=len(whole.classes))
    silos = tuple(divide_graph(whole, cut, split_seed=0))
    return DividedGraph("small", whole, silos, cut.nodes, MethodSettings(nodes=sizes), 0)


@pytest.mark.parametrize("name", NETWORK_METHODS)
def test_a_network_gives_scores_of_all_nodes_and_says_what_it_sends(name: str) -> None:
    given, run = divide(), NETWORK_METHODS[name].together
    assert isinstance(run, partial)
    quick: dict[str, Any] = {**run.keywords, "rounds": 2}
    found = run.func(given, **quick)
    for silo, scores in zip(given.silos, found.scores, strict=True):
        assert scores.shape == (len(silo.node_ids), 2)
        np.testing.assert_allclose(scores.sum(axis=1), 1.0, rtol=1e-5)
    assert (found.bytes_up == 0) == (name == "network_alone")
    assert ("weights" in found.more) == name.startswith("fedgsp")


def test_a_silo_answers_by_the_round_that_its_own_validation_prefers() -> None:
    given = divide()
    method = network_settings(given, LOCAL, {})
    found = train_network_federation(given.silos, method, "fedavg", 12, 0)
    for silo, record in zip(given.silos, found.records, strict=True):
        rows = silo.nodes_of(VALID)
        assert record.valid == pytest.approx(judge_validation(record.scores[rows], silo.labels[rows]))
        assert 1 <= record.round <= 12


def test_labels_of_test_nodes_change_no_answer() -> None:
    given = divide()
    blind = [replace(one, labels=np.where(one.splits == 2, 0, one.labels)) for one in given.silos]
    method = network_settings(given, LOCAL, {})
    for name in ("fedgsp", "fedsgd"):
        runs = [train_network_federation(silos, method, name, 3, 0) for silos in (given.silos, blind)]
        for one, other in zip(runs[0].records, runs[1].records, strict=True):
            np.testing.assert_array_equal(one.scores, other.scores)
