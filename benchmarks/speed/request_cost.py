"""Calls and processor time of each call of a silo at the aggregator.

python -m benchmarks.speed.request_cost [--against COMMIT] [--repetitions 200] [--json]

The requests are signed beforehand and given, as bytes, to a connection of the server without a socket: so the figures
are of all that the aggregator does between the bytes of a request and those of its answer, in all its threads. Calls
are those that a profiler sees, and the same on every machine. With --against the same requests are also sent to the
aggregator of another commit, in turns with this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI
from uvicorn.server import ServerState

from aggregator_service.app import create_app
from aggregator_service.settings import AggregatorSettings
from benchmarks.common import render_table
from benchmarks.compare_commits.trees import commit_tree, working_tree
from shared.method.declaration import Declaration
from shared.method.parameters import Parameters
from shared.method.settings import method_settings
from shared.protocol.request_heads import RequestHead
from shared.protocol.schemas import JoinIn, RunIn
from shared.protocol.signing.enrolment import public_file
from shared.protocol.signing.keys import new_key, public_pem
from shared.protocol.signing.requests import RequestTarget, Signatory, sign_request
from shared.protocol.wire import MEDIA_TYPE, encode_body
from shared.web.connection import Connection
from shared.web.server import build_server

TOKEN = "the-operator-of-the-request-costs"
HOST = "aggregator"
JSON = "application/json"
SCALARS = {"margin": 0.1, "rho": 0.1}
WARM = 5  # requests of each kind before the first that counts
TURNS = 3
COUNTED = 25  # requests of each kind whose calls are counted
EVENTS = ("call", "c_call")
REPOSITORY = Path(__file__).parents[2]
Costs = dict[str, dict[str, float]]


class _Transport(asyncio.Transport):
    """Transport that keeps what is written, and tells when an answer's last bytes have come."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.came = bytearray(), asyncio.Event()

    def write(self, data: Any) -> None:
        self.written += data
        self.came.set()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", 8_800)}.get(name, default)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class AnsweringServer:
    """Connection of the aggregator's server, without a socket."""

    def __init__(self, app: FastAPI) -> None:
        server = build_server(app, host="127.0.0.1", port=0, on_shutdown=lambda: None)
        server.config.load()
        self._transport = _Transport()
        self._connection = Connection(server.config, ServerState(), {})
        self._connection.connection_made(self._transport)

    async def ask(self, request: bytes, status: int = 200) -> None:
        """Sends a request and waits for its whole answer; raises RuntimeError for another status."""
        self._transport.written.clear()
        self._connection.data_received(request)
        while not _is_whole(self._transport.written):
            self._transport.came.clear()
            await self._transport.came.wait()
        found = bytes(self._transport.written)
        if not found.startswith(b"HTTP/1.1 %d " % status):
            raise RuntimeError(f"expected status {status}, got {found[:2000]!r}")


def _is_whole(answer: bytes) -> bool:
    head, mark, body = bytes(answer).partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
    return mark != b"" and len(body) >= int(length or b"0")


def write_signed(who: Signatory, method: str, target: str, body: bytes = b"", media: str | None = None) -> bytes:
    """Writes a request with its signature as a client's gate sends it."""
    head = RequestHead(method, target, HOST, media, len(body) if media else None)
    made = sign_request(
        RequestTarget.of(method, target.encode()), body, who, created=int(time.time()), nonce=os.urandom(16).hex()
    )
    lines = "".join(f"{name}: {value}\r\n" for name, value in [*head.headers(), *made.items()])
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


class CallCounter:
    """Count of the calls in this thread and those that begin meanwhile."""

    def __init__(self) -> None:
        self._calls, self._seen, self.counting = count(), 0, False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Counts within the context, while `counting` is set."""
        threading.setprofile(self._count)
        sys.setprofile(self._count)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        del frame, argument
        if self.counting and event in EVENTS:
            next(self._calls)

    def take(self) -> int:
        """Returns the calls since it was asked before."""
        now = next(self._calls)
        found, self._seen = now - self._seen, now + 1
        return found


@asynccontextmanager
async def serve_federation(folder: Path, clients: int) -> AsyncIterator[tuple[FastAPI, list[Signatory], Declaration]]:
    """Runs an aggregator's app with registered keys, and yields it with the clients."""
    registry = folder / "registry"
    registry.mkdir(parents=True)
    crowd = [Signatory(f"client-{number}", new_key()) for number in range(1, clients + 1)]
    for one in crowd:
        public_file(one.name, registry).write_bytes(public_pem(one.key.public_key()))
    settings = AggregatorSettings(
        state_directory=folder / "aggregator",
        operator_token=TOKEN,  # type: ignore[arg-type]
        keys_directory=registry,
        method=method_settings(),
        log_level="warning",
    )
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        yield app, crowd, settings.declaration()


Measure = Callable[[AnsweringServer, str, Sequence[bytes], int], Awaitable[None]]


