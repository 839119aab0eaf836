"""A client that is made to send what it must not: the gate, the aggregator and the report each catch it on their own.

The client's code is patched so that an update carries a user's item list, the embedding table, or the spectrum. Then
one guard after the other is patched away, and the next one has to do without it.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load

from audit.evidence.case import open_case
from audit.evidence.evidence import PartEvidence
from audit.report import PrivacyReport, make_report
from client_service.boundary.aggregator_api import Aggregator
from client_service.federation.training_run import TrainingRun
from shared.method.declaration import Declaration
from shared.method.parameters import Parameters
from shared.protocol.request_heads import CONSTANT
from shared.protocol.schemas import ReceiptOut
from shared.protocol.signing.requests import RequestTarget, sign_request
from shared.protocol.wire import MEDIA_TYPE, encode_body

if TYPE_CHECKING:
    from conftest import Federation, Running, Until

pytestmark = pytest.mark.anyio

LEAKS: dict[str, Callable[[Any], Any]] = {
    "items": lambda training: training.shard.train[[0]].indices,
    "embedding": lambda training: training.model.encoder.embedding.detach().numpy(),
    "spectrum": lambda training: training.spectrum.eigenvalues,
}


class Planted:
    """What the patched client tries to send; every row of it may be searched for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: list[np.ndarray[Any, Any]] = []

    def fit(self, part: TrainingRun, *args: Any) -> tuple[Parameters, float]:
        update, seconds = ORIGINAL(part, *args)
        value = np.ascontiguousarray(LEAKS[self.name](part._training), dtype=np.float32)
        self.values.append(value)
        return Parameters({**update.arrays, self.name: value}, update.scalars), seconds

    def rows(self) -> Iterator[bytes]:
        """In float32 and in float64, but for rows of zeros alone."""
        for row in (row for value in self.values for row in np.atleast_2d(value) if row.any()):
            yield from (row.astype(kind).tobytes() for kind in ("<f4", "<f8"))


ORIGINAL = TrainingRun.fit


@pytest.fixture(params=sorted(LEAKS))
def planted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Planted:
    leak = Planted(request.param)
    monkeypatch.setattr(TrainingRun, "fit", lambda part, *args: leak.fit(part, *args))
    return leak


def checks_nothing(*args: Any) -> None:
    del args


def passes_everything(declaration: Declaration, update: Parameters) -> bytes:
    del declaration
    return encode_body(update)


@pytest.fixture
def without_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_service.federation.upload.pass_gate", passes_everything)
    monkeypatch.setattr("client_service.boundary.gate.require_content", checks_nothing)


@pytest.fixture
def without_aggregator_s_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aggregator_service.rounds.uploads.require_content", checks_nothing)
    monkeypatch.setattr("aggregator_service.rounds.uploads.require_canonical", checks_nothing)


def updates(evidence: PartEvidence) -> list[dict[str, Any]]:
    return [entry for entry in evidence.entries if entry.get("call") == "update"]


def of(parts: tuple[PartEvidence, ...]) -> PrivacyReport:
    return make_report(open_case(parts))


def found(made: PrivacyReport, name: str) -> str:
    return next(one.found for one in made.findings if one.name == name and not one.held)


