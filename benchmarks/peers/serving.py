"""Measures one silo's service, and compares each figure with its limit."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from scipy import sparse

from benchmarks.common import render_table
from benchmarks.peers.environments import INSIDE, make_environment
from benchmarks.speed.served_process import (
    child_processes,
    list_path,
    load_until_swapped,
    measure_lists_after_events,
    measure_memory,
    measure_start,
    open_connection,
    percentiles,
    write_request,
)
from benchmarks.speed.serving import (
    CLIENT,
    EMPTY_ROUTE,
    OWN_SERVER,
    K,
    as_table,
    batch_requests,
    draw_users,
    serve_empty_route,
    untrained_settings,
    user_requests,
    wait_for,
    wait_until_lists,
)
from benchmarks.speed.wrk import Load, LoadTarget, Requests, alternate_loads
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.settings import ClientSettings
from simulation.experiments.experiment import Experiment
from simulation.experiments.processes import (
    choose_addresses,
    connect_services,
    start_client,
    start_services,
    stop_services,
)
from simulation.ports import HOST, free_ports

FIT_SECONDS = 900.0
IMPLICIT = "implicit"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
KNOWN, BATCHES = "known users", "batches of 100 users"
BASKETS = {size: f"baskets of {size} items" for size in (20, 200)}
EVENTS, STEADY, AROUND = 1000, 200, 1.0  # later events; requests a second; seconds before and after a swap of models
REST_SECONDS = 2.0  # after the last request: a server looks twice a second which pages it gives back


@dataclass(frozen=True)
class ServingRow:
    """A measured figure with the limit that it has to keep.

    bar: the least value where `at_least`, else the most; None if there is none. more: what explains the figure.
    """

    what: str
    figure: float
    unit: str
    bar: float | None = None
    at_least: bool = False
    more: str = ""

    @property
    def holds(self) -> bool | None:
        if self.bar is None:
            return None
        return self.figure >= self.bar if self.at_least else self.figure <= self.bar

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"holds": self.holds}


def render_rows(rows: Sequence[ServingRow]) -> str:
    """Renders a table with a line for each row."""
    words = {True: "yes", False: "no", None: "-"}
    lines = []
    for one in rows:
        bar = "-" if one.bar is None else f"{'>=' if one.at_least else '<='} {one.bar:g}"
        lines.append([one.what, f"{one.figure:,.4g}", one.unit, bar, words[one.holds], one.more])
    return render_table(("what", "figure", "unit", "bar", "holds", "more"), lines)


@contextmanager
def serve_implicit(shard: Shard) -> Iterator[LoadTarget]:
    """Starts implicit's service, fitted to the shard's training pairs."""
    python, (port,) = make_environment("serving"), free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        sparse.save_npz(Path(folder) / "train.npz", sparse.csr_matrix(shard.train, dtype=np.float32))
        ids = {"users": list(shard.user_ids), "items": list(shard.item_ids)}
        (Path(folder) / "ids.json").write_text(json.dumps(ids), encoding="utf-8")
        command = [str(python), str(INSIDE / "serve_implicit.py"), str(port), folder]
        process = subprocess.Popen(command, env=os.environ | ONE_THREAD, stdout=sys.stderr.fileno())
        try:
            url = f"http://{HOST}:{port}"
            wait_for(f"{url}/openapi.json", FIT_SECONDS)
            yield LoadTarget(IMPLICIT, url, "none", process.pid)
            print(f"memory of implicit's service: {measure_memory(process.pid)}", file=sys.stderr)
        finally:
            stop_services([process])


def compare(loads: Sequence[Load]) -> str:
    """Renders a row for each kind of request: the client beside implicit."""
    peers = {(one.what, one.connections): one for one in loads if one.server == IMPLICIT}
    head = (
        *("what", "connections", "ours /s", "implicit /s", "ratio", "ours p50, p99 ms", "implicit p50, p99 ms"),
        *("ours CPU ms", "implicit CPU ms", "ratio", "errors"),
    )
    own = (one for one in loads if one.server == CLIENT)
    return render_table(head, [_line(one, peers[one.what, one.connections]) for one in own])


def _line(own: Load, peer: Load) -> list[str]:
    rates, costs = f"{own.rate / peer.rate:.2f}", f"{peer.cpu / own.cpu:.2f}"
    told = [own.what, str(own.connections), f"{own.rate:,.1f}", f"{peer.rate:,.1f}", rates, _times(own), _times(peer)]
    return [*told, f"{own.cpu:.3f}", f"{peer.cpu:.3f}", costs, f"{own.errors}, {peer.errors}"]


def _times(load: Load) -> str:
    return f"{load.p50:.2f}, {load.p99:.2f}"


def draw_requests(shard: Shard) -> tuple[Requests, ...]:
    """Draws the requests: known users, baskets of both sizes, batches.

    The users are drawn once, the same for all.
    """
    users = draw_users(shard)
    baskets = (Requests(what, draw_baskets(shard, size)) for size, what in BASKETS.items())
    return (Requests(KNOWN, user_requests(users)), *baskets, Requests(BATCHES, batch_requests(users)))


def draw_baskets(shard: Shard, size: int, count: int = 500) -> list[str]:
    """Draws POST requests with baskets of `size` items, in proportion to popularity."""
    draws, popular = np.random.default_rng(size), shard.train.indices
    found = []
    for _ in range(count):
        items = np.unique(draws.choice(popular, 3 * size))
        basket = [shard.item_ids[row] for row in draws.permutation(items)[:size]]
        found.append(f"POST /v1/recommendations {json.dumps({'basket': basket, 'k': K})}")
    return found


def rows_of_loads(loads: Sequence[Load]) -> list[ServingRow]:
    """Compares known users with the empty route, and baskets with implicit."""
    by = {(one.server, one.what, one.connections): one for one in loads}
    rows = []
    for connections in (1, 16):
        own, empty = by[CLIENT, KNOWN, connections], by[EMPTY_ROUTE, KNOWN, connections]
        told = f"{own.rate:,.0f} and {empty.rate:,.0f} a second; processor {own.cpu:.3f} and {empty.cpu:.3f} ms"
        what = f"{KNOWN}, {connections} connection{'s' if connections > 1 else ''}"
        rows.append(ServingRow(what, own.rate / empty.rate, "x an empty FastAPI route", 1.0, True, told))
        if connections == 1:
            rows.append(
                ServingRow(f"{what}: p99", own.p99, "ms", 1.5, more=f"p50 {own.p50:.2f}, empty p99 {empty.p99:.2f}")
            )
    for what in BASKETS.values():
        for connections in (1, 16):
            own, peer = by[CLIENT, what, connections], by[IMPLICIT, what, connections]
            told = f"{own.rate:,.0f} and {peer.rate:,.0f} a second; processor {own.cpu:.3f} and {peer.cpu:.3f} ms"
            rows.append(ServingRow(f"{what}, {connections}", own.rate / peer.rate, "x implicit", 1.5, True, told))
        own = by[CLIENT, what, 1]
        rows.append(ServingRow(f"{what}, 1: p99", own.p99, "ms", 5.0, more=f"p50 {own.p50:.2f}"))
    return rows


class ServedSilo:
    """The processes of a silo: its aggregator, and its server with a trainer.

    The server can be started again.
    """

    def __init__(self, experiment: Experiment, shard: Shard) -> None:
        self.experiment, self.shard = experiment, shard
        self.places, self.name = choose_addresses(experiment), experiment.names[0]
        self.url, self.key = self.places.clients[self.name], experiment.application_key
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> LoadTarget:
        """Target of a load test: the process that runs, or ran last."""
        assert self.process is not None
        return LoadTarget(CLIENT, self.url, self.key, self.process.pid)

    def settings(self, **changes: Any) -> ClientSettings:
        port = int(self.url.rpartition(":")[2])
        found = self.experiment.make_client_settings(
            self.experiment.shards[0], aggregator_url=self.places.aggregator, port=port
        )
        return found.model_copy(update=changes)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
        """Starts the processes, and opens the operators' clients to aggregator and client."""
        with start_services(self.experiment, self.places) as children:
            self.process = children.processes[self.name]
            async with connect_services(self.experiment, self.places, children) as federation:
                yield federation.operator, next(iter(federation.clients.values()))

    def start_again(self, **changes: Any) -> None:
        """Starts a client in place of the stopped one."""
        self.process = start_client(self.settings(**changes), self.experiment.folder / "logs" / "again.log")

    def stop(self) -> None:
        if self.process is not None:
            stop_services([self.process])


