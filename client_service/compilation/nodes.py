"""Compiles a node graph and a model of its labels, for the processes that answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_service.compilation.folder_publisher import FolderPublisher
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
from client_service.compiled.texts import id_arrays
from client_service.compiled.weight_rows import weight_arrays
from client_service.data.node_graphs import TRAIN, NodeShard
from client_service.model_store.node_models import ServedNodes

Arrays = dict[str, NDArray[Any]]
PublishModel = Callable[[ServedNodes], CompiledNodeModel]


def publish_nodes(
    shard: NodeShard, publisher: FolderPublisher, *, at_once: bool = True
) -> tuple[CompiledNodes, PublishModel]:
    """Compiles and publishes a node graph.

    Returns the compiled graph, and a function that compiles and publishes each model of it. An already published model
    of the same graph stays until that function publishes another. at_once: is the graph published before it has a
    model? Otherwise the graph before it answers until then. Both are in memory where the disk refuses.
    """
    compiled = _compile_nodes(shard)
    place = publisher.save_shard(KIND, *compiled)
    nodes = CompiledNodes(*compiled) if place is None else open_nodes(place)
    if at_once:
        publisher.publish_shard()

    def publish_model(served: ServedNodes) -> CompiledNodeModel:
        head, arrays = _compile_model(served, nodes)
        folder = publisher.save_model(MODEL_KIND, head, arrays)
        model = CompiledNodeModel(head, arrays, nodes) if folder is None else open_node_model(folder, nodes)
        publisher.publish_model(folder, served)
        return model

    return nodes, publish_model


def compile_nodes_in_memory(shard: NodeShard) -> tuple[CompiledNodes, PublishModel]:
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
