"""A federation in one process: the real app over ASGITransport, and clients that only know numpy."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from safetensors.numpy import load

from aggregator_service.app import create_app
from aggregator_service.settings import AggregatorSettings
from shared.method.declaration import Declaration
from shared.method.parameters import Float32, Parameters
from shared.method.settings import MethodSettings
from shared.protocol.signing.enrolment import public_file
from shared.protocol.signing.keys import PrivateKey, new_key, public_pem
from shared.protocol.wire import MEDIA_TYPE, encode_body
from tests.support.clock import LeapingClock
from tests.support.federation import run_app
from tests.support.process import AggregatorProcess
from tests.support.questions import LONGEST_SECONDS
from tests.support.signing import Signing
from tests.support.small import BEARER, SMALL, small_aggregator

# gamma = 1: M may be anything from 0 to pi.
METHOD = SMALL.model_copy(
    update={"margin_strength": 1.0, "similarity_floor": 0.0}
)  # the paper's rhobar, in secure runs too


KEYS: defaultdict[str, PrivateKey] = defaultdict(new_key)  # of the same name the same one, after a restart too


@dataclass(frozen=True)
class FakeClient:
    """Speaks the wire as a client service would; trains nothing."""

    name: str
    http: httpx.AsyncClient
    declaration: Declaration
    run: str = "run-1"  # that it takes part in

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
        return encode_body(Parameters(self.arrays(value), scalars))

    async def put(self, number: int, body: bytes | AsyncIterator[bytes], **headers: str) -> httpx.Response:
        return await self.put_at(f"{self.run}/rounds/{number}/clients/{self.name}/update", body, **headers)

    async def put_at(self, path: str, body: bytes | AsyncIterator[bytes], **headers: str) -> httpx.Response:
        kind = {"Content-Type": MEDIA_TYPE} | {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.put(f"/v1/runs/{path}", content=body, headers=kind, auth=self.auth)

    def arrival(self, call: str, body: bytes, status: int, **others: Any) -> dict[str, Any]:
        """What is on record of this client's call in round 1 of run-1, or of its join, but for time and sequence."""
        place = {"run": None, "round": None} if call == "join" else {"run": "run-1", "round": 1}
        came = {"size": len(body), "digest": hashlib.sha256(body).hexdigest()}
        return {"client": self.name, "call": call, **place, **came, "status": status, "code": None} | others

    async def personalised(self, number: int, wait: float = 30.0) -> httpx.Response:
        return await self.get(f"/v1/runs/{self.run}/rounds/{number}/clients/{self.name}/personalized", wait=wait)

    async def level(self, number: int, wait: float = 30.0) -> float:
        """The one value that all parameters of this client have after that round."""
        answer = await self.personalised(number, wait)
        assert answer.status_code == 200, answer.text
        (value,) = {float(value) for array in load(answer.content).values() for value in np.unique(array)}
        return value

    async def sends(self, number: int, value: float, **scalars: float) -> int:
        """The status by which an update is answered; by default all clients send the same scalars."""
        return (await self.put(number, self.update(value, **({"rho": 0.1, "margin": 0.2} | scalars)))).status_code

    async def standing(self) -> str:
        return str((await self.get("/v1/runs/current")).json()["standing"])


@dataclass(frozen=True)
class Federation:
    """The running app, and a way to call it as anybody."""

    app: FastAPI
    http: httpx.AsyncClient
    settings: AggregatorSettings
    clock: Any
    run: str = "run-1"  # that is asked for

    def client(self, name: str) -> FakeClient:
        """It has not joined, but its key is registered."""
        registered = public_file(name, self.settings.registry)
        registered.parent.mkdir(parents=True, exist_ok=True)
        registered.write_bytes(public_pem(KEYS[name].public_key()))
        return FakeClient(name, self.http, self.settings.declaration(), self.run)

    async def joined(self, *names: str) -> list[FakeClient]:
        clients = [self.client(name) for name in names]
        for client in clients:
            assert (await client.join()).status_code == 200
        return clients

    async def begun(self, *names: str, **request: Any) -> list[FakeClient]:
        """These clients, and a run whose first round waits for them; `method`: what differs from the federation's."""
        clients = await self.joined(*names)
        method = self.settings.method.model_dump(mode="json") | request.pop("method", {})
        answer = await self.start_run(**({"rounds": 2, "clients": len(names), "method": method} | request))
        assert answer.status_code == 201, answer.text
        return clients

    async def opened(self) -> list[FakeClient]:
        """Two clients, whose joins are the first two rows of the record, and a run whose first round is open."""
        return await self.begun("north", "south")

    async def operate(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self.http.request(method, path, headers=BEARER, **options)

    async def start_run(self, **request: Any) -> httpx.Response:
        return await self.operate("POST", "/v1/runs", json={"method": METHOD.model_dump(mode="json")} | request)

    async def arrivals(self, after: int = 0) -> list[dict[str, Any]]:
        """The aggregator's own record, without times, sequence numbers, nonces and heads."""
        answer = await self.operate("GET", "/v1/arrivals", params={"after": after})
        assert answer.status_code == 200, answer.text
        passing = ("time", "sequence", "nonce", "head")
        return [{k: v for k, v in one.items() if k not in passing} for one in answer.json()["entries"]]

    async def history(self) -> dict[str, Any]:
        history: dict[str, Any] = (await self.operate("GET", f"/v1/runs/{self.run}")).json()
        return history


Running = Callable[..., AbstractAsyncContextManager[Federation]]


@pytest.fixture
def running(tmp_path: Path, clock: Any) -> Running:
    """`async with running(strategy=...) as federation`; entering it a second time is a restart."""

    return partial(_run_federation, tmp_path / "state", clock)


@pytest.fixture(scope="module")
async def shared_federation(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Federation]:
    """With two clients and an open run. The tests of a file share it: it refuses them, or tells them something."""
    async with _run_federation(tmp_path_factory.mktemp("shared"), LeapingClock()) as federation:
        await federation.opened()
        yield federation


@asynccontextmanager
async def _run_federation(state: Path, clock: Any, **overrides: Any) -> AsyncIterator[Federation]:
    limits = {"method": METHOD, "longest_body_seconds": 2.0}  # a run's deadline may not be shorter
    settings = small_aggregator(state, **(limits | overrides))
    app = create_app(settings, clock=clock)
    async with run_app(app, "http://aggregator") as http:
        yield Federation(app, http, settings, clock)


@pytest.fixture
def tensors() -> Callable[[bytes], dict[str, Float32]]:
    return load


class Served(AggregatorProcess):
    """The service as a process of its own, asked by clients that only know numpy."""

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Federation]:
        """It listens and is ready; it is killed when the context ends, as a crash would end it."""
        settings = small_aggregator(self.state, **self.settings)
        with self.running():
            async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=LONGEST_SECONDS) as http:
                yield Federation(FastAPI(), http, settings, None)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """`served()`: the service as a process, not yet started; nothing of it is left after the test."""
    services: list[Served] = []

    def build(method: MethodSettings = METHOD) -> Served:
        services.append(Served(tmp_path / "state", {"method": method}))
        return services[-1]

    yield build
    for service in services:
        service.kill()