async def measure_first_model(silo: ServedSilo, operator: httpx.AsyncClient, client: httpx.AsyncClient) -> ServingRow:
    """Measures the time from the start of a run to a list by its model.

    Nothing is kept from an earlier run.
    """
    message, headers = silo.experiment.run_request().model_dump_json(), {"Content-Type": "application/json"}
    asked, began = write_request("GET", "/v1/model", silo.key), time.perf_counter()
    (await operator.post("/v1/runs", content=message, headers=headers)).raise_for_status()
    with open_connection(silo.url) as line:
        while "version" not in line.ask(asked):
            await asyncio.sleep(0.1)
    took = time.perf_counter() - began
    while (await client.get("/v1/status")).json()["phase"] != "finished":
        await asyncio.sleep(0.2)
    await wait_until_lists(client)
    lists = time.perf_counter() - began
    return ServingRow("first model", took, "s", 15.0, more=f"lists of all users {lists:.1f} s after the same beginning")


def read_form(silo: ServedSilo) -> list[ServingRow]:
    """Reads the size of the compiled model, and the form that ranks baskets.

    The row also tells the interval of NDCG by which the form was chosen. Without a compiled model there is no row.
    """
    serving = silo.settings().state_directory / "serving"
    try:
        current = json.loads((serving / "current.json").read_text(encoding="utf-8"))
        head = json.loads((serving / current["model"] / "head.json").read_text(encoding="utf-8"))
        size = sum(path.stat().st_size for path in (serving / current["model"]).iterdir()) / (1 << 20)
    except (OSError, KeyError, TypeError):
        return []
    return [ServingRow("compiled model", size, "MB on the disk", more=f"baskets: {head['form']}; {head['why']}")]


