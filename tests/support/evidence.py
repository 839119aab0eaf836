"""Evidence of a small federation, made by the real gate before an aggregator of the test's own; and real services."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from audit.evidence.case import open_case
from audit.evidence.collect import read_aggregator_evidence, read_client_evidence
from audit.evidence.evidence import PartEvidence
from audit.report import PrivacyReport, make_report
from client_service.boundary.gate import Boundary, GateTransport
from client_service.boundary.ledger import Ledger
from shared.method.declaration import Declaration, TensorSpec
from shared.method.parameters import Parameters
from shared.protocol.request_heads import USER_AGENT
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
from shared.protocol.signing.enrolment import read_own_key
from shared.protocol.signing.keys import new_key
from shared.protocol.signing.requests import Signatory
from shared.protocol.wire import MEDIA_TYPE, encode_body
from tests.support import federation as support

if TYPE_CHECKING:
    from conftest import Federate

HOME, TIME = "http://aggregator:8800", "2026-01-01T00:00:00+00:00"
DECLARATION = Declaration(
    strategy="lpsfed",
    tensors=(TensorSpec(name="pooling.weight", shape=(2, 3)), TensorSpec(name="predictive.bias", shape=(1,))),
    scalars=("margin", "rho"),
)
CLIENTS, ROUNDS = ("client-1", "client-2"), (1, 2)
Parts = dict[str, PartEvidence]


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

    def evidence(self) -> PartEvidence:
        rounds = tuple(
            RoundOut(number=number, phase="aggregated", opened_at=TIME, participants=tuple(held))
            for number, held in sorted(self.held.items())
        )
        run = RunHistoryOut(run="run-1", phase="finished", request=RunIn(), started_at=TIME, rounds=rounds)
        return PartEvidence(
            name="aggregator",
            role="aggregator",
            taken_at=TIME,
            declaration=DECLARATION,
            arrivals=tuple(self.arrivals),
            runs=(run,),
        )


def _answer(status: int, content: bytes) -> httpx.Response:
    return httpx.Response(status, stream=httpx.ByteStream(content))


async def _taken_part(client: str, recorder: Recorder, path: Path) -> PartEvidence:
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
    return PartEvidence(name=client, role="client", taken_at=TIME, declaration=DECLARATION, entries=entries)


def _update(value: float) -> bytes:
    arrays = {spec.name: np.full(spec.shape, value, dtype=np.float32) for spec in DECLARATION.tensors}
    return encode_body(Parameters(arrays, {"margin": value, "rho": 0.1 + value}))


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

    def report(self) -> PrivacyReport:
        return make_report(open_case(tuple(self.parts.values())))

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


class Federation(support.Federation):
    """Silos and their aggregator, and what both say to the audit."""

    async def evidence(self) -> tuple[PartEvidence, ...]:
        parts = [await read_client_evidence(http, name) for name, http in self.silos.items()]
        return (*parts, await read_aggregator_evidence(self.operator, "aggregator"))

    def signatory(self, client: str) -> Signatory:
        [settings] = [one for one in self.clients if one.name == client]
        return Signatory(client, read_own_key(client, settings.state_directory))


Running = Callable[[], AbstractAsyncContextManager[Federation]]


@pytest.fixture
def federation(federation: Federate) -> Running:
    """`async with federation() as running`: two silos that have joined, or are about to."""

    @asynccontextmanager
    async def run() -> AsyncIterator[Federation]:
        async with federation(2) as running:
            await running.enter()
            yield Federation(**vars(running))

    return run