async def test_the_transport_lets_nothing_of_it_leave_though_the_agent_hands_it_over(
    planted: Planted, federation: Running, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_service.federation.upload.pass_gate", passes_everything)
    async with federation() as running:
        await running.start(rounds=1)

        async def refused() -> bool:
            return all("declared tensors and scalars, got another body" in one for one in await running.problems())

        await until(refused)
        *clients, aggregator = await running.evidence()
    assert any(planted.rows()) and [updates(client) for client in clients] == [[], []]
    assert {one.call for one in aggregator.arrivals} == {"join"}


@pytest.mark.usefixtures("without_gate")
async def test_the_aggregator_refuses_it_keeps_nothing_and_has_it_on_record(
    planted: Planted, federation: Running, until: Until, tmp_path: Path
) -> None:
    async with federation() as running:
        await running.start(rounds=1)

        async def refused() -> bool:
            return all("expected tensors" in one for one in await running.problems())

        await until(refused)
        *clients, aggregator = await running.evidence()
        [history] = aggregator.runs
    assert history.phase == "open" and not any(one.received for one in history.rounds[0].participants)
    for client in clients:
        left = {entry["sha256"] for entry in updates(client)}
        met = [one for one in aggregator.arrivals if one.client == client.name and one.call == "update"]
        assert left and {one.digest for one in met} == left
        assert {(one.status, one.code) for one in met} == {(422, "protocol")}
    told = of((*clients, aggregator)).refused
    assert {(one.client, one.arrival.status) for one in told} == {("client-1", 422), ("client-2", 422)}
    kept = [path.read_bytes() for path in (tmp_path / "aggregator").rglob("*") if path.is_file()]
    rows = list(planted.rows())
    assert kept and rows and [row for row in rows if any(row in content for content in kept)] == []


@pytest.mark.usefixtures("without_gate", "without_aggregator_s_check")
async def test_the_report_names_the_undeclared_field_that_really_crossed(
    planted: Planted, federation: Running, until: Until, tmp_path: Path
) -> None:
    async with federation() as running:
        await running.start(rounds=1)
        await until(running.finished)
        parts = await running.evidence()
    kept = [path.read_bytes() for path in (tmp_path / "aggregator" / "blobs").iterdir()]
    assert any(row in content for row in planted.rows() for content in kept)  # it has crossed, and was accepted
    made = of(parts)
    assert [one.name for one in made.findings if not one.held] == ["fields"]
    assert f"client-1, run-1 round 1: undeclared tensor {planted.name!r}" in found(made, "fields")
    assert not made.held and "Nothing undeclared" not in made.verdict


class Smuggler:
    """The client's uploads, sent by a connection of its own instead of the one beneath the gate."""

    def __init__(self, running: Federation) -> None:
        self._running = running
        self.digests: list[str] = []

    async def upload(self, aggregator: Aggregator, run: str, number: int, body: bytes) -> ReceiptOut:
        client = aggregator._client
        path = f"/v1/runs/{run}/rounds/{number}/clients/{client}/update"
        target, nonce = RequestTarget("PUT", path, ""), secrets.token_hex(16)
        signed = sign_request(target, body, self._running.signatory(client), created=int(time.time()), nonce=nonce)
        headers = {"Content-Type": MEDIA_TYPE} | CONSTANT | signed
        async with self._running.stranger() as http:
            answer = await http.put(path, content=body, headers=headers)
        self.digests.append(hashlib.sha256(body).hexdigest())
        return ReceiptOut.model_validate_json(answer.raise_for_status().content)


@pytest.mark.usefixtures("without_gate", "without_aggregator_s_check")
async def test_the_report_misses_in_the_ledger_what_arrived_past_it(
    planted: Planted, federation: Running, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federation() as running:
        smuggler = Smuggler(running)

        async def upload(aggregator: Aggregator, run: str, number: int, body: bytes) -> ReceiptOut:
            assert planted.name in load(body)
            return await smuggler.upload(aggregator, run, number, body)

        monkeypatch.setattr(Aggregator, "upload", upload)
        await running.start(rounds=1)
        await until(running.finished)
        *clients, aggregator = await running.evidence()
    assert [updates(client) for client in clients] == [[], []]
    assert {one.digest for one in aggregator.arrivals if one.status == 201} == set(smuggler.digests)
    made = of((*clients, aggregator))
    assert [one.name for one in made.findings if not one.held] == ["arrivals"]
    for name in ("client-1", "client-2"):
        assert f"{name}, update of run-1 round 1, accepted: not on the ledger" in found(made, "arrivals")
