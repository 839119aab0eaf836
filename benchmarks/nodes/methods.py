"""Closed forms as methods of the benchmark of node graphs.

A new one is a function and a line in CLOSED_FORMS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import numpy as np

from benchmarks.nodes.cuts import DividedGraph
from client_service.data.node_graphs import NodeShard
from client_service.models.nodes.closed_form import (
    NodeModel,
    build_design_spec,
    find_own_projection,
    fit_nodes,
    make_design,
)
from client_service.models.nodes.smoothing import choose_smoothing, smooth_scores
from client_service.sums.node_directions import NodeDirections, count_products
from client_service.sums.node_gram import SummedGram, count_nodes, own_gram
from shared.method.node_settings import NodeSettings
from shared.method.parameters import Float32
from shared.sums.node_directions import FORM, PRODUCTS
from shared.sums.node_gram import decode_gram, encode_gram
from shared.sums.sum import UInt32


@dataclass(frozen=True)
class SiloScores:
    """Scores of a method: of each silo's nodes, (n, c), higher for a likelier class.

    bytes_up: what one silo sends in all, the mean over silos. more: what else is worth a line of the JSON.
    """

    scores: tuple[Float32, ...]
    bytes_up: float = 0.0
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeMethod:
    """Method of the benchmark.

    alone: what its silos have without the others; by default the closed form.
    """

    name: str
    title: str
    together: Callable[[DividedGraph], SiloScores]
    alone: Callable[[DividedGraph], SiloScores] | None = None


def fit_alone(shard: NodeShard, nodes: NodeSettings, *, logistic: bool = False) -> tuple[NodeModel, Float32]:
    """Fits the closed form of one graph by its own nodes alone.

    Returns the model, and the probabilities of all nodes.
    """
    spec = build_design_spec(nodes)
    design = make_design(shard, spec, find_own_projection(shard, spec))
    model = fit_nodes(shard, design, spec, logistic=logistic)
    return model, model.predict(design)


def run_alone(given: DividedGraph, *, logistic: bool = False) -> SiloScores:
    """Fits the closed form of each silo alone.

    logistic: may a silo have a logistic regression where it is better than the ridge?
    """
    fitted = [fit_alone(silo, given.nodes, logistic=logistic) for silo in given.silos]
    return SiloScores(
        tuple(scores for _, scores in fitted), more={"choices": count_choices([one for one, _ in fitted])}
    )


def run_centralised(given: DividedGraph) -> SiloScores:
    """Fits the closed form of the whole graph, by the same splits.

    The edges between silos are there.
    """
    model, scores = fit_alone(given.whole, given.nodes)
    return SiloScores(tuple(scores[rows] for rows in given.rows), more={"choices": count_choices([model])})


def run_gram(given: DividedGraph) -> SiloScores:
    """Sums Gram matrices of all silos, and fits each by sum and own part.

    The sum is in fixed point, as secure aggregation has it.
    """
    summed, sent = sum_grams(given)
    spec = build_design_spec(given.nodes)
    projection = summed.find_projection(given.nodes)
    models, scores = [], []
    for silo in given.silos:
        design = make_design(silo, spec, projection)
        model = fit_nodes(silo, design, spec, summed.pool(silo, design))
        models.append(model)
        scores.append(model.predict(design))
    return SiloScores(tuple(scores), sent, {"choices": count_choices(models)})


def run_smoothed(given: DividedGraph) -> SiloScores:
    """Corrects and smooths the scores of Gram sums, where a silo's validation gains."""
    found, chosen = run_gram(given), {"smoothed": 0}
    scores = []
    for silo, own in zip(given.silos, found.scores, strict=True):
        smoothing = choose_smoothing(silo, own)
        chosen["smoothed"] += smoothing is not None
        scores.append(own if smoothing is None else smooth_scores(silo, own, smoothing).astype(np.float32))
    return SiloScores(tuple(scores), found.bytes_up, {"choices": chosen})


def sum_grams(given: DividedGraph) -> tuple[SummedGram, float]:
    """Sums what silos send for Gram sums, in fixed point.

    Returns the sum, and the bytes that each silo sends.
    """
    nodes, silos, sent, directions = given.nodes, len(given.silos), 0, None
    if nodes.projected:
        words = [FORM.encode(count_products(silo, given.method).ravel(), silos, PRODUCTS) for silo in given.silos]
        directions, sent = NodeDirections("node_directions", _sum_words(words)), words[0].nbytes
    encoded = []
    for silo in given.silos:
        own = own_gram(count_nodes(silo, given.method), nodes, directions)
        encoded.append(encode_gram(own.square, own.right, nodes, silos))
    sent += sum(value.nbytes for value in encoded[0].values())
    square, right = decode_gram({name: _sum_words([one[name] for one in encoded]) for name in encoded[0]}, nodes)
    products = None if directions is None else directions.products
    return SummedGram("node_gram", square, right, products), float(sent)


def _sum_words(words: list[UInt32]) -> UInt32:
    return reduce(np.add, words)


def count_choices(models: list[NodeModel]) -> dict[str, int]:
    """Counts how many silos chose each form and own share."""
    found: dict[str, int] = {}
    for model in models:
        own = "alone" if model.choice.own == float("inf") else f"own x {model.choice.own:g}"
        found[f"{model.choice.form}, {own}"] = found.get(f"{model.choice.form}, {own}", 0) + 1
    return dict(sorted(found.items()))


CLOSED_FORMS: Mapping[str, NodeMethod] = {
    one.name: one
    for one in (
        NodeMethod("alone", "each silo alone, a ridge", run_alone),
        NodeMethod(
            "alone_logistic", "each silo alone, ridge or logistic regression", partial(run_alone, logistic=True)
        ),
        NodeMethod("gram", "one sum of Gram matrices, ridge with own share by validation", run_gram),
        NodeMethod("gram_smoothed", "the same, then Correct & Smooth where validation gains", run_smoothed),
    )
}
