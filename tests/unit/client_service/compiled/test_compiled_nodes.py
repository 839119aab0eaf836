"""A compiled graph scores its nodes as the model does, and a new node as a whole recomputation but for what is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.compilation.folder_publisher import FolderPublisher
from client_service.compilation.nodes import compile_nodes_in_memory, publish_nodes
from client_service.compiled.nodes import (
    CompiledNode,
    CompiledNodeModel,
    CompiledNodes,
    Neighbourhood,
    join_node,
    open_node_model,
)
from client_service.compiled.publication import read_publication
from client_service.data.node_graphs import NodeShard, build_adjacency, sort_entries
from client_service.model_store.node_models import ServedNodes, freeze_nodes, lay_out_network
from client_service.models.nodes.calibration import UNCALIBRATED
from client_service.models.nodes.spectral_bases import propagation_matrix
from client_service.training.node_trainer import NodeTrainer
from shared.errors import DataError
from shared.method.graph import Float64
from shared.method.settings import method_settings
from tests.support.nodes import small_graph

CPU = torch.device("cpu")


def train(shard: NodeShard, model: str = "node_ridge", rounds: int = 0, **changes: object) -> NodeTrainer:
    sizes = {"nodes.features": shard.features.shape[1], "nodes.classes": len(shard.classes), **changes}
    training = NodeTrainer(shard, method_settings(model=model, width=8, learning_rate=0.02, **sizes), CPU)
    for _ in range(rounds):
        training.train()
    return training


def compiled(shard: NodeShard, served: ServedNodes) -> tuple[CompiledNodes, CompiledNodeModel]:
    nodes, publish_model = compile_nodes_in_memory(shard)
    return nodes, publish_model(served)


def powers_of(shard: NodeShard, hops: int) -> Float64:
    """P^k x of all nodes, (n, hops + 1, q)."""
    found, propagation = [shard.features.toarray().astype(np.float64)], propagation_matrix(shard.adjacency)
    for _ in range(hops):
        found.append(propagation @ found[-1])
    return np.stack(found, axis=1)


def without_last(shard: NodeShard) -> NodeShard:
    kept = len(shard.node_ids) - 1
    return replace(
        shard,
        node_ids=tuple(shard.node_ids)[:kept],
        features=sort_entries(shard.features[:kept]),
        adjacency=sort_entries(sparse.csr_array(shard.adjacency[:kept][:, :kept])),
        labels=shard.labels[:kept],
        splits=shard.splits[:kept],
    )


def join_last(whole: NodeShard, hops: int) -> Float64:
    """P^k x of the last node, from rows of the graph without it."""
    before, last = without_last(whole), len(whole.node_ids) - 1
    neighbours = whole.adjacency[[last]].tocoo()
    rows = neighbours.coords[1]
    around = Neighbourhood(
        powers_of(before, hops)[rows].astype(np.float32),
        before.degrees[rows].astype(np.float64),
        neighbours.data.astype(np.float64),
        np.zeros(len(rows)),
    )
    return join_node(whole.dense_features[last].astype(np.float64), around).powers


def test_known_nodes_have_the_powers_and_the_probabilities_of_the_model() -> None:
    shard = small_graph(classes=3)
    served = freeze_nodes("run-1.0", train(shard))
    nodes, model = compiled(shard, served)
    np.testing.assert_allclose(model.probabilities, served.probabilities, atol=1e-6)
    again = model.scorer.calibrate(model.scorer.score(np.asarray(model.powers, np.float64)))
    np.testing.assert_allclose(again, served.probabilities, atol=1e-5)
    assert nodes.head.classes == shard.classes and model.version == "run-1.0"


def test_a_node_that_has_not_changed_joins_as_it_is() -> None:
    shard = small_graph()
    stored, propagation = powers_of(shard, 4), propagation_matrix(shard.adjacency)
    del propagation
    for row in range(len(shard.node_ids)):
        edges = shard.adjacency[[row]].tocoo()
        rows, weights = edges.coords[1], edges.data.astype(np.float64)
        around = Neighbourhood(
            stored[rows].astype(np.float32), shard.degrees[rows].astype(np.float64), weights, weights
        )
        before = CompiledNode(stored[row].astype(np.float32), float(shard.degrees[row]))
        joined = join_node(stored[row, 0], around, before)
        np.testing.assert_allclose(joined.powers, stored[row], atol=2e-6)
        np.testing.assert_allclose(joined.parts.sum(axis=0), joined.powers[1:], atol=1e-9)


def test_a_new_node_is_exact_at_the_first_hop_and_near_beyond() -> None:
    """What is left out is what the change means further away, and between neighbours that have an edge."""
    differences = []
    for seed in range(5):
        whole = small_graph(seed=seed, nodes=200)
        joined, true = join_last(whole, 4), powers_of(whole, 4)[-1]
        np.testing.assert_allclose(joined[:2], true[:2], atol=1e-5)
        differences.append(np.linalg.norm(joined - true, axis=1) / np.linalg.norm(true, axis=1))
    assert np.mean(differences, axis=0)[2] < 0.02 and np.mean(differences, axis=0)[4] < 0.06


def test_a_new_node_is_exact_where_its_neighbours_have_no_edge_and_nothing_lies_behind_them() -> None:
    edges = np.array([[0, 1, 2, 3], [4, 4, 4, 3]])
    adjacency = build_adjacency(edges[0], edges[1], np.array([1, 2, 3, 1], np.float32), 5)
    whole = replace(small_graph(nodes=5), adjacency=adjacency)
    np.testing.assert_allclose(join_last(whole, 6), powers_of(whole, 6)[-1], atol=1e-5)


@pytest.mark.parametrize("neighbours", [[], [7]])
def test_a_new_node_may_be_isolated_or_join_an_isolated_one(neighbours: list[int]) -> None:
    shard = replace(small_graph(nodes=8), adjacency=sparse.csr_array((8, 8), dtype=np.float32))
    rows = np.array(neighbours, dtype=np.int64)
    around = Neighbourhood(
        powers_of(shard, 3)[rows].astype(np.float32), np.zeros(len(rows)), np.full(len(rows), 2.0), np.zeros(len(rows))
    )
    joined = join_node(np.ones(4), around)
    assert np.isfinite(joined.powers).all()
    if neighbours:  # two nodes with one edge: P swaps their features
        np.testing.assert_allclose(joined.powers[1], shard.dense_features[7], rtol=1e-5)
        np.testing.assert_allclose(joined.powers[2], np.ones(4), rtol=1e-5)


def test_a_trained_filter_scores_known_and_new_nodes_as_torch_does() -> None:
    for classes in (2, 3):
        whole = small_graph(classes=classes, nodes=80)
        training = train(without_last(whole), "unifilter", rounds=20, **{"nodes.tau": 0.5, "nodes.order": 3})
        form, joined = lay_out_network(training, UNCALIBRATED), join_last(whole, 3)
        served = freeze_nodes("run-1.20", training)
        model = compiled(training.shard, replace(served, form=form))[1]
        with torch.no_grad():
            logits = training.model().double().numpy()
            new = training.model.label_new_nodes(joined[:, None]).double().numpy()
        for powers, wanted in ((np.asarray(model.powers, np.float64), logits), (joined[None], new)):
            scores = model.scorer.score(powers)
            found = scores[:, 1:] - scores[:, :1] if classes == 2 else scores
            np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_slopes_and_parts_make_the_score() -> None:
    """Of closed forms and networks alike: around each node the score is linear."""
    shard = small_graph()
    for training in (train(shard), train(shard, "unifilter", rounds=5)):
        served = freeze_nodes("run-1.0", training)
        form = lay_out_network(training, UNCALIBRATED) or served.form
        model = compiled(shard, replace(served, form=form))[1]
        powers = np.asarray(model.powers, np.float64)
        for row in (0, 17):
            slopes, step = model.scorer.score_gradient(powers[row], 1), 1e-7
            moved = powers[row] + step * np.random.default_rng(0).normal(size=powers[row].shape)
            change = model.scorer.score(moved[None])[0, 1] - model.scorer.score(powers[[row]])[0, 1]
            assert change == pytest.approx(float((slopes * (moved - powers[row])).sum()), rel=1e-3, abs=1e-12)


def test_a_published_model_opens_beside_its_graph_alone(tmp_path: Path) -> None:
    shard = small_graph()
    nodes, publish_model = publish_nodes(shard, FolderPublisher(tmp_path, "nodes", shard))
    publish_model(freeze_nodes("run-1.0", train(shard)))
    published = read_publication(tmp_path)
    assert published is not None and published.task == "nodes" and published.model is not None
    assert open_node_model(tmp_path / published.model, nodes).version == "run-1.0"
    others, _ = compile_nodes_in_memory(small_graph(seed=1))
    with pytest.raises(DataError, match="a model of the published nodes"):
        open_node_model(tmp_path / published.model, others)
