"""FED-PUB: each client's mean weighs similar clients most, by a proxy graph.

Clients are similar whose models do the same to the proxy graph.

Baek, Jeong, Jin, Yoon, Hwang. Personalized Subgraph Federated Learning. ICML 2023. arXiv 2206.10206. Shapes: C
clients, n = 500 proxy nodes, d MLP width, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from shared.method.graph import Float64
from shared.method.parameters import Arrays, Float32, State, Update
from shared.method.settings import MethodSettings
from shared.method.tensors import EXCHANGES
from shared.strategies.aggregation import mean_of_updates
from shared.strategies.local_client import Objective
from shared.strategies.strategy import Strategy, fit_plain, own_mean

BLOCKS, BLOCK_NODES, EDGE_PROBABILITY = 5, 100, 0.1  # of the proxy graph: communities without an edge between them
PROXY_SEED = 0
SCALE = 10.0  # how sharply similar clients are preferred to others
SPARSE, NEAR = 1e-3, 1e-3  # weights of the two penalties
MASKED = {"unifilter": "masked_unifilter"}
"""Masked model by model of a run; for every other one it is the masked encoder, which has both MLPs."""
FILTER = "filter.weight"


def masks_and_distance(own: Mapping[str, Any], received: Mapping[str, Any]) -> Any:
    """Computes L1 of the private masks plus the squared distance to received weights."""
    # Paper: the distance counts from the second round; here: from the first, where what was received is the start that
    # all share, because a strategy is the same in every round.
    masks = sum(abs(value).sum() for name, value in own.items() if name.startswith("mask."))
    return SPARSE * masks + NEAR * sum(((own[name] - received[name]) ** 2).sum() for name in received)


@lru_cache(maxsize=4)
def proxy_layers(width: int, layers: int) -> Float64:
    """Computes powers of the proxy graph's features, (n, (L + 1) d).

    [Z, A Z, .., A^L Z], read-only: normal features Z, normalised adjacency A.
    """
    # Paper: the encoder's own convolutions run on the proxy; here: powers of A stand for them, because the kernels
    # belong to one client's spectrum and never leave it.
    generator = np.random.default_rng(PROXY_SEED)
    adjacency = _normalise(proxy_graph(generator))
    found = [generator.standard_normal((len(adjacency), width))]
    for _ in range(layers):
        found.append(adjacency @ found[-1])
    joined = np.concatenate(found, axis=1)
    joined.flags.writeable = False
    return joined


def proxy_graph(generator: np.random.Generator) -> Float64:
    """Draws the symmetric 0/1 adjacency (n, n), without loops."""
    nodes = BLOCKS * BLOCK_NODES
    together = np.arange(nodes)[:, None] // BLOCK_NODES == np.arange(nodes) // BLOCK_NODES
    upper = np.triu((generator.random((nodes, nodes)) < EDGE_PROBABILITY) & together, k=1)
    adjacency: Float64 = (upper | upper.T).astype(np.float64)
    return adjacency


def _normalise(adjacency: Float64) -> Float64:
    root = np.sqrt(np.maximum(adjacency.sum(axis=1), 1.0))
    scaled: Float64 = adjacency / root[:, None] / root
    return scaled


def functional_embedding(arrays: Arrays) -> Float64:
    """Computes the mean of a client's embeddings of the proxy graph, (d,)."""
    return filter_embedding(arrays) if FILTER in arrays else pooling_embedding(arrays)


def filter_embedding(arrays: Arrays) -> Float64:
    """Computes the mean hidden layer of a client's UniFilter on the proxy graph, (d,)."""
    # Paper: the client runs its model; here: the aggregator does, and on powers of the proxy's propagation alone,
    # because bases at an angle depend on a silo's labels. The hidden layer, as in the released code: the output has one
    # number for two classes, whose cosines are 1 or -1.
    weight, bias = (np.asarray(arrays[f"hidden.{name}"], dtype=np.float32) for name in ("weight", "bias"))
    coefficients = np.asarray(arrays[FILTER], dtype=np.float32)
    powers = proxy_powers(weight.shape[1], len(coefficients) - 1)
    filtered = np.tensordot(coefficients, powers, axes=1)
    embedding: Float64 = np.maximum(filtered @ weight.T + bias, 0.0).mean(axis=0, dtype=np.float64)
    return embedding


@lru_cache(maxsize=2)
def proxy_powers(features: int, order: int) -> Float32:
    """Computes P^k x of the proxy graph, x standard normal, (K + 1, n, F)."""
    generator = np.random.default_rng(PROXY_SEED)
    propagation = _normalise(proxy_graph(generator)).astype(np.float32)
    powers = [generator.standard_normal((len(propagation), features)).astype(np.float32)]
    for _ in range(order):
        powers.append(propagation @ powers[-1])
    stacked = np.stack(powers)
    stacked.flags.writeable = False
    return stacked


def pooling_embedding(arrays: Arrays) -> Float64:
    """Computes the mean of a client's pooling MLP over the proxy graph, (d,)."""
    # Paper: the client runs its masked encoder and sends the result too; here: the aggregator runs the weights that it
    # has, without their masks, so that nothing more than these leaves a client.
    weight = {name: np.asarray(arrays[f"pooling.{name}"], dtype=np.float64) for name in _POOLING}
    width = len(weight["hidden.weight"])
    inputs = proxy_layers(width, weight["hidden.weight"].shape[1] // width - 1)
    hidden = np.tanh(inputs @ weight["hidden.weight"].T + weight["hidden.bias"])
    embedding: Float64 = hidden.mean(axis=0) @ weight["output.weight"].T + weight["output.bias"]
    return embedding


_POOLING = ("hidden.weight", "hidden.bias", "output.weight", "output.bias")


def similarity_weights(embeddings: Float64) -> Float64:
    """Computes the similarity weights of every two clients, (C, d) to (C, C).

    exp(scale * cosine), each row over its sum. A client whose embedding is zero is equally near to all.
    """
    length = np.linalg.norm(embeddings, axis=1, keepdims=True)
    directions = embeddings / np.where(length > 0, length, 1.0)
    similar = np.exp(SCALE * (directions @ directions.T))
    rows: Float64 = similar / similar.sum(axis=1, keepdims=True)
    return rows


def combine_by_similarity(state: State, updates: Sequence[Update]) -> State:
    """Computes each sender's weighted mean, and the plain mean for all others.

    A client that is absent keeps its last mean.
    """
    ordered = sorted(updates, key=lambda update: update.client)
    rows = similarity_weights(np.stack([functional_embedding(update.arrays) for update in ordered]))
    own: dict[str, dict[str, Float32]] = {update.client: {} for update in ordered}
    for name in state.arrays:  # tensor by tensor: of what was sent, one tensor of each client lies in memory
        sent = np.stack([np.asarray(update.arrays[name], dtype=np.float64) for update in ordered])
        mixed = np.tensordot(rows, sent, axes=1).astype(np.float32)
        for update, value in zip(ordered, mixed, strict=True):
            own[update.client][name] = value
    return replace(mean_of_updates(state, ordered), own={**state.own, **own})


def fedpub(method: MethodSettings) -> Strategy:
    """Builds FedPUB: layers are sent without their masks, and no scalar leaves.

    They are both MLPs, or of nodes all of UniFilter.
    """
    fit = partial(fit_plain, objectives=(Objective(penalty=masks_and_distance),))
    model = MASKED.get(method.model, "masked")
    shared = EXCHANGES[model].names.__contains__
    return Strategy("fedpub", shared=shared, fit=fit, combine=combine_by_similarity, answer=own_mean, model=model)
