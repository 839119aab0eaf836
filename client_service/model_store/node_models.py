"""Freezes a model of nodes: closed form or network, as the silo's validation prefers."""

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
from client_service.models.nodes.calibration import Calibration, calibrate
from client_service.models.nodes.closed_form import ALONE, NodeModel
from client_service.models.nodes.spectral_bases import inverse_roots, propagate_features, propagation_matrix
from client_service.models.nodes.unifilter import UniFilter
from client_service.training.node_trainer import ClosedForm, NodeTrainer, propagate_all
from shared.method.graph import Float64
from shared.method.parameters import Float32

OWN = "closed form of this silo's nodes alone"
POOLED = "closed form of all silos' sums"
WEIGHED = "closed form of all silos' sums with this silo's share weighed"


@dataclass(frozen=True)
class NodeForm:
    """Arrays of `NodeScorer`, and the powers P^k x of all nodes.

    powers: (n, J + 1, d).
    """

    powers: Float32
    projection: Float64 | None
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Joining:
    """Primary measure on validation nodes: the closed form alone, and the served model."""

    measure: str
    nodes: int
    alone: float
    served: float
    answers: str


@dataclass(frozen=True)
class ServedNodes(FrozenModel):
    """Frozen model of nodes.

    probabilities: of each node's classes, (n, c). alone: those of the silo's own closed form. form: for nodes that join
    later. of_known_alone: is the form another model's, because the network scores no node that joins?
    """

    probabilities: Float64 = field(kw_only=True)
    alone: Float64 = field(kw_only=True)
    form: NodeForm = field(kw_only=True)
    joining: Joining = field(kw_only=True)
    of_known_alone: bool = field(default=False, kw_only=True)


def freeze_nodes(version: str, training: NodeTrainer, *, refitted: bool = False) -> ServedNodes:
    """Copies the model, and chooses the closed form or the network by validation.

    Where both are as good the closed form answers: it is the simpler one. refitted: a closed form that was chosen
    answers as it is fitted on all labelled nodes; `joining` has the measures of before.
    """
    shard, valid = training.shard, training.shard.nodes_of(VALID)
    alone, closed = training.alone.predict(), training.closed_form.predict()
    chosen, answers = closed, describe_closed_form(training.closed_form.model)
    form, by_network = None, False
    if training.has_network:
        calibration = calibrate_network(training)
        network = calibration.probabilities(training.class_scores()).astype(np.float64)
        if _judge(shard, network, valid) > _judge(shard, closed, valid):
            chosen, answers = network, f"network {training.kind}"
            form, by_network = lay_out_network(training, calibration), True
    name = measure_nodes(alone[valid], shard.labels[valid]).primary
    joining = Joining(
        NODE_LABELS[name].title, len(valid), _judge(shard, alone, valid), _judge(shard, chosen, valid), answers
    )
    answering = training.refitted_form if refitted and not by_network else training.closed_form
    return ServedNodes(
        version,
        copy.deepcopy(training.model).requires_grad_(False),
        probabilities=chosen if by_network else answering.predict(),
        alone=alone,
        form=form or lay_out_closed_form(answering),
        joining=joining,
        of_known_alone=by_network and form is None,
    )


def describe_closed_form(model: NodeModel) -> str:
    """Describes which sums a closed form was fitted with."""
    own = model.choice.own
    return OWN if own == ALONE else POOLED if own == 0.0 else WEIGHED


def lay_out_closed_form(closed: ClosedForm) -> NodeForm:
    """Lays a closed form out as arrays of `NodeScorer`, with the powers that it needs."""
    model, spec = closed.model, closed.spec
    shard = closed.shard  # without border sums where the silo's validation does not want them
    powers, classes = propagate_all(shard, closed), model.weights.shape[1]
    count, places, whole = powers.shape[1], list(spec.powers), model.weights.astype(np.float64)
    linear = np.zeros((count, spec.block, classes))
    linear[places] = model.linear
    arrays: dict[str, NDArray[Any]] = {
        "bias": whole[0],
        "linear": linear,
        "calibration": _lay_out(model.calibration, classes),
    }
    if spec.random and whole[-spec.random :].any():
        drawn = spec.random_weights[1:].T.reshape(spec.random, -1, spec.block)
        inwards = np.zeros((spec.random, count, spec.block))
        inwards[:, places] = drawn / len(places) if spec.directions else drawn
        arrays |= {"layer-0-weight": inwards.reshape(spec.random, -1), "layer-0-bias": spec.random_weights[0]}
        arrays |= {"layer-1-weight": whole[-spec.random :].T, "layer-1-bias": np.zeros(classes)}
    return NodeForm(powers, closed.projection, arrays | _border_rates(shard, count - 1))


def _border_rates(shard: NodeShard, hops: int) -> dict[str, NDArray[Any]]:
    """Computes the rates of `propagate_nodes` where border sums are known.

    giving: by which a neighbour gives, (n,). receiving: by which a node receives at each hop, (n, J).

    Nothing where no border sums are known: then both follow from the degrees.
    """
    borders, foreign = shard.borders, shard.foreign
    if borders is None or foreign is None:
        return {}
    own, beyond = shard.degrees.astype(np.float64), foreign.degrees.astype(np.float64)
    summed = inverse_roots(own + beyond * borders.counts / np.maximum(foreign.counts, 1))
    received = [summed if hop < len(borders.sums) else inverse_roots(own) for hop in range(hops)]
    return {"giving": inverse_roots(own + beyond), "receiving": np.stack(received, axis=1)}


def _lay_out(calibration: Calibration, classes: int) -> NDArray[np.float64]:
    return np.stack([np.full(classes, calibration.scale), np.array(calibration.offsets or (0.0,) * classes)])


def calibrate_network(training: NodeTrainer) -> Calibration:
    """Fits the network's probabilities to validation nodes."""
    shard, valid = training.shard, training.shard.nodes_of(VALID)
    return calibrate(training.class_scores()[valid].astype(np.float32), shard.labels[valid])


def lay_out_network(training: NodeTrainer, calibration: Calibration) -> NodeForm | None:
    """Lays a network out as arrays of `NodeScorer`.

    None for a network that is no function of powers P^k x.
    """
    model = training.model
    if not isinstance(model, UniFilter):
        return None
    own = model.frozen_arrays()
    outwards, biases = own["predictive.weight"], own["predictive.bias"]
    if len(biases) == 1:  # of two classes the first has the score 0
        outwards, biases = np.concatenate([np.zeros_like(outwards), outwards]), np.concatenate([np.zeros(1), biases])
    arrays = {
        "mix": np.einsum("k,kjf->jf", own["filter.weight"].astype(np.float64), model.coefficients),
        "layer-0-weight": own["hidden.weight"],
        "layer-0-bias": own["hidden.bias"],
        "layer-1-weight": outwards,
        "layer-1-bias": biases,
        "bias": np.zeros(len(biases)),
        "calibration": _lay_out(calibration, len(biases)),
    }
    propagation, order = propagation_matrix(training.shard.adjacency), len(own["filter.weight"]) - 1
    steps = propagate_features(propagation, training.shard.features, order)
    powers = [training.shard.dense_features, *(step.astype(np.float32) for step in steps)]
    return NodeForm(np.stack(powers, axis=1), None, arrays)


def _judge(shard: NodeShard, probabilities: Float64, rows: NDArray[np.int64]) -> float:
    return measure_nodes(probabilities[rows], shard.labels[rows]).primary_value
