"""Latency of GET /v1/users/{user}/recommendations, idle and during training.

k = 20, on one shard's client, in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np

from client_service.data.interaction_files import load_shard
from shared.method.settings import method_settings
from simulation.experiments.experiment import Experiment
from simulation.experiments.processes import choose_addresses, connect_services, start_services


async def measure_latencies(http: httpx.AsyncClient, key: str, users: list[str], while_in: str | None) -> np.ndarray:
    """Measures latencies of requests in turn, in milliseconds.

    while_in: only those sent in that phase count.
    """
    taken, headers = [], {"Authorization": f"Bearer {key}"}
    for user in users:
        if while_in is not None and (await http.get("/v1/status")).json()["phase"] != while_in:
            await asyncio.sleep(0.02)
            continue
        began = time.perf_counter()
        answer = await http.get(f"/v1/users/{user}/recommendations", params={"k": 20}, headers=headers)
        taken.append(1000 * (time.perf_counter() - began))
        assert answer.json()["model"], answer.text
    return np.array(taken)


async def measure_client(experiment: Experiment, requests: int) -> None:
    """Prints the latencies of a client while it trains and when it is idle."""
    places = choose_addresses(experiment)
    users = np.random.default_rng(0).choice(load_shard(experiment.shards[0]).user_ids, requests).tolist()
    with start_services(experiment, places):
        async with connect_services(experiment, places) as federation:
            client = next(iter(federation.clients.values()))
            key, message = experiment.application_key, experiment.run_request().model_dump_json()
            headers = {"Content-Type": "application/json"}
            (await federation.operator.post("/v1/runs", content=message, headers=headers)).raise_for_status()
            while (await client.get("/v1/status")).json()["phase"] != "training":
                await asyncio.sleep(0.1)
            print_latencies("while training", await measure_latencies(client, key, users, "training"))
            while (await client.get("/v1/status")).json()["phase"] != "finished":
                await asyncio.sleep(0.2)
            print_latencies("idle", await measure_latencies(client, key, users, None))


def print_latencies(what: str, taken: np.ndarray) -> None:
    """Prints median, 99th percentile and maximum of latencies in milliseconds."""
    p50, p99 = np.percentile(taken, [50, 99])
    print(f"{what}: {len(taken)} requests, p50 {p50:.2f} ms, p99 {p99:.2f} ms, longest {taken.max():.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shard", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment((arguments.shard,), Path(folder), method_settings(), rounds=2)
        asyncio.run(measure_client(experiment, arguments.requests))


if __name__ == "__main__":
    main()
