"""Odd graphs are fitted, compiled and answered: finite numbers that add up to 1, whatever the silo has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import sparse

from client_service.compilation.nodes import compile_nodes_in_memory
from client_service.data.foreign_edges import BorderSums, build_foreign_edges
from client_service.data.node_graphs import TRAIN, VALID, NodeShard, build_adjacency, sort_entries
from client_service.evaluation.node_measures import measure_nodes
from client_service.joining_value.node_comparison import adjust_homophily, compare_nodes, describe_graph
from client_service.model_store.node_models import freeze_nodes
from client_service.runtime.interruption import NEVER
from client_service.serving.node_labels import NodeLabels
from client_service.serving.node_messages import LabelsIn
from client_service.tasks.nodes import NODES
from client_service.training.node_networks import label_probabilities
from client_service.training.node_trainer import NodeTrainer
from shared.errors import SettingsError
from shared.method.settings import method_settings
from tests.support.nodes import small_graph

CPU = torch.device("cpu")
NO_EDGES = sparse.csr_array((60, 60), dtype=np.float32)


def lone_split(split: int) -> np.ndarray:
    return np.full(60, split, np.int8)


def with_labels(labels: np.ndarray, splits: np.ndarray) -> NodeShard:
    return small_graph(labels=labels.astype(np.int64), splits=splits.astype(np.int8))


ODD: dict[str, NodeShard] = {
    "no edges": small_graph(adjacency=NO_EDGES),
    "one class alone is seen": with_labels(np.zeros(60), np.arange(60) % 3),
    "no label is known": with_labels(np.full(60, -1), np.full(60, 3)),
    "no validation node": with_labels(np.arange(60) % 2, lone_split(TRAIN)),
    "no training node": with_labels(np.arange(60) % 2, lone_split(VALID)),
    "one validation node": with_labels(np.arange(60) % 2, np.where(np.arange(60) == 7, VALID, TRAIN)),
    "features of zeros": replace(small_graph(), features=sort_entries(sparse.csr_array((60, 4), dtype=np.float32))),
    "large features": replace(small_graph(), features=sort_entries(small_graph().features * np.float32(1e6))),
    "heavy and light edges": replace(
        small_graph(), adjacency=build_adjacency(*np.array([[0, 1], [1, 2]]), np.array([1e6, 1e-6], np.float32), 60)
    ),
    "ids of other scripts": small_graph(node_ids=tuple(sorted(f"узел-{number}-éß中" for number in range(60)))),
    "wide features": small_graph(features=300, classes=3),
    "one node": small_graph(nodes=1),
}


def answer(shard: NodeShard, **changes: Any) -> tuple[NodeTrainer, NodeLabels]:
    training = NodeTrainer(shard, method_settings(model="node_ridge", **changes), CPU)
    answers = NodeLabels(*compile_nodes_in_memory(shard))
    answers.served = freeze_nodes("run-1.0", training)
    return training, answers


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ODD)
def test_every_node_of_an_odd_graph_has_probabilities(name: str) -> None:
    shard = ODD[name]
    training, answers = answer(shard)
    training.train()
    assert np.isfinite(training.figures.loss)
    new = {"features": [0.5] * len(shard.feature_names), "neighbours": [{"node": shard.node_ids[0], "weight": 1e6}]}
    asked = LabelsIn.model_validate({"nodes": [*shard.node_ids, new]})
    for one in answers.answer(asked).results:
        assert one.fallback is None and sum(one.probabilities.values()) == pytest.approx(1.0, abs=1e-5), name
        assert all(np.isfinite(neighbour.contribution) for neighbour in one.neighbours)
    served = freeze_nodes("run-1.0", training)
    for judge in (NODES.judge, NODES.test):
        assert all(np.isfinite(value) for value in judge(shard, served, NEVER).values.values())
    compare_nodes(shard, served).model_dump_json()
    describe_graph(shard, served).model_dump_json()
    refitted = freeze_nodes("run-1.0", training, refitted=True)
    assert np.allclose(refitted.probabilities.sum(1), 1.0) and refitted.joining == served.joining
    answers.served = refitted
    assert all(np.isfinite(list(one.probabilities.values())).all() for one in answers.answer(asked).results)


def test_a_shard_of_other_sizes_than_all_silos_share_is_refused() -> None:
    for name in ("features", "classes"):
        with pytest.raises(SettingsError, match="as all silos have"):
            answer(small_graph(), **{f"nodes.{name}": 7})


def test_a_question_beyond_its_limits_is_refused() -> None:
    new: dict[str, Any] = {"features": [0, 0, 0, 0]}
    for wrong in (
        {"nodes": []},
        {"nodes": ["a"] * 1001},
        {"nodes": [{}]},
        {"nodes": [{"features": [float("nan")]}]},
        {"nodes": [{"features": [float("inf")]}]},
        {"nodes": [{"features": [1e10]}]},
        {"nodes": [{**new, "neighbours": [{"node": "a", "weight": 0}]}]},
        {"nodes": [{**new, "neighbours": [{"node": "a", "weight": 1e7}]}]},
        {"nodes": [{**new, "neighbours": [{"node": "a"}] * 10_001}]},
        {"nodes": [{**new, "neighbours": [{"node": "a"}] * 9_999}] * 11},
        {"nodes": ["a"], "more": 1},
    ):
        with pytest.raises(ValidationError):
            LabelsIn.model_validate(wrong)


def test_a_neighbour_that_is_named_twice_or_is_the_node_itself_counts_once_or_not() -> None:
    shard = small_graph()
    answers = answer(shard)[1]
    twice = {"features": [1, 0, 0, 0], "neighbours": [{"node": "node-0001"}, {"node": "node-0001", "weight": 3}]}
    own = {"node": "node-0002", "neighbours": [{"node": "node-0002"}, {"node": "node-0001"}]}
    first, second = answers.answer(LabelsIn.model_validate({"nodes": [twice, own]})).results
    assert [(one.node, one.weight) for one in first.neighbours] == [("node-0001", 3.0)]
    assert [one.node for one in second.neighbours] == ["node-0001"]


def test_contributions_are_what_the_score_loses_without_the_neighbour() -> None:
    answers = answer(small_graph(), **{"nodes.random_features": 0})[1]
    served = answers.served
    assert served is not None
    for row in range(0, 60, 7):
        [told] = answers.answer(LabelsIn(nodes=(answers.nodes.node_ids[row],))).results
        edges, weights = answers.nodes.edges.row(row)
        joined, column = served.read_node_powers(row, edges, weights.astype(np.float64)), told.label == "class-1"
        for one in told.neighbours:
            place = edges.tolist().index(answers.nodes.node_ids.row(one.node))
            without = joined.powers.copy()
            without[1:] -= joined.parts[place]
            lost = served.scorer.score(np.stack([joined.powers, without]))[:, int(column)]
            assert one.contribution == pytest.approx(lost[0] - lost[1], abs=1e-6)


@pytest.mark.parametrize(
    ("chances", "labels", "auc", "accuracy"),
    [
        ([0.1, 0.9, 0.8, 0.3], [0, 1, 1, 0], 1.0, 1.0),
        ([0.9, 0.1, 0.2, 0.7], [0, 1, 1, 0], 0.0, 0.0),
        ([0.5, 0.5, 0.5, 0.5], [0, 1, 1, 0], 0.5, 0.5),
        ([0.6, 0.7], [1, 1], 0.5, 1.0),
        ([], [], 0.0, 0.0),
        ([float("nan"), 0.2], [0, 1], 0.0, 0.0),
    ],
)
def test_measures_of_two_classes(chances: list[float], labels: list[int], auc: float, accuracy: float) -> None:
    ones = np.array(chances, dtype=np.float64)
    found = measure_nodes(np.stack([1 - ones, ones], axis=1), np.array(labels, dtype=np.int64))
    assert found.primary == "auc" and found.values == pytest.approx({"auc": auc, "accuracy": accuracy})


def test_adjusted_homophily_is_that_of_the_equation() -> None:
    """Platonov et al. 2023: (h - sum D_k^2 / (2 E)^2) / (1 - sum D_k^2 / (2 E)^2), worked by hand."""
    edges = np.array([[0, 1, 2], [1, 2, 3]])
    adjacency = build_adjacency(edges[0], edges[1], np.ones(3, np.float32), 4)
    labels, splits = np.array([0, 0, 1, 1]), np.zeros(4, np.int8)
    shard = small_graph(nodes=4, adjacency=adjacency, labels=labels, splits=splits)
    assert shard.edge_homophily() == pytest.approx(2 / 3)
    assert adjust_homophily(shard) == pytest.approx((2 / 3 - 0.5) / 0.5)
    assert adjust_homophily(small_graph(adjacency=NO_EDGES)) is None


def test_a_network_that_scores_no_new_node_leaves_these_to_the_closed_form() -> None:
    shard = small_graph(nodes=120)
    sizes = {"nodes.features": 4, "nodes.classes": 2}
    training = NodeTrainer(shard, method_settings(model="sage", width=8, learning_rate=0.02, **sizes), CPU)
    for _ in range(40):
        training.train()
    served = freeze_nodes("run-1.40", training)
    if not served.of_known_alone:  # validation prefers the closed form here: what follows is of the network's case
        network = label_probabilities(training.model)
        served = replace(served, probabilities=network, of_known_alone=True)
    answers = NodeLabels(*compile_nodes_in_memory(shard))
    answers.served = served
    new = {"features": [1, 0, 0, 0], "neighbours": [{"node": "node-0001"}]}
    known, fresh = answers.answer(LabelsIn.model_validate({"nodes": ["node-0001", new]})).results
    assert known.fallback is None and fresh.fallback is not None and fresh.fallback.startswith("the closed form")
    assert known.probabilities["class-1"] == pytest.approx(served.probabilities[1, 1], abs=1e-6)


@pytest.mark.parametrize("features", [4, 300])
def test_a_node_that_is_described_as_it_is_has_the_label_that_it_has(features: int) -> None:
    """Of wide features too, which are scaled to rows of length 1 and projected."""
    shard = small_graph(nodes=120, features=features, classes=3)
    answers = answer(shard)[1]
    for row in range(0, 120, 11):
        name = shard.node_ids[row]
        edges = shard.adjacency[[row]].tocoo()
        around = [
            {"node": shard.node_ids[one], "weight": weight}
            for one, weight in zip(edges.coords[1].tolist(), edges.data.tolist(), strict=True)
        ]
        own = {"node": name, "features": shard.dense_features[row].tolist()}
        asked = LabelsIn.model_validate({"nodes": [name, own, {**own, "neighbours": around}]})
        known, described, whole = answers.answer(asked).results
        assert described.probabilities == pytest.approx(known.probabilities, abs=1e-4)
        assert whole.probabilities == pytest.approx(known.probabilities, abs=1e-4)
        assert [one.node for one in described.neighbours] == [one.node for one in known.neighbours]


def test_a_node_with_neighbours_in_other_silos_keeps_what_their_sums_add() -> None:
    """Border sums are no edges of the silo: a node that is described or has a new edge keeps them."""
    generator, shard = np.random.default_rng(0), small_graph(nodes=120)
    rows, count = np.arange(0, 120, 2), 120
    ids = [f"foreign-{number}" for number in range(len(rows))]
    foreign = build_foreign_edges(rows, ids, np.full(len(rows), 3.0, np.float32), count)
    counts = np.where(np.arange(count) % 2 == 0, 1, 0)
    sums = generator.normal(size=(2, count, 4)).astype(np.float32) * counts[None, :, None]
    shard = replace(shard, foreign=foreign, borders=BorderSums(counts, sums))
    training, answers = answer(shard)
    assert answers.served is not None
    del training
    for row in (0, 1, 2, 31):
        own = {"node": shard.node_ids[row], "features": shard.dense_features[row].tolist()}
        known, same = answers.answer(LabelsIn.model_validate({"nodes": [own["node"], own]})).results
        assert same.probabilities == pytest.approx(known.probabilities, abs=0.02)
