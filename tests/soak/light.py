"""A real aggregator as a process of its own, and signed clients that upload valid updates without training anything."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio
import httpx

from shared.method.declaration import Declaration
from shared.protocol.schemas import JoinIn, RunIn
from shared.protocol.signing.enrolment import kept_pair, register
from shared.protocol.signing.keys import read_private
from shared.protocol.wire import MEDIA_TYPE
from shared.timeouts import ATTEMPTS
from tests.support.gauge import Gauge
from tests.support.serving import HOST
from tests.support.signing import Signing
from tests.support.small import BEARER, TOKEN

T = TypeVar("T")
START_SECONDS = 180.0
CALL_SECONDS = 300.0
WAIT_SECONDS = 20.0
STOP_SECONDS = 15.0
MEBI = 1 << 20
UNFINISHED = "unfinished.json"


@dataclass(frozen=True)
class Light:
    """One client: it joins, uploads what it is given, and takes what it gets without keeping it."""

    auth: Signing
    http: httpx.AsyncClient
    declaration: Declaration

    async def join(self) -> None:
        message = JoinIn(client=self.auth.name, declaration=self.declaration).model_dump_json()
        headers = {"Content-Type": "application/json"}
        (await self.http.post("/v1/clients", content=message, headers=headers, auth=self.auth)).raise_for_status()

    async def upload(self, number: int, body: bytes) -> None:
        path, headers = f"{self._own(number)}/update", {"Content-Type": MEDIA_TYPE}

        async def put() -> httpx.Response:
            return await self.http.put(path, content=body, headers=headers, auth=self.auth)

        (await repeated(put)).raise_for_status()

    async def fetch(self, number: int) -> int:
        """Wait for the round's end; the size of what is there for this client then."""
        while (size := await repeated(lambda: self._fetched(number))) is None:
            pass
        return size

    async def _fetched(self, number: int) -> int | None:
        path, query, size = f"{self._own(number)}/personalized", {"wait": f"{WAIT_SECONDS:g}"}, 0
        async with self.http.stream("GET", path, params=query, auth=self.auth) as answer:
            answer.raise_for_status()
            async for piece in answer.aiter_raw():
                size += len(piece)
        return None if answer.status_code == httpx.codes.NO_CONTENT else size

    def _own(self, number: int) -> str:
        return f"/v1/runs/run-1/rounds/{number}/clients/{self.auth.name}"


async def repeated(call: Callable[[], Awaitable[T]]) -> T:
    """A call, made again where its connection breaks, as a real client makes it: one may have been closed unused."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await call()
        except httpx.TransportError:
            await anyio.sleep(0.05)
    return await call()


@dataclass
class Process:
    """An aggregator. `child`: this very process has started it."""

    pid: int
    port: int
    child: subprocess.Popen[bytes] | None = None

    def wait(self) -> None:
        if self.child is not None:
            self.child.wait(STOP_SECONDS)


@dataclass(frozen=True)
class Federation:
    """The aggregator's process, and so many clients that have joined."""

    gauge: Gauge
    http: httpx.AsyncClient
    clients: tuple[Light, ...]
    process: Process
    state: Path

    def leave(self) -> None:
        """For the next piece of the same soak, which goes on where this one ends."""
        left = {"pid": self.process.pid, "port": self.process.port}
        (self.state / UNFINISHED).write_text(json.dumps(left), encoding="utf-8")

    async def start(self, request: RunIn) -> None:
        headers = BEARER | {"Content-Type": "application/json"}
        (await self.http.post("/v1/runs", content=request.model_dump_json(), headers=headers)).raise_for_status()

    async def phase(self) -> str:
        answer = await self.http.get("/v1/runs", headers=BEARER)
        return str(answer.raise_for_status().json()[-1]["phase"])


@asynccontextmanager
async def federation(state: Path, declaration: Declaration, count: int, **settings: str) -> AsyncIterator[Federation]:
    """`settings`: those of the aggregator, as in its environment.

    The process is ended with the context, or left to the next one in the same state directory, where `unfinished`.
    """
    keys = {name: kept_pair(name, state / "pairs") for name in (f"client-{n:02d}" for n in range(1, count + 1))}
    for pair in keys.values():
        register(pair.public, state / "keys")
    process = _left(state) or _started(state, settings)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    base = f"http://{HOST}:{process.port}"
    try:
        async with httpx.AsyncClient(base_url=base, timeout=CALL_SECONDS, limits=limits, trust_env=False) as http:
            await _ready(http, process)
            signing = (Signing(name, read_private(pair.private)) for name, pair in keys.items())
            clients = tuple(Light(one, http, declaration) for one in signing)
            for client in clients:
                await client.join()
            yield Federation(Gauge(process.pid), http, clients, process, state)
    finally:
        if not (state / UNFINISHED).exists():
            os.kill(process.pid, signal.SIGTERM)
            process.wait()
        elif process.child is not None:
            process.child.returncode = 0  # a handle warns of a child that outlives it; this one is meant to


def _left(state: Path) -> Process | None:
    """What an earlier piece of the same soak has left running."""
    path = state / UNFINISHED
    if not path.exists():
        return None
    found = Process(**json.loads(path.read_text(encoding="utf-8")))
    path.unlink()
    return found


def _started(state: Path, settings: dict[str, str]) -> Process:
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    told = {"STATE_DIRECTORY": str(state), "OPERATOR_TOKEN": TOKEN, "PORT": str(port), "LOG_LEVEL": "warning"}
    environment = {f"LPSFED_AGGREGATOR_{name}": value for name, value in (told | settings).items()}
    command = [sys.executable, "-m", "aggregator_service"]
    log = (state / "aggregator.log").open("ab")
    with log:
        child = subprocess.Popen(
            command, env=os.environ | environment, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True
        )
    return Process(child.pid, port, child)


async def _ready(http: httpx.AsyncClient, process: Process) -> None:
    with anyio.fail_after(START_SECONDS):
        while True:
            assert process.child is None or process.child.poll() is None, "the aggregator has ended"
            try:
                if (await http.get("/health/ready")).is_success:
                    return
            except httpx.TransportError:
                pass  # it does not listen yet
            await anyio.sleep(0.05)