async def measure_refresh(silo: ServedSilo, client: httpx.AsyncClient) -> list[ServingRow]:
    """Measures a refresh after EVENTS events under a steady load.

    STEADY lists of known users are requested each second meanwhile.
    """
    draws, shard = np.random.default_rng(7), silo.shard
    users, items = (draws.choice(ids, EVENTS).tolist() for ids in (shard.user_ids, shard.item_ids))
    pairs = enumerate(zip(users, items, strict=True))
    events = [{"event": f"later-{number}", "user": user, "item": item} for number, (user, item) in pairs]
    others = sorted(set(draw_users(shard)) - set(users))
    (await client.get("/v1/refresh")).raise_for_status()  # opens the connection before the clock starts
    with open_connection(silo.url) as line:
        line.ask(write_request("POST", "/v1/interactions", silo.key, {"interactions": events}))
    loading = asyncio.create_task(load_until_swapped(silo.target, others, STEADY))
    await asyncio.sleep(1.0)  # of load before it trains
    answer = await client.post("/v1/refresh")
    if answer.status_code not in (202, 409):  # 409: a refresh has begun by itself
        answer.raise_for_status()
    found = await loading
    swapped = next(one.due for one in found if one.model != found[0].model)
    training = [one.took for one in found if 1.0 < one.due < swapped]
    around = [one.took for one in found if abs(one.due - swapped) <= AROUND]
    quiet = percentiles([one.took for one in found if one.due <= 1.0], 50, 99)
    p50, p99 = percentiles(training, 50, 99)
    return [
        ServingRow(f"refresh after {EVENTS:,} events", swapped - 1.0, "s", 6.0),
        ServingRow("known users while it trains: p99", p99, "ms", 3.0, more=f"p50 {p50}; before p50, p99 {quiet}"),
        ServingRow(
            f"slowest within {AROUND:g} s of a swap, {STEADY}/s", max(around), "ms", 20.0, more=f"{len(around)} asked"
        ),
    ]


