"""Freezes a model of nodes: the closed form or the network, whichever the silo's own validation prefers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_service.data.node_graphs import VALID, NodeShard
from client_service.evaluation.node_measures import NODE_LABELS, measure_nodes
from client_service.model_store.model_server import FrozenModel
from client_service.models.nodes.closed_form import ALONE, NodeModel
from client_service.training.node_trainer import NETWORKS, NodeTrainer
from shared.method.graph import Float64
from shared.method.parameters import Float32

OWN = "closed form of this silo's nodes alone"
POOLED = "closed form of all silos' sums"
WEIGHED = "closed form of all silos' sums with this silo's share weighed"


@dataclass(frozen=True)
class NodeForm:
    """What computes scores from powers P^k x, as arrays of `NodeScorer`. powers: of all nodes, (n, J + 1, d)."""

    powers: Float32
    projection: Float64 | None
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Joining:
    """The primary measure on validation nodes of the closed form alone, and of what answers."""

    measure: str
    nodes: int
    alone: float
    served: float
    answers: str


@dataclass(frozen=True)
class ServedNodes(FrozenModel):
    """Frozen model of nodes.

    probabilities: of each node's classes, (n, c). alone: those of the silo's own closed form. form: for nodes that join
    later.
    """

    probabilities: Float64 = field(kw_only=True)
    alone: Float64 = field(kw_only=True)
    form: NodeForm = field(kw_only=True)
    joining: Joining = field(kw_only=True)


def freeze_nodes(version: str, training: NodeTrainer) -> ServedNodes:
    """Copies the model as it is now, and lets validation choose between the closed form and the network.

    Where both are as good the closed form answers: it is the simpler one.
    """
    shard, valid = training.shard, training.shard.nodes_of(VALID)
    alone = training.alone.predict().astype(np.float64)
    closed = training.closed.predict(training.design).astype(np.float64)
    chosen, answers = closed, describe_closed(training.closed)
    by_network = False
    if training.has_network:
        scores = training.network_scores()
        network = _softmax(scores)
        if _judge(shard, network, valid) > _judge(shard, closed, valid):
            chosen, answers, by_network = network, f"network {training.kind}", True
    name = measure_nodes(alone[valid], shard.labels[valid]).primary
    joining = Joining(
        NODE_LABELS[name].title, len(valid), _judge(shard, alone, valid), _judge(shard, chosen, valid), answers
    )
    form = form_of_network(training) if by_network else form_of_closed(training)
    model = copy.deepcopy(training.model).requires_grad_(False)
    return ServedNodes(version, model, probabilities=chosen, alone=alone, form=form, joining=joining)


def describe_closed(model: NodeModel) -> str:
    """Says of which sums a closed form is."""
    own = model.choice.own
    return OWN if own == ALONE else POOLED if own == 0.0 else WEIGHED


def form_of_closed(training: NodeTrainer) -> NodeForm:
    """Lays a closed form out as arrays of `NodeScorer`, with the powers that it needs."""
    model, spec = training.closed, training.spec
    whole = np.zeros((spec.width, model.weights.shape[1]))
    whole[model.columns] = model.weights
    linear = whole[1 : 1 + spec.block * len(spec.powers)].reshape(len(spec.powers), spec.block, -1)
    arrays: dict[str, NDArray[Any]] = {"bias": whole[0]}
    random = bool(spec.random and whole[-spec.random :].any())
    used = [place for place, block in enumerate(linear) if block.any()]
    count = len(spec.powers) if random else 1 + max(used, default=0)
    if used:
        arrays["linear"] = linear[:count]
    if random:
        inwards, outwards = spec.random_weights, whole[-spec.random :]
        arrays |= {"layer-0-weight": inwards[1:].T, "layer-0-bias": inwards[0]}
        arrays |= {"layer-1-weight": outwards.T, "layer-1-bias": np.zeros(outwards.shape[1])}
    classes = model.weights.shape[1]
    arrays["calibration"] = np.stack([np.full(classes, model.temperature), np.zeros(classes)])
    powers = np.stack([training.blocks[power] for power in spec.powers[:count]], axis=1)
    return NodeForm(powers.astype(np.float32), training.projection, arrays)


def form_of_network(training: NodeTrainer) -> NodeForm:
    """Lays a network out as arrays of `NodeScorer`."""
    arrays = NETWORKS[training.kind].compile(training.model)
    powers = arrays.pop("powers")
    return NodeForm(powers.astype(np.float32), None, arrays)


def _judge(shard: NodeShard, probabilities: Float64, rows: NDArray[np.int64]) -> float:
    return measure_nodes(probabilities[rows], shard.labels[rows]).primary_value


def _softmax(scores: Float64) -> Float64:
    powers: Float64 = np.exp(scores - scores.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers
