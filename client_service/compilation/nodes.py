"""Compiles a node graph and a model of its labels, for the processes that answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.arrays import save_folder
from client_service.compiled.nodes import (
    KIND,
    MODEL_KIND,
    CompiledNodeModel,
    CompiledNodes,
    JoiningHead,
    NodeModelHead,
    NodesHead,
    open_node_model,
    open_nodes,
)
from client_service.compiled.publication import Publication, publish_model, publish_shard
from client_service.compiled.texts import id_arrays
from client_service.compiled.weight_rows import weight_arrays
from client_service.data.node_graphs import TRAIN, NodeShard
from client_service.model_store.node_models import ServedNodes

Arrays = dict[str, NDArray[Any]]
TakeUp = Callable[[ServedNodes], CompiledNodeModel]


def publish_nodes(shard: NodeShard, serving: Path, *, at_once: bool = True) -> tuple[CompiledNodes, TakeUp]:
    """Compiles and publishes a node graph.

    Returns the compiled graph, and a function that compiles and publishes each model of it. An already published model
    of the same graph stays until that function publishes another. at_once: is the graph published before it has a
    model? Otherwise the graph before it answers until then.
    """
    nodes = open_nodes(save_folder(serving, KIND, *_compile_nodes(shard)))
    here = Publication(task="nodes", shard=nodes.name, shard_digest=shard.digest, lists_digest=shard.lists_digest)
    if at_once:
        publish_shard(serving, here)

    def take_up(served: ServedNodes) -> CompiledNodeModel:
        folder = save_folder(serving, MODEL_KIND, *_compile_model(served, nodes))
        model = open_node_model(folder, nodes)
        publish_model(serving, here, folder.name, served.version, served.kept_at)
        return model

    return nodes, take_up


def compile_nodes_in_memory(shard: NodeShard) -> tuple[CompiledNodes, TakeUp]:
    """Compiles a node graph without folders, for a silo whose trainer alone answers.

    Returns the compiled graph, and a function that compiles each model of it.
    """
    nodes = CompiledNodes(*_compile_nodes(shard))
    return nodes, lambda served: CompiledNodeModel(*_compile_model(served, nodes), nodes)


def _compile_nodes(shard: NodeShard) -> tuple[NodesHead, Arrays]:
    head = NodesHead(
        name=shard.name,
        digest=shard.digest,
        nodes=len(shard.node_ids),
        features=len(shard.feature_names),
        classes=tuple(shard.classes),
    )
    counts = np.bincount(shard.labels[shard.nodes_of(TRAIN)], minlength=len(shard.classes))
    edges = shard.adjacency
    arrays: Arrays = {
        **id_arrays("nodes", shard.node_ids),
        **id_arrays("columns", shard.feature_names),
        **weight_arrays("edges", edges.indptr, edges.indices, edges.data),
        "degrees": shard.degrees.astype(np.float32),
        "labels": shard.labels.astype(np.int32),
        "shares": (counts + 1.0) / (counts.sum() + len(counts)),
    }
    return head, arrays


def _compile_model(served: ServedNodes, nodes: CompiledNodes) -> tuple[NodeModelHead, Arrays]:
    form = served.form
    head = NodeModelHead(
        version=served.version,
        kept_at=served.kept_at,
        nodes=nodes.digest,
        hops=form.powers.shape[1] - 1,
        width=form.powers.shape[2],
        joining=JoiningHead(**asdict(served.joining)),
        of_known_alone=served.of_known_alone,
    )
    arrays: Arrays = {
        **{name: np.ascontiguousarray(array, np.float32) for name, array in form.arrays.items()},
        "powers": np.ascontiguousarray(form.powers, np.float32),
        "probabilities": served.probabilities.astype(np.float32),
    }
    if form.projection is not None:
        arrays["projection"] = np.ascontiguousarray(form.projection, np.float32)
    return head, arrays