def measure_processes(silo: ServedSilo) -> list[ServingRow]:
    """Measures memory at rest after all requests, a start, and a further worker.

    For that the client is started again, and once more with a second worker.
    """
    assert silo.process is not None
    loaded, user = measure_memory(silo.process.pid), draw_users(silo.shard)[0]
    time.sleep(REST_SECONDS)
    server = measure_memory(silo.process.pid)
    others = {
        "trainer" if "--trainer" in words.split() else "worker": measure_memory(pid)
        for pid, words in child_processes(silo.process.pid).items()
    }
    at_once = f"{loaded.resident} MB at the last request"
    told = "; ".join([at_once, *(f"{name} {one.resident} MB" for name, one in others.items())])
    rows = [
        ServingRow("server: resident", server.resident, "MB", 120.0, more=told),
        ServingRow("server: private", server.private, "MB", 40.0, more=f"{server.anonymous} MB without mapped files"),
    ]
    silo.stop()
    took = measure_start(silo.start_again, silo.target, user)
    rows.append(ServingRow("start to the first list by the model", took, "s", 2.0))
    silo.stop()
    measure_start(partial(silo.start_again, workers=2), silo.target, user)
    rows.append(measure_worker(silo))
    silo.stop()
    return rows


def measure_worker(silo: ServedSilo) -> ServingRow:
    """Measures the private memory of a further worker after it has answered."""
    asked = [write_request("GET", list_path(user), silo.key) for user in draw_users(silo.shard)[:50]]
    for _ in range(12):  # enough connections for the system to give some to each process
        with open_connection(silo.url) as line:
            for one in asked:
                line.ask(one)
    assert silo.process is not None
    time.sleep(REST_SECONDS)
    beside = [pid for pid, words in child_processes(silo.process.pid).items() if "--trainer" not in words.split()]
    private = [measure_memory(worker).private for pid in beside for worker in child_processes(pid)]
    told = f"the process that forks workers: {sum(measure_memory(pid).private for pid in beside):.1f} MB"
    return ServingRow("a further worker: private", max(private, default=float("nan")), "MB", 40.0, more=told)


async def measure(shard_folder: Path, seconds: int) -> tuple[list[ServingRow], list[Load]]:
    """Measures all rows.

    Returned too are the loads from which the rows of known users and baskets follow.
    """
    shard = load_shard(shard_folder)
    with serve_implicit(shard) as peer, tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / shard_folder.resolve().name  # the silo's refresh writes events into it
        shutil.copytree(shard_folder, copy)
        silo = ServedSilo(Experiment((copy,), Path(folder), untrained_settings(), rounds=1), shard)
        try:
            async with silo.running() as (operator, client):
                rows = [await measure_first_model(silo, operator, client), *read_form(silo)]
                with open_connection(silo.url) as line:
                    answer = json.dumps(line.ask(write_request("GET", list_path(draw_users(shard)[0]), silo.key)))
                known, *others = draw_requests(shard)
                with serve_empty_route(answer.encode(), OWN_SERVER) as empty:
                    loads = alternate_loads((silo.target, empty, peer), [known], seconds)
                loads += alternate_loads((silo.target, peer), others, seconds)
                rows += rows_of_loads(loads)
                p50, p99 = percentiles(measure_lists_after_events(silo.target, draw_users(shard)[:300]), 50, 99)
                rows += [ServingRow("list after an event: p50", p50, "ms", 3.0), ServingRow("its p99", p99, "ms", 8.0)]
                rows += await measure_refresh(silo, client)
                rows += measure_processes(silo)
        finally:
            silo.stop()
        return rows, loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shard", type=Path)
    parser.add_argument("--seconds", type=int, default=3, help="of each turn of each load")
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        parser.error("expected wrk on the PATH, there is none: it is in Debian's package wrk")
    os.environ |= ONE_THREAD
    rows, loads = asyncio.run(measure(arguments.shard, arguments.seconds))
    if arguments.json:
        print(json.dumps({"rows": [one.as_json() for one in rows], "loads": [asdict(one) for one in loads]}, indent=1))
    else:
        print(f"{render_rows(rows)}\n\n{compare(loads)}\n\n{as_table(loads)}")


if __name__ == "__main__":
    main()