async def ask_each_kind(folder: Path, repetitions: int, measure: Measure) -> None:
    """Measures each kind of request, of as many clients as repetitions."""
    from scipy.sparse import linalg  # an aggregator loads it in the background, and that is no cost of a request

    del linalg
    async with serve_federation(folder, repetitions + 1) as (app, crowd, declaration):
        server = AnsweringServer(app)
        joins = [JoinIn(client=who.name, declaration=declaration).model_dump_json().encode() for who in crowd]
        pairs = zip(crowd, joins, strict=True)
        signed = [write_signed(who, "POST", "/v1/clients", message, JSON) for who, message in pairs]
        await measure(server, "join", signed, 200)
        await _start_run(app, len(crowd))
        signed = [write_signed(who, "GET", "/v1/runs/current?wait=20&after=0") for who in crowd]
        await measure(server, "poll", signed, 200)
        draw = np.random.default_rng(0)
        arrays = {one.name: draw.standard_normal(one.shape, dtype=np.float32) for one in declaration.tensors}
        own, body = "/v1/runs/run-1/rounds/1/clients", encode_body(Parameters(arrays, SCALARS))
        signed = [write_signed(who, "GET", "/v1/runs/run-1/model") for who in crowd]
        await measure(server, "model", signed, 200)
        signed = [write_signed(who, "GET", "/v1/runs/run-1/rounds/1/anchor") for who in crowd]
        await measure(server, "anchor", signed, 200)
        *signed, last = [write_signed(who, "PUT", f"{own}/{who.name}/update", body, MEDIA_TYPE) for who in crowd]
        await measure(server, "upload", signed, 201)
        await server.ask(last, 201)  # it ends the round, which every answer needs
        await server.ask(write_signed(crowd[0], "GET", f"{own}/{crowd[0].name}/personalized?wait=20"))
        signed = [write_signed(who, "GET", f"{own}/{who.name}/personalized?wait=20") for who in crowd]
        await measure(server, "answer", signed, 200)


async def _start_run(app: FastAPI, clients: int) -> None:
    message = RunIn(rounds=1, clients=clients, method=method_settings()).model_dump_json()
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": JSON}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers=headers) as operator:
        (await operator.post("/v1/runs", content=message)).raise_for_status()


def count_calls(repetitions: int) -> dict[str, float]:
    """Counts the Python and C calls of one request of each kind."""
    found: dict[str, float] = {}
    counter = CallCounter()

    async def measure(server: AnsweringServer, name: str, requests: Sequence[bytes], status: int) -> None:
        await _ask_all(server, requests[:WARM], status)
        counter.take()
        counter.counting = True
        await _ask_all(server, requests[WARM:], status)
        counter.counting = False
        found[name] = round(counter.take() / len(requests[WARM:]))

    with tempfile.TemporaryDirectory() as folder, counter.installed():
        asyncio.run(ask_each_kind(Path(folder), repetitions, measure))
    return found


def measure_processor(repetitions: int) -> dict[str, float]:
    """Measures the processor milliseconds of one request of each kind."""
    found: dict[str, float] = {}

    async def measure(server: AnsweringServer, name: str, requests: Sequence[bytes], status: int) -> None:
        await _ask_all(server, requests[:WARM], status)
        began = time.process_time()
        await _ask_all(server, requests[WARM:], status)
        found[name] = 1000 * (time.process_time() - began) / len(requests[WARM:])

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(ask_each_kind(Path(folder), repetitions, measure))
    return found


async def _ask_all(server: AnsweringServer, requests: Sequence[bytes], status: int) -> None:
    for request in requests:
        await server.ask(request, status)


def measure_costs(repetitions: int) -> Costs:
    """Measures calls and processor milliseconds, by kind of request."""
    calls, milliseconds = count_calls(COUNTED), measure_processor(repetitions)
    return {name: {"calls": calls[name], "milliseconds": milliseconds[name]} for name in calls}


def compare_with(commit: str, repetitions: int) -> dict[str, Costs]:
    """Measures another commit and this one in turns; the least milliseconds of each count."""
    found: dict[str, Costs] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = commit_tree(REPOSITORY, commit, Path(folder) / "base")
        for _ in range(TURNS):
            for tree in (base, working_tree(REPOSITORY)):
                command = [sys.executable, "-P", __file__, "--json", "--repetitions", str(repetitions)]
                printed = subprocess.run(command, env=tree.process_environment(), check=True, capture_output=True)
                costs = json.loads(printed.stdout)["here"]
                found[tree.name] = _least(found.get(tree.name, costs), costs)
    return found


def _least(first: Costs, second: Costs) -> Costs:
    return {name: {what: min(one, second[name][what]) for what, one in costs.items()} for name, costs in first.items()}


def as_table(found: dict[str, Costs]) -> str:
    """Renders a row for each request and commit, with its share of the first commit's."""
    first = next(iter(found.values()))
    rows = [
        [
            kind,
            name,
            f"{one['calls']:,.0f}",
            f"{one['calls'] / first[kind]['calls']:.2f}",
            f"{one['milliseconds']:.3f}",
            f"{one['milliseconds'] / first[kind]['milliseconds']:.2f}",
        ]
        for kind in first
        for name, costs in found.items()
        for one in (costs[kind],)
    ]
    return render_table(("request", "commit", "calls", "of the first", "processor ms", "of the first"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="also measure this commit")
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.against is None:
        found = {"here": measure_costs(given.repetitions)}
    else:
        found = compare_with(given.against, given.repetitions)
    print(json.dumps(found) if given.json else as_table(found))


if __name__ == "__main__":
    main()
