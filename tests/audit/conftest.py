"""Evidence of a small federation, made by the real gate before an aggregator of the test's own; and real services."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from aggregator_service.app import create_app
from aggregator_service.settings import aggregator_settings
from audit.case import open_case
from audit.collect import of_aggregator, of_client
from audit.evidence import Evidence
from audit.report import Report, report
from client_service.boundary.gate import Boundary, GateTransport
from client_service.boundary.ledger import Ledger
from client_service.boundary.signing_key import own_key
from client_service.settings import ClientSettings, client_settings
from shared.method.declaration import Declaration, TensorSpec
from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.protocol.heads import USER_AGENT
from shared.protocol.schemas import (
    ArrivalOut,
    JoinIn,
    JoinOut,
    ParticipantOut,
    ReceiptOut,
    RoundOut,
    RunHistoryOut,
    RunIn,
)
from shared.protocol.signing.keys import new_key
from shared.protocol.signing.messages import Signatory
from shared.protocol.wire import MEDIA_TYPE, encode

if TYPE_CHECKING:
    from conftest import Opened, Silos

HOME, TOKEN, TIME = "http://aggregator:8800", "operator-token-of-the-tests", "2026-01-01T00:00:00+00:00"
DECLARATION = Declaration(
    strategy="lpsfed",
    tensors=(TensorSpec(name="pooling.weight", shape=(2, 3)), TensorSpec(name="predictive.bias", shape=(1,))),
    scalars=("margin", "rho"),
)
CLIENTS, ROUNDS = ("client-1", "client-2"), (1, 2)
Parts = dict[str, Evidence]


@dataclass
class Recorder:
    """An aggregator that accepts whatever comes, and keeps a record of it."""

    arrivals: list[ArrivalOut] = field(default_factory=list)
    held: dict[int, list[ParticipantOut]] = field(default_factory=dict)

    def of(self, client: str) -> Callable[[httpx.Request], httpx.Response]:
        def answer(request: httpx.Request) -> httpx.Response:
            if request.method == "POST":
                self._record(client, "join", request.content, 200)
                return _answer(200, JoinOut(client=client, clients=2).model_dump_json().encode())
            if request.method == "PUT":
                return self._take(client, int(request.url.path.split("/")[5]), request.content)
            return _answer(200, b"something")

        return answer

    def _take(self, client: str, number: int, body: bytes) -> httpx.Response:
        digest = self._record(client, "update", body, 201, run="run-1", round=number)
        said = {"client": client, "digest": digest, "size": len(body), "received_at": TIME}
        self.held.setdefault(number, []).append(ParticipantOut.model_validate({**said, "received": True}))
        receipt = ReceiptOut.model_validate({**said, "run": "run-1", "round": number})
        return _answer(201, receipt.model_dump_json().encode())

    def _record(self, client: str, call: str, body: bytes, status: int, **place: Any) -> str:
        digest, number = hashlib.sha256(body).hexdigest(), len(self.arrivals) + 1
        said = {"sequence": number, "time": TIME, "size": len(body), "digest": digest, "status": status, **place}
        self.arrivals.append(ArrivalOut.model_validate({"client": client, "call": call, **said}))
        return digest

    def evidence(self) -> Evidence:
        rounds = tuple(
            RoundOut(number=number, phase="aggregated", opened_at=TIME, participants=tuple(held))
            for number, held in sorted(self.held.items())
        )
        run = RunHistoryOut(run="run-1", phase="finished", request=RunIn(), started_at=TIME, rounds=rounds)
        return Evidence(
            name="aggregator",
            role="aggregator",
            taken_at=TIME,
            declaration=DECLARATION,
            arrivals=tuple(self.arrivals),
            runs=(run,),
        )


def _answer(status: int, content: bytes) -> httpx.Response:
    return httpx.Response(status, stream=httpx.ByteStream(content))


async def _taken_part(client: str, recorder: Recorder, path: Path) -> Evidence:
    """What a client's ledger says after it has joined and taken part in both rounds."""
    ledger = Ledger(path)
    boundary = Boundary(client, httpx.URL(HOME), DECLARATION, counts=False, max_upload_bytes=10_000)
    transport = GateTransport(httpx.MockTransport(recorder.of(client)), boundary, ledger, new_key())
    said = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
    async with httpx.AsyncClient(transport=transport, base_url=HOME, headers=said) as http:
        join = JoinIn(client=client, declaration=DECLARATION).model_dump_json()
        await http.post("/v1/clients", content=join, headers={"Content-Type": "application/json"})
        await http.get("/v1/runs/current?wait=5")
        for number in ROUNDS:
            place = f"/v1/runs/run-1/rounds/{number}"
            await http.get(f"{place}/anchor")
            body = _update(int(client[-1]) + number / 10)
            kind = {"Content-Type": MEDIA_TYPE}
            await http.put(f"{place}/clients/{client}/update", content=body, headers=kind)
            await http.get(f"{place}/clients/{client}/personalized?wait=5")
    entries = tuple(ledger.entries())
    return Evidence(name=client, role="client", taken_at=TIME, declaration=DECLARATION, entries=entries)


