"""FedSGD on node graphs is central training on all silos' graphs without the edges between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.data.node_graphs import NodeShard
from client_service.training.node_networks import NodeNetworkTrainer
from client_service.training.training_state import RoundContext
from shared.errors import SettingsError
from shared.method.parameters import Parameters, State, Update
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy
from shared.strategies.agreement import secure_declaration
from tests.unit.client_service.training.test_node_networks import CPU, draw_shard, settings_of

ROUNDS = 8


def join_graphs(shards: list[NodeShard]) -> NodeShard:
    """All graphs in one, without an edge between two of them."""
    adjacency = sparse.csr_array(sparse.block_diag([one.adjacency for one in shards], format="csr"))
    return replace(
        shards[0],
        node_ids=tuple(f"{number}/{name}" for number, one in enumerate(shards) for name in one.node_ids),
        features=sparse.csr_array(sparse.vstack([one.features for one in shards], format="csr")),
        adjacency=adjacency,
        labels=np.concatenate([one.labels for one in shards]),
        splits=np.concatenate([one.splits for one in shards]),
    )


def train_by_gradients(shards: list[NodeShard], method: MethodSettings) -> State:
    strategy = build_strategy("fedsgd", method)
    state = State(strategy.start(method, 0))
    trainers = [NodeNetworkTrainer(one, method, CPU) for one in shards]
    for number in range(1, ROUNDS + 1):
        updates = []
        for place, trainer in enumerate(trainers):
            trainer.context = RoundContext(number, ROUNDS, 0)
            sent = strategy.fit_round(trainer, strategy.personalise(state, None))
            updates.append(Update(f"silo-{place}", sent.arrays, sent.scalars))
        state = strategy.aggregate(state, updates)
    return state


def train_centrally(shard: NodeShard, method: MethodSettings) -> dict[str, np.ndarray]:
    trainer = NodeNetworkTrainer(shard, method, CPU)
    trainer.load(Parameters(build_strategy("fedsgd", method).start(method, 0)))
    for number in range(1, ROUNDS + 1):
        trainer.context = RoundContext(number, ROUNDS, 0)
        trainer.train()
    return trainer.arrays()


@pytest.mark.parametrize("model", ["unifilter", "sage"])
@pytest.mark.parametrize("changes", [{}, {"filter_learning_rate": 0.1}, {"batch_size": 7}])
def test_summed_gradients_are_central_training_without_edges_between_silos(model: str, changes: dict[str, Any]) -> None:
    """With powers of the propagation alone: bases at an angle depend on each silo's columns and homophily."""
    shards = [draw_shard(nodes=20 + 15 * seed, seed=seed) for seed in range(3)]
    whole = settings_of(shards[0], model, tau=1.0)
    method = settings_of(shards[0], model, tau=1.0, **changes)
    central = settings_of(shards[0], model, tau=1.0, **{n: v for n, v in changes.items() if n != "batch_size"})
    found, expected = train_by_gradients(shards, method).arrays, train_centrally(join_graphs(shards), central)
    assert whole.batch_size > 100
    assert max(np.abs(expected[name] - START[name]).max() for START in [initial(method)] for name in expected) > 0.01
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-4, err_msg=name)


def initial(method: MethodSettings) -> dict[str, np.ndarray]:
    return build_strategy("fedsgd", method).start(method, 0)


def test_silos_count_by_their_examples_and_one_without_any_moves_nothing() -> None:
    shards = [draw_shard(nodes=40, seed=1), draw_shard(nodes=20, seed=2)]
    method = settings_of(shards[0], "unifilter", tau=1.0)
    alone = train_by_gradients(shards[:1], method).arrays
    silent = replace(shards[1], labels=np.full(20, -1), splits=np.full(20, 3, np.int8))
    for name, value in train_by_gradients([shards[0], silent], method).arrays.items():
        np.testing.assert_allclose(value, alone[name], rtol=0, atol=1e-5)
    nothing = train_by_gradients([silent], method).arrays
    assert all(np.array_equal(nothing[name], value) for name, value in initial(method).items())


def test_it_may_be_masked_and_takes_no_robust_centre() -> None:
    method = settings_of(draw_shard(), "unifilter")
    strategy = build_strategy("fedsgd", method)
    assert secure_declaration(strategy.declaration(method), strategy, method).secure
    with pytest.raises(SettingsError, match="which sends no parameters"):
        build_strategy("fedsgd", method.model_copy(update={"aggregate": "median"}))
    with pytest.raises(SettingsError, match="which has a step of its own"):
        build_strategy("fedsgd", method.model_copy(update={"server": "adam"}))


def test_gradients_are_those_of_the_summed_loss() -> None:
    shard = draw_shard()
    trainer = NodeNetworkTrainer(shard, settings_of(shard, "sage"), CPU)
    found, examples = trainer.sum_gradients()
    rows = shard.nodes_of(0)
    assert examples == len(rows)
    trainer.model.zero_grad()
    loss = torch.nn.functional.cross_entropy(
        trainer.model(torch.from_numpy(rows)), torch.from_numpy(shard.labels[rows]), reduction="sum"
    )
    loss.backward()  # type: ignore[no-untyped-call]
    for name, value in trainer.model.named_parameters():
        assert value.grad is not None
        np.testing.assert_allclose(found[name], value.grad.numpy(), rtol=0, atol=1e-4)


def train_with(strategy_name: str, method: MethodSettings, shard: NodeShard) -> dict[str, np.ndarray]:
    strategy = build_strategy(strategy_name, method)
    trainer = NodeNetworkTrainer(shard, method, CPU)
    trainer.context = RoundContext(1, 1, 0)
    return dict(strategy.fit_round(trainer, Parameters(strategy.start(method, 0))).arrays)


def test_one_full_step_with_the_penalty_of_fedprox_is_that_of_fedavg_and_two_are_not() -> None:
    shard = draw_shard()
    for epochs, equal in ((1, True), (2, False)):
        method = settings_of(shard, "unifilter").model_copy(update={"local_epochs": epochs, "optimiser": "sgd"})
        plain = train_with("fedavg", method, shard)
        strategy = build_strategy("fedprox", method.model_copy(update={"local_epochs": 2, "strategy": {"mu": 1.0}}))
        trainer = NodeNetworkTrainer(shard, method, CPU)
        trainer.context = RoundContext(1, 1, 0)
        held = strategy.fit_round(trainer, Parameters(strategy.start(method, 0))).arrays
        assert all(np.array_equal(plain[name], held[name]) for name in plain) == equal
