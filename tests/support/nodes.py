"""A silo of a node graph, as small as it can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

from client_service.data.node_files import save_node_shard
from client_service.data.node_graphs import NodeShard, build_adjacency, sort_entries
from client_service.federation.training_run import TrainingRun
from client_service.settings import ClientSettings, client_settings
from client_service.tasks.nodes import NODES
from client_service.tasks.task import RunContext
from shared.method.parameters import Parameters
from shared.method.settings import method_settings
from shared.protocol.signing.enrolment import ensure_key_pair


def small_graph(
    nodes: int = 60, features: int = 4, classes: int = 2, seed: int = 0, name: str = "shop", **changes: Any
) -> NodeShard:
    """A graph in which neighbours tend to have one label, and features tell a little of it."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=nodes)
    values = generator.normal(size=(nodes, features)).astype(np.float32) + (labels[:, None] == np.arange(features))
    pairs = generator.integers(nodes, size=(2, 8 * nodes))
    alike = labels[pairs[0]] == labels[pairs[1]]
    kept = alike | (generator.random(8 * nodes) < 0.15)
    weights = generator.integers(1, 4, size=8 * nodes).astype(np.float32)
    adjacency = build_adjacency(pairs[0][kept], pairs[1][kept], weights[kept], nodes)
    splits = np.array([0, 0, 1, 2, 0, 3], np.int8)[np.arange(nodes) % 6]
    names = tuple(sorted(f"node-{number:04d}" for number in range(nodes)))
    given: dict[str, Any] = {
        "name": name,
        "node_ids": names,
        "features": sort_entries(sparse.csr_array(values.astype(np.float32))),
        "feature_names": tuple(f"column-{number}" for number in range(features)),
        "adjacency": adjacency,
        "labels": np.where(splits == 3, -1, labels).astype(np.int64),
        "classes": tuple(f"class-{number}" for number in range(classes)),
        "splits": splits,
    }
    return NodeShard(**{**given, **changes})


def node_silo(folder: Path, shard: NodeShard | None = None, model: str = "node_ridge", **own: Any) -> ClientSettings:
    """Settings of a silo of nodes, whose shard and state lie in the folder; nobody answers as its aggregator."""
    shard = shard or small_graph()
    save_node_shard(folder / "shard", shard)
    sizes = {"nodes.features": len(shard.feature_names), "nodes.classes": len(shard.classes)}
    taught = method_settings(model=model, width=8, learning_rate=0.02, **sizes, **{"nodes.random_features": 20})
    strategy = "local" if model == "node_ridge" else "fedavg"
    settings = client_settings(
        name="shop",
        shard=folder / "shard",
        task="nodes",
        state_directory=folder / "state",
        aggregator_url="http://127.0.0.1:9",
        strategy=strategy,
        policy={"strategies": [strategy]},
        method=taught,
        **own,
    )
    ensure_key_pair(settings.name, settings.state_directory)
    return settings


def keep_node_model(settings: ClientSettings) -> ClientSettings:
    """Keeps the closed form of the silo's own nodes, as a finished run without rounds leaves it; the same settings."""
    everything = settings.fit_everything
    place = RunContext(settings.name, "run-1", 0, settings.method, settings.models_directory, fit_everything=everything)
    shard = NODES.read(settings)
    run = TrainingRun(place, NODES, shard, NODES.answer(shard), torch.device("cpu"))
    run.begin(Parameters({}), 0)
    run.finish()
    return settings