def _update(value: float) -> bytes:
    arrays = {spec.name: np.full(spec.shape, value, dtype=np.float32) for spec in DECLARATION.tensors}
    return encode(Parameters(arrays, {"margin": value, "rho": 0.1 + value}))


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """The evidence of two clients, two rounds and their aggregator: all of it as it should be."""
    recorder, folder = Recorder(), tmp_path_factory.mktemp("ledgers")
    found = {name: asyncio.run(_taken_part(name, recorder, folder / f"{name}.jsonl")) for name in CLIENTS}
    return {**found, "aggregator": recorder.evidence()}


CHAINED = ("sequence", "time", "kind", "previous", "hash")
Entry = dict[str, Any]


@dataclass(frozen=True)
class Tampered:
    """Evidence that a test may change."""

    parts: Parts
    folder: Path

    def report(self) -> Report:
        return report(open_case(tuple(self.parts.values())))

    def broken(self) -> dict[str, str]:
        """What does not hold, and what was found instead."""
        return {one.name: one.found for one in self.report().findings if not one.held}

    def change(self, name: str, **what: Any) -> None:
        self.parts[name] = self.parts[name].model_copy(update=what)

    def rewrite(self, name: str, change: Callable[[Entry], object]) -> None:
        """As a client that changes its entries and then makes the chain anew."""
        ledger = Ledger(self.folder / f"{len(list(self.folder.iterdir()))}.jsonl")
        for entry in self.parts[name].entries:
            said = json.loads(json.dumps(entry))
            change(said)
            ledger.append(said["kind"], **{key: said[key] for key in said if key not in CHAINED})
        self.change(name, entries=tuple(ledger.entries()))


@pytest.fixture
def mine(parts: Parts, tmp_path: Path) -> Tampered:
    """To be tampered with."""
    folder = tmp_path / "rewritten"
    folder.mkdir()
    return Tampered(dict(parts), folder)


@dataclass(frozen=True)
class Federation:
    """Silos and their aggregator, in this process."""

    aggregator: FastAPI
    operator: httpx.AsyncClient
    silos: dict[str, httpx.AsyncClient]
    settings: dict[str, ClientSettings]

    async def start(self, rounds: int = 1) -> None:
        method = next(iter(self.settings.values())).method.model_dump(mode="json")
        request = {"rounds": rounds, "clients": len(self.silos), "method": method}
        assert (await self.operator.post("/v1/runs", json=request)).status_code == 201

    async def finished(self) -> bool:
        found = [(await http.get("/v1/quality")).json() for http in self.silos.values()]
        return all(quality["finished"] for quality in found)

    async def problems(self) -> list[str]:
        """What keeps each client from going on."""
        found = [(await http.get("/v1/status")).json() for http in self.silos.values()]
        return [status.get("problem", "") for status in found]

    async def evidence(self) -> tuple[Evidence, ...]:
        found = [await of_client(http, name) for name, http in self.silos.items()]
        return (*found, await of_aggregator(self.operator, "aggregator"))

    def stranger(self) -> httpx.AsyncClient:
        """A way to the aggregator past every gate."""
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.aggregator), base_url="http://aggregator")

    def signatory(self, client: str) -> Signatory:
        return Signatory(client, own_key(client, self.settings[client].state_directory))


Running = Callable[[], AbstractAsyncContextManager[Federation]]


@pytest.fixture
def federation(tmp_path: Path, silos: Silos, small: MethodSettings, opened: Opened, keys: Path) -> Running:
    """`async with federation() as running`: two silos that have joined, or are about to."""

    @asynccontextmanager
    async def run() -> AsyncIterator[Federation]:
        folder = tmp_path / "aggregator"
        settings = aggregator_settings(state_directory=folder, operator_token=TOKEN, method=small, keys_directory=keys)
        app = create_app(settings)
        said = {"Authorization": f"Bearer {TOKEN}"}
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(app.router.lifespan_context(app))
            http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://operator", headers=said)
            running = Federation(app, await stack.enter_async_context(http), {}, {})
            for shard in silos(2):
                settings = client_settings(
                    name=shard.name,
                    shard=shard,
                    state_directory=tmp_path / shard.name,
                    aggregator_url="http://aggregator",
                    method=small,
                    device="cpu",
                    wait_seconds=5.0,
                )
                silo = await stack.enter_async_context(opened(settings, httpx.ASGITransport(app)))
                running.silos[shard.name], running.settings[shard.name] = silo, settings
            yield running

    return run
