"""Requests per second and latencies of a client by wrk, compared with an empty route.

python -m benchmarks.speed.serving SHARD [--seconds 4] [--json]

Needs wrk. Known users (k 20), baskets of their own items and batches of 100 users, with 1 and 16 connections, by a
client whose run is over. Client and empty FastAPI route, on plain uvicorn with an answer of the same size, are loaded
in turns, because the speed of a shared machine changes within a minute; the table has the median of each one's turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import httpx
import numpy as np

from benchmarks.common import render_table
from benchmarks.speed.wrk import TURNS, Load, LoadTarget, Requests, alternate_loads, memory_of
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from shared.method.settings import MethodSettings, method_settings
from simulation.experiments.experiment import Experiment
from simulation.experiments.processes import choose_addresses, connect_services, start_services
from simulation.ports import HOST, free_ports

K, BATCH = 20, 100
CLIENT, EMPTY_ROUTE = "client", "empty route"
ASKED = 2000  # users, drawn once
READY_SECONDS = 30.0

EMPTY = """
import sys
from pathlib import Path
import uvicorn
from fastapi import FastAPI, Response
app, body = FastAPI(), Path(sys.argv[2]).read_bytes()
@app.get("/v1/users/{user}/recommendations")
async def answer(user: str, k: int = 20):
    return Response(body, media_type="application/json")
@app.post("/v1/recommendations")
async def answer_posted():
    return Response(body, media_type="application/json")
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=False, log_level="warning")
"""


OWN_SERVER = """
import sys
from pathlib import Path
import anyio
from fastapi import FastAPI, Response
from shared.web.server import build_server
app, body = FastAPI(), Path(sys.argv[2]).read_bytes()
@app.get("/v1/users/{user}/recommendations")
async def answer(user: str, k: int = 20):
    return Response(body, media_type="application/json")
anyio.run(build_server(app, host="127.0.0.1", port=int(sys.argv[1]), on_shutdown=lambda: None).serve)
"""


def user_requests(users: Sequence[str]) -> list[str]:
    """Returns a GET of each user's list."""
    return [f"GET /v1/users/{quote(user, safe='')}/recommendations?k={K}" for user in users]


def basket_requests(shard: Shard, users: Sequence[str]) -> list[str]:
    """Returns a POST of each user's training items, as an unknown user's basket."""
    rows = [shard.user_row(user) for user in users]
    baskets = ([shard.item_ids[item] for item in shard.train[[row]].indices] for row in rows)
    return [f"POST /v1/recommendations {json.dumps({'basket': one, 'k': K})}" for one in baskets if one]


def batch_requests(users: Sequence[str]) -> list[str]:
    """Returns POSTs of a hundred users each."""
    parts = (list(users[first : first + BATCH]) for first in range(0, len(users), BATCH))
    return [f"POST /v1/recommendations {json.dumps({'users': one, 'k': K})}" for one in parts]


