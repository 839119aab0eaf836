"""A federation in one process: the real app over ASGITransport, and clients that only know numpy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from safetensors.numpy import load

from aggregator_service.app import create_app
from aggregator_service.settings import AggregatorSettings, aggregator_settings
from shared.parameters import Float32
from shared.schemas import Declaration
from shared.settings import AnchorSettings, MethodSettings
from shared.strategy import Parameters
from shared.wire import MEDIA_TYPE, encode

TOKEN = "operator-token-of-the-tests"
METHOD = MethodSettings(width=4, layers=1, cutoff=12, anchor=AnchorSettings(users=40, items=30, edges=200))


@dataclass(frozen=True)
class FakeClient:
    """Speaks the wire as a client service would; trains nothing."""

    name: str
    http: httpx.AsyncClient
    declaration: Declaration

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.name}-{'s' * 40}"}

    async def join(self, **extra: Any) -> httpx.Response:
        message = {"client": self.name, "declaration": self.declaration.model_dump(mode="json")} | extra
        return await self.http.post("/v1/clients", json=message, headers=self.headers)

    def joining(self, name: str = "") -> bytes:
        """A join message as it crosses, under this client's name or another."""
        declaration = self.declaration.model_dump(mode="json")
        return json.dumps({"client": name or self.name, "declaration": declaration}).encode()

    async def post(self, body: bytes) -> httpx.Response:
        headers = self.headers | {"Content-Type": "application/json"}
        return await self.http.post("/v1/clients", content=body, headers=headers)

    async def get(self, path: str, **query: Any) -> httpx.Response:
        return await self.http.get(path, params=query, headers=self.headers)

    def arrays(self, value: float) -> dict[str, Float32]:
        return {spec.name: np.full(spec.shape, value, dtype=np.float32) for spec in self.declaration.tensors}

    def update(self, value: float, **scalars: float) -> bytes:
        return encode(Parameters(self.arrays(value), scalars))

    async def put(self, number: int, body: bytes | AsyncIterator[bytes], **headers: str) -> httpx.Response:
        return await self.put_at(f"run-1/rounds/{number}/clients/{self.name}/update", body, **headers)

    async def put_at(self, path: str, body: bytes | AsyncIterator[bytes], **headers: str) -> httpx.Response:
        kind = {"Content-Type": MEDIA_TYPE} | {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.put(f"/v1/runs/{path}", content=body, headers=self.headers | kind)

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
        """The aggregator's own record, without times and sequence numbers."""
        answer = await self.operate("GET", "/v1/arrivals", params={"after": after})
        assert answer.status_code == 200, answer.text
        return [{k: v for k, v in one.items() if k not in ("time", "sequence")} for one in answer.json()["entries"]]

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
