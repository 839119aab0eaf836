"""Attack: a silo adds Gram matrices of nodes that it does not have, so many that they are most of the sum.

No check can tell them from true ones: they are of data that somebody could have. Each silo's own validation does, and
goes on alone, so that joining costs it nothing that it can measure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from client_service.data.foreign_edges import BorderSums
from client_service.data.node_graphs import TRAIN, VALID, NodeShard
from client_service.models.nodes.closed_form import (
    ALONE,
    NodeGram,
    build_design_spec,
    count_gram,
    fit_nodes,
    make_design,
)
from client_service.models.nodes.measures import primary_score
from client_service.sums.node_gram import SummedGram, add_gram, count_nodes, finish_gram
from client_service.sums.silo_sum import SumRound, Sums
from client_service.training.node_trainer import NodeTrainer
from shared.method.settings import MethodSettings, method_settings
from shared.sums.node_gram import encode_gram
from tests.support.node_silos import cut_graph
from tests.support.nodes import small_graph

SILOS = 4
SIZES: dict[str, Any] = {"nodes.features": 4, "nodes.classes": 2, "nodes.hops": 2, "nodes.random_features": 6}
SETTINGS = method_settings(**{"basis.kind": "node_gram", **SIZES})


def sum_with_lie(shards: list[NodeShard], times: float, method: MethodSettings) -> SummedGram:
    """The sum of the first silos and of one that has the labels of its nodes turned round, each node `times`."""
    rounds = [SumRound(count_nodes(one, method), method, 1, SILOS, 1, {}) for one in shards]
    liar = replace(shards[-1], labels=np.where(shards[-1].labels < 0, -1, 1 - shards[-1].labels))
    rows = liar.nodes_of(TRAIN)
    false = count_gram(make_design(liar, build_design_spec(method.nodes))[rows], liar.labels[rows], 2).weigh(times)
    parts: list[Sums] = [add_gram(one) for one in rounds[:-1]]
    parts.append(dict(encode_gram(false.square, false.right, method.nodes, SILOS)))
    total: Sums = {name: np.sum([one[name] for one in parts], axis=0, dtype=np.uint32) for name in parts[0]}
    return finish_gram(rounds[0]._replace(sums={1: total}))


@pytest.mark.parametrize("times", [1.0, 100.0])
def test_a_silo_s_own_validation_does_not_follow_false_sums(times: float) -> None:
    shards = [small_graph(nodes=180, seed=seed) for seed in range(SILOS)]
    summed = sum_with_lie(shards, times, SETTINGS)
    spec = build_design_spec(SETTINGS.nodes)
    for shard in shards[:-1]:
        design, valid = make_design(shard, spec), shard.nodes_of(VALID)
        scores = {}
        for name, pooled in (("alone", None), ("with it", NodeGram(summed.square, summed.right))):
            model = fit_nodes(shard, design, spec, pooled)
            scores[name] = primary_score(model.predict(design[valid]), shard.labels[valid], 2)
        assert scores["with it"] >= scores["alone"] - 1.0 / len(valid)
        if times > 1.0:
            assert model.choice.own == ALONE or model.choice.own > 0.0, "not by the sum alone"


def test_false_border_sums_cost_a_silo_nothing_that_its_own_validation_measures() -> None:
    shard = cut_graph(small_graph(240), [one % 2 for one in range(240)])[0]
    assert shard.foreign is not None
    noise = np.random.default_rng(0).standard_normal((2, len(shard.node_ids), 4)).astype(np.float32) * 3e4
    poisoned = replace(shard, borders=BorderSums(shard.foreign.counts.copy(), noise))
    settings: dict[str, Any] = {"nodes.random_features": 20}
    method = method_settings(model="node_ridge", **settings)
    trainer, valid = NodeTrainer(poisoned, method, torch.device("cpu")), shard.nodes_of(VALID)
    alone, found = (
        primary_score(one.predict()[valid], shard.labels[valid], 2) for one in (trainer.alone, trainer.closed_form)
    )
    assert found >= alone - 1.0 / len(valid)
    assert trainer.closed_form.shard.borders is None
