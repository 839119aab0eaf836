"""UniFilter and SAGE on small graphs: what they exchange and learn, odd data, and a round that is run again."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.data.node_graphs import NodeShard, build_adjacency
from client_service.models.nodes.spectral_bases import propagation_matrix
from client_service.models.nodes.unifilter import UniFilter, lead_direction, measure_signature
from client_service.training.node_networks import NETWORKS, NodeNetworkTrainer, label_probabilities
from client_service.training.training_state import RoundContext
from shared.errors import SettingsError
from shared.method.node_settings import NodeSettings
from shared.method.parameters import digest_arrays
from shared.method.settings import MethodSettings
from shared.method.tensors import EXCHANGES

CPU = torch.device("cpu")


def draw_shard(nodes: int = 60, classes: int = 3, features: int = 5, seed: int = 0, edges: int = 200) -> NodeShard:
    """A graph whose neighbours are mostly of one class, with features that tell the class with noise."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, nodes)
    sources = generator.integers(0, nodes, edges)
    targets = np.array([generator.choice(np.flatnonzero(labels == labels[one])) for one in sources], dtype=np.int64)
    values = generator.normal(size=(nodes, features)).astype(np.float32)
    values[np.arange(nodes), labels % features] += 1.5
    return NodeShard(
        name="ada",
        node_ids=tuple(f"n{place:04}" for place in range(nodes)),
        features=sparse.csr_array(values),
        feature_names=tuple(f"f{place}" for place in range(features)),
        adjacency=build_adjacency(sources.astype(np.int64), targets, np.ones(edges, np.float32), nodes),
        labels=labels.astype(np.int64),
        classes=tuple(f"c{place}" for place in range(classes)),
        splits=generator.choice(3, nodes, p=[0.4, 0.3, 0.3]).astype(np.int8),
    )


def settings_of(shard: NodeShard, model: str, **changes: Any) -> MethodSettings:
    nodes = {"features": shard.features.shape[1], "classes": len(shard.classes), "order": 3, "tau": 0.7}
    values = {"width": 8, "layers": 2, "learning_rate": 0.02, "model": model}
    return MethodSettings(
        **values | {n: v for n, v in changes.items() if n in MethodSettings.model_fields},
        nodes=NodeSettings(**nodes | {n: v for n, v in changes.items() if n in NodeSettings.model_fields}),
    )


def train_rounds(trainer: NodeNetworkTrainer, rounds: int) -> None:
    for number in range(1, rounds + 1):
        trainer.context = RoundContext(number, rounds, 0)
        trainer.train()


MODELS = list(NETWORKS)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("model", MODELS)
def test_a_network_exchanges_all_its_parameters_and_learns(model: str, classes: int) -> None:
    shard = draw_shard(classes=classes)
    trainer = NodeNetworkTrainer(shard, settings_of(shard, model), CPU)
    declared = {tensor.name: tensor.shape for tensor in EXCHANGES[model].tensors(trainer.method)}
    own = {name: tuple(value.shape) for name, value in trainer.model.named_parameters()}
    assert {name: shape for name, shape in own.items() if not name.startswith("mask.")} == declared
    assert set(trainer.arrays()) == set(declared)
    train_rounds(trainer, 40)
    found = label_probabilities(trainer.model)
    assert found.shape == (60, classes)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    test = shard.nodes_of(2)
    assert np.mean(found.argmax(1)[test] == shard.labels[test]) > 0.7


@pytest.mark.parametrize("model", MODELS)
def test_a_round_that_is_run_again_gives_the_same_bytes(model: str) -> None:
    shard = draw_shard()
    runs = []
    for _ in range(2):
        trainer = NodeNetworkTrainer(shard, settings_of(shard, model, dropout=0.5), CPU)
        train_rounds(trainer, 3)
        runs.append(digest_arrays(trainer.arrays()))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("model", MODELS)
def test_graphs_without_edges_labels_or_spread_do_no_harm(model: str) -> None:
    plain = draw_shard(nodes=12)
    odd = (
        replace(plain, adjacency=sparse.csr_array((12, 12), dtype=np.float32)),
        replace(plain, labels=np.full(12, -1), splits=np.full(12, 3, np.int8)),
        replace(plain, features=sparse.csr_array((12, 5), dtype=np.float32)),
        replace(plain, labels=np.zeros(12, np.int64)),
    )
    for shard in odd:
        trainer = NodeNetworkTrainer(shard, settings_of(shard, model), CPU)
        train_rounds(trainer, 2)
        assert np.isfinite(label_probabilities(trainer.model)).all()
        if model == "unifilter":
            assert np.isfinite(trainer.measure("signature_high")).all()


@pytest.mark.parametrize("model", MODELS)
def test_a_copy_shares_the_graph_and_has_parameters_of_its_own(model: str) -> None:
    shard = draw_shard()
    trainer = NodeNetworkTrainer(shard, settings_of(shard, model), CPU)
    frozen = copy.deepcopy(trainer.model)
    before = label_probabilities(frozen)
    train_rounds(trainer, 1)
    np.testing.assert_array_equal(label_probabilities(frozen), before)
    assert frozen.data is trainer.model.data


def test_another_width_of_features_is_refused_in_words() -> None:
    shard = draw_shard()
    with pytest.raises(SettingsError, match="expected the run's 6 features and 3 classes, got 5 and 3"):
        NodeNetworkTrainer(shard, settings_of(shard, "unifilter", features=6), CPU)
    with pytest.raises(SettingsError, match="set both"):
        EXCHANGES["unifilter"].tensors(MethodSettings())


def test_a_new_node_is_labelled_as_if_it_had_been_there_but_for_the_columns_lengths() -> None:
    shard = draw_shard()
    trainer = NodeNetworkTrainer(shard, settings_of(shard, "unifilter", tau=1.0), CPU)
    train_rounds(trainer, 5)
    assert isinstance(trainer.model, UniFilter)
    propagation, values = propagation_matrix(shard.adjacency), shard.dense_features.astype(np.float64)
    powers = [values]
    for _ in range(3):
        powers.append(propagation @ powers[-1])
    found = trainer.model.label_new_nodes(np.stack(powers)[:, :4])
    with torch.no_grad():
        expected = trainer.model(torch.arange(4))
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=0, atol=1e-5)


def test_a_signature_is_the_direction_of_a_basis_of_rank_one_with_its_sign_fixed() -> None:
    direction = np.array([0.6, -0.8, 0.0])
    for sign in (1.0, -1.0):
        basis = np.outer(np.arange(5.0) * sign, direction)
        np.testing.assert_allclose(lead_direction(basis), [-0.6, 0.8, 0.0], atol=1e-12)
    wide = np.outer(np.arange(2.0), np.array([0.0, 0.0, 3.0, -4.0, 0.0]))
    np.testing.assert_allclose(lead_direction(wide), [0, 0, -0.6, 0.8, 0], atol=1e-12)
    np.testing.assert_array_equal(lead_direction(np.ones((4, 3))), 0.0)


def test_signatures_do_not_depend_on_labels_of_validation_and_test_nodes() -> None:
    shard = draw_shard()
    hidden = np.where(shard.splits == 0, shard.labels, (shard.labels + 1) % 3)
    for name in ("signature_low", "signature_high"):
        found = measure_signature(shard, 3, name)
        assert found.shape == (3, 5)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-5)
        np.testing.assert_array_equal(measure_signature(replace(shard, labels=hidden), 3, name), found)
