"""Floors of node labels for each silo, and the ceiling: all data in one place."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.id_columns import index_ids
from client_service.data.node_files import load_node_shard
from client_service.data.node_graphs import TEST, TRAIN, NodeShard, build_adjacency, sort_entries
from client_service.evaluation.metrics import Measures
from client_service.evaluation.node_measures import measure_nodes
from client_service.models.nodes.spectral_bases import propagation_matrix
from client_service.training.node_trainer import NodeTrainer
from shared.method.settings import MethodSettings
from simulation.experiments.experiment import Experiment
from simulation.experiments.floors import START, Bounds, ByName, figures_path, load_or_measure
from simulation.progress import count_bar

MAJORITY, PROPAGATION = "majority", "label propagation"
VERSION = 1  # of the figures: raise it with every change of code that changes one
KEPT_SHARE, STEPS = 0.9, 50  # of a node's score that comes from its neighbours; steps of the propagation
POOLED_NODES = 200_000  # most nodes in all silos for the ceiling

Float64 = NDArray[np.float64]


def measure_node_bounds(experiment: Experiment, *, shown: bool) -> Bounds:
    """Measures the floors of every shard, and the ceiling over all silos.

    The ceiling is the closed form on all nodes and the edges between silos.
    """
    shards = [load_node_shard(path) for path in experiment.shards]
    names, method, kept = [path.name for path in experiment.shards], experiment.agreed_method, experiment.floors_folder
    total = sum(len(shard.node_ids) for shard in shards)
    fits = total <= POOLED_NODES
    kind = hashlib.sha256(f"{VERSION} {method.nodes.model_dump_json()}".encode()).hexdigest()[:16]
    found: dict[str, ByName] = {}
    with count_bar("baselines", len(shards) + fits, shown=shown) as done:
        for name, shard in zip(names, shards, strict=True):
            path = figures_path(kept, name, (shard,), kind)
            found[name] = load_or_measure(path, partial(measure_floors, shard, method))
            done(name)
        if not fits:
            words = f"{total:,} nodes in all silos, more than its limit of {POOLED_NODES:,}"
            return Bounds(found, None, (f"The ceiling on pooled data was left out: {words}.",))
        path = figures_path(kept, "pooled", shards, kind)
        ceiling = load_or_measure(path, partial(measure_ceiling, dict(zip(names, shards, strict=True)), method))
        done("all silos' data")
    return Bounds(found, ceiling)


def measure_floors(shard: NodeShard, method: MethodSettings) -> ByName:
    """Measures each floor, and the silo's own closed form, on its test nodes."""
    measured = {
        MAJORITY: count_majority(shard),
        PROPAGATION: propagate_labels(shard),
        START: predict_alone(shard, method),
    }
    return {name: _measure_test(shard, probabilities) for name, probabilities in measured.items()}


def count_majority(shard: NodeShard) -> Float64:
    """Computes the shares of classes among training nodes, for every node, (n, c)."""
    counts = np.bincount(shard.labels[shard.nodes_of(TRAIN)], minlength=len(shard.classes)) + 1e-9
    return np.tile(counts / counts.sum(), (len(shard.node_ids), 1))


def propagate_labels(shard: NodeShard) -> Float64:
    """Spreads labels of training nodes over edges, (n, c) (Zhou et al. 2004).

    No feature is used.
    """
    train = shard.nodes_of(TRAIN)
    given = np.zeros((len(shard.node_ids), len(shard.classes)))
    given[train, shard.labels[train]] = 1.0
    spread, matrix = given, propagation_matrix(shard.adjacency)
    for _ in range(STEPS):
        spread = KEPT_SHARE * (matrix @ spread) + (1.0 - KEPT_SHARE) * given
    spread = spread + 1e-9 * count_majority(shard)  # of a node that no label reaches
    shares: Float64 = spread / spread.sum(1, keepdims=True)
    return shares


def predict_alone(shard: NodeShard, method: MethodSettings) -> Float64:
    """Computes a silo's label probabilities from its own nodes alone, (n, c)."""
    found = NodeTrainer(shard, method, torch.device("cpu")).alone.predict()
    return np.asarray(found, dtype=np.float64)


def measure_ceiling(shards: dict[str, NodeShard], method: MethodSettings) -> ByName:
    """Measures each silo's test nodes by the closed form on all silos' graph."""
    pooled = pool_graphs(list(shards.values()))
    probabilities, rows = predict_alone(pooled, method), index_ids(pooled.node_ids)
    return {
        name: _measure_test(shard, probabilities[[rows[node] for node in shard.node_ids]])
        for name, shard in shards.items()
    }


def pool_graphs(shards: Sequence[NodeShard]) -> NodeShard:
    """Joins all silos' graphs, with the edges between silos that both ends know.

    A node of two silos is one.
    """
    ids = sorted({node for shard in shards for node in shard.node_ids})
    places = index_ids(ids)
    first, ends = dict[str, tuple[int, int]](), list[Any]()
    for number, shard in enumerate(shards):
        own = np.array([places[node] for node in shard.node_ids])
        for row, node in enumerate(shard.node_ids):
            first.setdefault(node, (number, row))
        sources, targets, weights = shard.list_edges()
        ends.append((own[sources], own[targets], weights))
        if shard.foreign is not None:
            outer = sparse.coo_array(shard.foreign.weights)
            others = np.array([places.get(node, -1) for node in shard.foreign.ids])[outer.col]
            known = others >= 0
            ends.append((own[outer.row[known]], others[known], outer.data[known]))
    bounds = np.cumsum([0, *(len(shard.node_ids) for shard in shards)])
    stacked = sparse.csr_array(sparse.vstack([shard.features for shard in shards], format="csr"))
    taken = np.array([bounds[first[node][0]] + first[node][1] for node in ids])
    sources, targets, weights = (np.concatenate(parts) for parts in zip(*ends, strict=True))
    return replace(
        shards[0],
        name="pooled",
        node_ids=tuple(ids),
        features=sort_entries(stacked[taken]),
        adjacency=build_adjacency(sources, targets, weights.astype(np.float32), len(ids)),
        labels=np.concatenate([shard.labels for shard in shards])[taken],
        splits=np.concatenate([shard.splits for shard in shards])[taken],
        notes=(),
        foreign=None,
    )


def _measure_test(shard: NodeShard, probabilities: Float64) -> Measures:
    rows = shard.nodes_of(TEST)
    return measure_nodes(probabilities[rows], shard.labels[rows])
