"""Latency of next-item requests to a real client over HTTP.

python -m benchmarks.speed.next_item [--items 43000] [--models srgnn tagnn] [--asked 300]

The sessions are generated, the model is trained for one round. Times are of the whole request, in milliseconds, as
the caller sees them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import httpx
import numpy as np

from benchmarks.common import render_table
from client_service.data.session_files import save_session_shard
from client_service.data.sessions import SessionShard
from shared.method.settings import method_settings
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import execute_run
from simulation.experiments.in_process import fail_when_stuck
from simulation.experiments.processes import choose_addresses, connect_services, start_services
from simulation.sessions.cut import build_session_part
from simulation.sessions.generator import generate_sessions

SESSIONS, BATCH = 2000, 100


def write_shard(folder: Path, items: int) -> SessionShard:
    """Writes a shard whose catalogue has this many items, most without clicks."""
    shard = build_session_part(folder.name, generate_sessions(0, sessions=SESSIONS))
    others = tuple(f"other-{number:06d}" for number in range(items - len(shard.item_ids)))
    whole = replace(shard, item_ids=(*shard.item_ids, *others), places=np.arange(items))
    save_session_shard(folder, whole)
    return whole


def time_requests(http: httpx.Client, bodies: Sequence[dict[str, object]]) -> list[float]:
    """Measures the milliseconds of each request."""
    times = []
    for body in bodies:
        began = time.perf_counter()
        http.post("/v1/next", json=body).raise_for_status()
        times.append(1000 * (time.perf_counter() - began))
    return times


def draw_sessions(shard: SessionShard, count: int) -> list[list[str]]:
    """Draws training sessions of the shard, at most 20 clicks each."""
    rng = np.random.default_rng(1)
    rows = rng.choice(len(shard.splits), count)
    return [[shard.item_ids[row] for row in shard.clicks[shard.starts[one] : shard.starts[one + 1]]] for one in rows]


def measure(model: str, items: int, asked: int) -> list[tuple[str, ...]]:
    """Measures single sessions and batches of BATCH; returns rows of the table."""
    with tempfile.TemporaryDirectory() as place:
        shard = write_shard(Path(place) / "shop", items)
        method = method_settings("sessions", model=model)
        folders = (Path(place) / "shop",)
        experiment = Experiment(folders, Path(place) / "run", method, "fedavg", "sessions", rounds=1, device="cpu")
        places = choose_addresses(experiment)
        with start_services(experiment, places) as children:

            async def train() -> None:
                async with connect_services(experiment, places, children) as federation:
                    await execute_run(federation, experiment.run_request(), fail_when_stuck(lambda _: None))

            anyio.run(train)
            headers = {"Authorization": f"Bearer {experiment.application_key}"}
            with httpx.Client(base_url=places.clients["shop"], headers=headers, timeout=60.0, trust_env=False) as http:
                single = [{"session": one} for one in draw_sessions(shard, asked)]
                many = [{"sessions": draw_sessions(shard, BATCH)} for _ in range(max(1, asked // BATCH))]
                time_requests(http, single[:20])
                return [
                    describe_times(f"{model}, one session", time_requests(http, single)),
                    describe_times(f"{model}, {BATCH} sessions", time_requests(http, many)),
                ]


def describe_times(what: str, times: Sequence[float]) -> tuple[str, ...]:
    """Formats p50 and p99."""
    return what, *(f"{np.percentile(times, share):.1f}" for share in (50, 99))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=43_000)
    parser.add_argument("--models", nargs="+", default=["srgnn", "tagnn"])
    parser.add_argument("--asked", type=int, default=300)
    arguments = parser.parse_args()
    rows = [row for model in arguments.models for row in measure(model, arguments.items, arguments.asked)]
    print(render_table((f"{arguments.items:,} items", "p50 ms", "p99 ms"), rows))


if __name__ == "__main__":
    main()
