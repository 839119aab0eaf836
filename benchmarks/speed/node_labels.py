"""Measures how soon a silo labels a node, by requests to a real client.

python -m benchmarks.speed.node_labels GRAPH [--asked 2000] [--neighbours 20]

GRAPH: a file or folder that `lpsfed simulate --task nodes` reads; all of it is one silo, with its own closed form.
Times are of the whole request, in milliseconds, as the caller sees them; beside them what an answer takes of one core,
computed and written in this process, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import torch

from benchmarks.common import render_table
from benchmarks.speed.next_item import describe_times
from benchmarks.speed.served_process import RequestConnection, open_connection, write_request
from client_service.data.node_files import save_node_shard
from client_service.data.node_graphs import NodeShard
from client_service.serving.node_labels import NodeLabels
from client_service.serving.node_messages import LabelsIn
from client_service.tasks.nodes import NODES
from client_service.training.node_trainer import NodeTrainer
from shared.method.settings import method_settings
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import execute_run
from simulation.experiments.in_process import fail_when_stuck
from simulation.experiments.processes import choose_addresses, connect_services, start_services
from simulation.graphs.read import read_graph
from simulation.graphs.source import GraphRules, has_split, split_own_graph

BATCH = 100


def draw_new_node(shard: NodeShard, neighbours: int, rng: np.random.Generator) -> dict[str, Any]:
    """Draws a new node: features of a node of the silo, and random neighbours."""
    row, ids = int(rng.integers(len(shard.node_ids))), shard.node_ids
    around = rng.choice(len(ids), min(neighbours, len(ids)), replace=False)
    features = shard.features[[row]].toarray()[0].tolist()
    return {"features": features, "neighbours": [{"node": ids[int(one)]} for one in around]}


def time_requests(line: RequestConnection, key: str, bodies: Sequence[dict[str, Any]]) -> list[float]:
    """Measures the milliseconds of each request."""
    times = []
    for body in bodies:
        request = write_request("POST", "/v1/labels", key, body)
        began = time.perf_counter()
        line.ask(request)
        times.append(1000 * (time.perf_counter() - began))
    return times


def time_answers(answers: NodeLabels, bodies: Sequence[dict[str, Any]]) -> list[float]:
    """Measures the milliseconds that each answer takes of one core."""
    times = []
    for message in map(LabelsIn.model_validate, bodies):
        began = time.process_time()
        answers.answer(message).model_dump_json(exclude_none=True)
        times.append(1000 * (time.process_time() - began))
    return times


def measure(shard: NodeShard, asked: int, neighbours: int) -> list[tuple[str, ...]]:
    """Measures the rows of the table: known nodes, the busiest, new nodes, and batches."""
    rng, ids = np.random.default_rng(0), shard.node_ids
    with tempfile.TemporaryDirectory() as place:
        save_node_shard(Path(place) / "silo", replace(shard, name="silo"))
        sizes = {"nodes.features": len(shard.feature_names), "nodes.classes": len(shard.classes)}
        method = method_settings(model="node_ridge", **sizes)
        experiment = Experiment((Path(place) / "silo",), Path(place) / "run", method, "fedavg", "nodes", rounds=1)
        places = choose_addresses(experiment)
        with start_services(experiment, places) as children:

            async def train() -> None:
                async with connect_services(experiment, places, children) as federation:
                    await execute_run(federation, experiment.run_request(), fail_when_stuck(lambda _: None))

            anyio.run(train)
            known = [{"nodes": [ids[int(row)]]} for row in rng.integers(len(ids), size=asked)]
            busiest = ids[int(np.diff(shard.adjacency.indptr).argmax())]
            new = [{"nodes": [draw_new_node(shard, neighbours, rng)]} for _ in range(asked)]
            many = [
                {"nodes": [ids[int(row)] for row in rng.integers(len(ids), size=BATCH)]} for _ in range(asked // BATCH)
            ]
            kinds = {
                "a known node": known,
                "the node with most neighbours": [{"nodes": [busiest]}] * asked,
                f"a new node with {neighbours} neighbours": new,
                f"{BATCH} known nodes": many or [{"nodes": list(ids[:BATCH])}],
            }
            answers = NODES.answer(shard)
            answers.served = NODES.freeze("run-1.1", NodeTrainer(shard, method, torch.device("cpu")))
            with open_connection(places.clients["silo"]) as line:
                time_requests(line, experiment.application_key, known[:20])
                return [
                    (
                        *describe_times(kind, time_requests(line, experiment.application_key, bodies)),
                        *(f"{np.percentile(time_answers(answers, bodies), share):.2f}" for share in (50, 99)),
                    )
                    for kind, bodies in kinds.items()
                ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--asked", type=int, default=2000)
    parser.add_argument("--neighbours", type=int, default=20)
    arguments = parser.parse_args()
    graph = read_graph(arguments.graph)
    shard = graph if has_split(graph) else split_own_graph(graph, "silo", GraphRules())
    rows = measure(shard, arguments.asked, arguments.neighbours)
    print(
        render_table(
            (f"{len(shard.node_ids):,} nodes, {shard.edges:,} edges", "p50 ms", "p99 ms", "of one core p50", "p99"),
            rows,
        )
    )


if __name__ == "__main__":
    main()