@contextmanager
def serve_empty_route(body: bytes, code: str = EMPTY) -> Iterator[LoadTarget]:
    """Serves a route that always answers with these bytes.

    code: of its process, on plain uvicorn or on the services' server.
    """
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "body"
        kept.write_bytes(body)
        process = subprocess.Popen([sys.executable, "-c", code, str(port), str(kept)])
        try:
            url = f"http://{HOST}:{port}"
            wait_for(f"{url}/v1/users/any/recommendations")
            yield LoadTarget(EMPTY_ROUTE, url, "none", process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(READY_SECONDS)


def wait_for(url: str, seconds: float = READY_SECONDS) -> None:
    """Waits until a URL answers; raises TimeoutError if it does not."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if httpx.get(url, trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise TimeoutError(f"{url}: expected an answer within {seconds:g} s, got none")


@asynccontextmanager
async def serve_closed_form(experiment: Experiment) -> AsyncIterator[tuple[LoadTarget, bytes]]:
    """Starts the services and completes a run without training.

    Yields the client, and one of its answers.
    """
    places, name = choose_addresses(experiment), experiment.names[0]
    with start_services(experiment, places) as children:
        async with connect_services(experiment, places) as federation:
            client = next(iter(federation.clients.values()))
            await _run_once(experiment, federation.operator, client)
            await wait_until_lists(client)
            target = LoadTarget(CLIENT, places.clients[name], experiment.application_key, children.processes[name].pid)
            (line,) = user_requests(draw_users(load_shard(experiment.shards[0]))[:1])
            answer = await client.get(line.split()[1], headers={"Authorization": f"Bearer {target.key}"})
            yield target, answer.raise_for_status().content
            print(f"memory of the client: {memory_of(target.pid)} MB", file=sys.stderr)


async def _run_once(experiment: Experiment, operator: httpx.AsyncClient, client: httpx.AsyncClient) -> None:
    began = time.perf_counter()
    message, headers = experiment.run_request().model_dump_json(), {"Content-Type": "application/json"}
    (await operator.post("/v1/runs", content=message, headers=headers)).raise_for_status()
    while (await client.get("/v1/status")).json()["phase"] != "finished":
        await asyncio.sleep(0.2)
    print(f"first model and run over after {time.perf_counter() - began:.1f} s", file=sys.stderr)


async def wait_until_lists(client: httpx.AsyncClient) -> None:
    """Waits until the precomputed lists of all known users are there."""
    began = time.perf_counter()
    while (await client.get("/v1/status")).json().get("listed", 1.0) < 1.0:
        await asyncio.sleep(0.2)
    print(f"lists of all users after another {time.perf_counter() - began:.1f} s", file=sys.stderr)


def all_requests(shard: Shard) -> tuple[Requests, ...]:
    """Returns every kind of request, for users who are drawn once."""
    users = draw_users(shard)
    return (
        Requests("known users", user_requests(users)),
        Requests("baskets", basket_requests(shard, users)),
        Requests(f"batches of {BATCH} users", batch_requests(users)),
    )


def untrained_settings() -> MethodSettings:
    """Returns settings of a run without training."""
    return method_settings(**{"strategy.train": False})


def draw_users(shard: Shard) -> list[str]:
    """Draws the users of the requests, always the same."""
    count = min(ASKED, len(shard.user_ids))
    return np.random.default_rng(0).choice(shard.user_ids, count, replace=False).tolist()


async def compare_with_empty_route(shard: Path, seconds: int) -> list[Load]:
    """Measures the loads of the client and of the empty route."""
    with tempfile.TemporaryDirectory() as folder:
        async with serve_closed_form(Experiment((shard,), Path(folder), untrained_settings(), rounds=1)) as served:
            client, answer = served
            with serve_empty_route(answer) as empty:
                return alternate_loads((client, empty), all_requests(load_shard(shard)), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shard", type=Path)
    parser.add_argument("--seconds", type=int, default=4, help=f"of each of {TURNS} turns of each load")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        parser.error("expected wrk on the PATH, there is none: it is in Debian's package wrk")
    loads = asyncio.run(compare_with_empty_route(arguments.shard, arguments.seconds))
    print(json.dumps([asdict(one) for one in loads]) if arguments.json else as_table(loads))


def as_table(loads: Sequence[Load]) -> str:
    """Renders a row per load and server, with its share of the empty route's rate."""
    empty = {(one.what, one.connections): one.rate for one in loads if one.server == EMPTY_ROUTE}
    rows = [
        [one.server, one.what, str(one.connections), f"{one.rate:,.0f}", f"{one.rate / empty[key]:.2f}"]
        + [f"{value:.2f}" for value in (one.p50, one.p90, one.p99)]
        + [f"{one.cpu:.3f}", str(one.errors)]
        for one in loads
        if (key := (one.what, one.connections)) in empty
    ]
    times = ("p50 ms", "p90 ms", "p99 ms", "processor ms")
    return render_table(("server", "what", "connections", "requests/s", "to the empty route", *times, "errors"), rows)


if __name__ == "__main__":
    main()
