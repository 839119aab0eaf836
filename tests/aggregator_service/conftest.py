"""A federation in one process: the real app over ASGITransport, and clients that only know numpy."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from safetensors.numpy import load

from aggregator_service.app import create_app
from aggregator_service.settings import AggregatorSettings, aggregator_settings
from shared.method.declaration import Declaration
from shared.method.exchanged import Parameters
from shared.method.parameters import Float32
from shared.method.settings import AnchorSettings, MethodSettings
from shared.protocol.heads import dressed
from shared.protocol.signing.enrolment import public_file
from shared.protocol.signing.keys import PrivateKey, new_key, public_pem
from shared.protocol.signing.messages import NONCE_BYTES, Signatory, Target, sign
from shared.protocol.wire import MEDIA_TYPE, encode

TOKEN = "operator-token-of-the-tests"
# gamma = 1: M may be anything from 0 to pi.
METHOD = MethodSettings(
    width=4, layers=1, cutoff=12, margin_strength=1.0, anchor=AnchorSettings(users=40, items=30, edges=200)
)


KEYS: defaultdict[str, PrivateKey] = defaultdict(new_key)  # of the same name the same one, after a restart too


@dataclass(frozen=True)
class Signing(httpx.Auth):
    """Signs each request as it leaves. `late`: by so many seconds; `nonce`: this one; `body`: of this one instead."""

    name: str
    key: PrivateKey
    late: int = 0
    nonce: str | None = None
    body: bytes | None = None

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        signed = self.headers(request)
        unsigned = [(name, value) for name, value in request.headers.multi_items() if name not in signed]
        request.headers = httpx.Headers([*dressed(unsigned), *signed.items()])
        yield request

    def headers(self, request: httpx.Request) -> dict[str, str]:
        target, created = Target.of(request.method, request.url.raw_path), int(time.time()) - self.late
        nonce = self.nonce or secrets.token_hex(NONCE_BYTES)
        body = self._body_of(request) if self.body is None else self.body
        return sign(target, body, Signatory(self.name, self.key), created=created, nonce=nonce)

    @staticmethod
    def _body_of(request: httpx.Request) -> bytes:
        try:
            return request.content
        except httpx.RequestNotRead:  # it is not known before it is sent
            return b""


@dataclass(frozen=True)
class FakeClient:
    """Speaks the wire as a client service would; trains nothing."""

    name: str
    http: httpx.AsyncClient
    declaration: Declaration

    @property
    def auth(self) -> Signing:
        return Signing(self.name, KEYS[self.name])

    async def join(self, **extra: Any) -> httpx.Response:
        message = {"client": self.name, "declaration": self.declaration.model_dump(mode="json")} | extra
        return await self.http.post("/v1/clients", json=message, auth=self.auth)

    def joining(self, name: str = "") -> bytes:
        """A join message as it crosses, under this client's name or another."""
        declaration = self.declaration.model_dump(mode="json")
        return json.dumps({"client": name or self.name, "declaration": declaration}).encode()

    async def post(self, body: bytes) -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        return await self.http.post("/v1/clients", content=body, headers=headers, auth=self.auth)

    async def get(self, path: str, **query: Any) -> httpx.Response:
        said = {name: f"{value:g}" if isinstance(value, float) else value for name, value in query.items()}
        return await self.http.get(path, params=said, auth=self.auth)

    def arrays(self, value: float) -> dict[str, Float32]:
        return {spec.name: np.full(spec.shape, value, dtype=np.float32) for spec in self.declaration.tensors}

    def update(self, value: float, **scalars: float) -> bytes:
        return encode(Parameters(self.arrays(value), scalars))

    async def put(self, number: int, body: bytes | AsyncIterator[bytes], **headers: str) -> httpx.Response:
        return await self.put_at(f"run-1/rounds/{number}/clients/{self.name}/update", body, **headers)

    async def put_at(self, path: str, body: bytes | AsyncIterator[bytes], **headers: str) -> httpx.Response:
        kind = {"Content-Type": MEDIA_TYPE} | {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.put(f"/v1/runs/{path}", content=body, headers=kind, auth=self.auth)

    def arrival(self, call: str, body: bytes, status: int, **others: Any) -> dict[str, Any]:
        """What is on record of this client's call in round 1 of run-1, or of its join, but for time and sequence."""
        place = {"run": None, "round": None} if call == "join" else {"run": "run-1", "round": 1}
        came = {"size": len(body), "digest": hashlib.sha256(body).hexdigest()}
        return {"client": self.name, "call": call, **place, **came, "status": status, "code": None} | others

    async def personalised(self, number: int, wait: float = 2.0) -> httpx.Response:
        return await self.get(f"/v1/runs/run-1/rounds/{number}/clients/{self.name}/personalized", wait=wait)


@dataclass(frozen=True)
class Federation:
    """The running app, and a way to call it as anybody."""

    app: FastAPI
    http: httpx.AsyncClient
    settings: AggregatorSettings
    clock: Any

    def client(self, name: str) -> FakeClient:
        """It has not joined, but its key is registered."""
        registered = public_file(name, self.settings.registry)
        registered.parent.mkdir(parents=True, exist_ok=True)
        registered.write_bytes(public_pem(KEYS[name].public_key()))
        return FakeClient(name, self.http, self.settings.declaration())

    async def joined(self, *names: str) -> list[FakeClient]:
        clients = [self.client(name) for name in names]
        for client in clients:
            assert (await client.join()).status_code == 200
        return clients

    async def opened(self) -> list[FakeClient]:
        """Two clients, whose joins are the first two rows of the record, and a run whose first round is open."""
        clients = await self.joined("north", "south")
        assert (await self.start_run(rounds=2, clients=2)).status_code == 201
        return clients

    async def operate(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self.http.request(method, path, headers={"Authorization": f"Bearer {TOKEN}"}, **options)

    async def start_run(self, **request: Any) -> httpx.Response:
        return await self.operate("POST", "/v1/runs", json={"method": METHOD.model_dump(mode="json")} | request)

    async def arrivals(self, after: int = 0) -> list[dict[str, Any]]:
        """The aggregator's own record, without times, sequence numbers, nonces and heads."""
        answer = await self.operate("GET", "/v1/arrivals", params={"after": after})
        assert answer.status_code == 200, answer.text
        passing = ("time", "sequence", "nonce", "head")
        return [{k: v for k, v in one.items() if k not in passing} for one in answer.json()["entries"]]

    async def history(self) -> dict[str, Any]:
        history: dict[str, Any] = (await self.operate("GET", "/v1/runs/run-1")).json()
        return history


Running = Callable[..., AbstractAsyncContextManager[Federation]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def running(tmp_path: Path, clock: Any) -> Running:
    """`async with running(strategy=...) as federation`; entering it a second time is a restart."""

    @asynccontextmanager
    async def run(**overrides: Any) -> AsyncIterator[Federation]:
        defaults = {"state_directory": tmp_path / "state", "operator_token": TOKEN, "method": METHOD}
        defaults |= {"longest_body_seconds": 2.0}  # a run's deadline may not be shorter
        settings = aggregator_settings(**(defaults | overrides))
        app = create_app(settings, clock=clock)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://aggregator") as http,
        ):
            yield Federation(app, http, settings, clock)

    return run


@pytest.fixture
def tensors() -> Callable[[bytes], dict[str, Float32]]:
    return load


@dataclass
class Served:
    """The service as a process of its own, which can be killed and started again in the same state directory."""

    state: Path
    method: MethodSettings
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    @property
    def settings(self) -> AggregatorSettings:
        return aggregator_settings(state_directory=self.state, operator_token=TOKEN, method=self.method)

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Federation]:
        """It listens and is ready; it is killed when the context ends, as a crash would end it."""
        self.start()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=30) as http:
            try:
                await self._ready(http)
                yield Federation(FastAPI(), http, self.settings, None)
            finally:
                self.kill()

    def start(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        told = {"STATE_DIRECTORY": self.state, "OPERATOR_TOKEN": TOKEN, "PORT": self.port}
        environment = {f"LPSFED_AGGREGATOR_{name}": str(value) for name, value in told.items()}
        environment["LPSFED_AGGREGATOR_METHOD"] = self.method.model_dump_json()
        command, nowhere = [sys.executable, "-m", "aggregator_service"], subprocess.DEVNULL
        self.process = subprocess.Popen(command, env=os.environ | environment, stdin=nowhere, stdout=nowhere)

    def kill(self) -> None:
        """SIGKILL: nothing of the process runs any more."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    async def _ready(self, http: httpx.AsyncClient) -> None:
        with anyio.fail_after(180):  # a bound alone: where much else runs a start takes long
            while True:
                assert self.process is not None and self.process.poll() is None, "the service has ended"
                try:
                    if (await http.get("/health/ready")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass  # it does not listen yet
                await anyio.sleep(0.05)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """`served()`: the service as a process, not yet started; nothing of it is left after the test."""
    made: list[Served] = []

    def make(method: MethodSettings = METHOD) -> Served:
        made.append(Served(tmp_path / "state", method))
        return made[-1]

    yield make
    for one in made:
        one.kill()
