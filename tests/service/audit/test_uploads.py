"""Undeclared bodies, put to a real aggregator past the gate and to the client's own gate: all refused, and told so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from audit.evidence.case import open_case
from audit.evidence.collect import read_client_evidence, read_ledger
from audit.evidence.evidence import PartEvidence, ProbeResult
from audit.probes import bodies, gate, uploads
from audit.probes.uploads import Intruder, RoundPlace
from audit.report import make_report
from shared.method.declaration import Declaration, TensorSpec
from shared.protocol.signing.keys import new_key
from shared.protocol.signing.requests import Signatory

if TYPE_CHECKING:
    from conftest import Federation, Running, Until

pytestmark = pytest.mark.anyio
MALFORMED = {
    "one tensor more",
    "one scalar more",
    "one metadata field more",
    "bytes after the end",
    "another shape",
    "a NaN",
    "another dtype",
    "a field more in the header",
    "a scalar spelt anew",
    "spaces in the header",
}


RESPELT = ("a field more in the header", "a scalar spelt anew", "spaces in the header")  # to a reader all the same
UNSEEN = ("one tensor more", "one scalar more", "another shape", "a NaN")  # without a look at the declaration


def failed(probes: list[ProbeResult]) -> dict[str, str]:
    return {one.name: one.observed for one in probes if not one.held}


def looks_at_nothing(*args: Any) -> None:
    del args


def intruder(running: Federation, evidence: PartEvidence) -> Intruder:
    assert evidence.declaration is not None
    return Intruder(running.signatory(evidence.name), "client-2", evidence.declaration)


@asynccontextmanager
async def trained(federation: Running, until: Until) -> AsyncIterator[tuple[Federation, PartEvidence]]:
    async with federation() as running:
        await running.start(rounds=1)
        await until(running.finished)
        yield running, await read_client_evidence(running.silos["client-1"], "client-1")


async def test_every_undeclared_body_is_refused_and_accounted_for(federation: Running, until: Until) -> None:
    async with trained(federation, until) as (running, evidence):
        who, place = intruder(running, evidence), uploads.latest_place(evidence)
        async with running.stranger() as http:
            probes, sent = await uploads.probe_uploads(http, who, place)
        parts = await running.evidence()
    assert place == RoundPlace("run-1", 1) and failed(probes) == {}
    expected = {one.name: one.expected for one in probes}
    assert {expected[name] for name in MALFORMED} == {"422 protocol"} and len(expected) == len(probes) == 21
    assert expected["control: as declared"] == "409 conflict" and expected["a wrong key"] == "401 authentication"
    assert expected["the same once more"] == "401 replay"
    assert expected["another body than was signed"] == "401 content-digest"
    refused = [one for one in parts[-1].arrivals if one.status >= 400]
    assert len(refused) == len(sent) == 18 and {one.client for one in refused} == {"client-1"}
    with_probes = parts[0].model_copy(update={"probes": tuple(probes), "sent": tuple(sent)})
    made = make_report(open_case((with_probes, *parts[1:])))
    assert made.held and any("18 sent by the probes and refused" in one.found for one in made.findings)
    without = make_report(open_case(parts))
    assert [one.name for one in without.findings if not one.held] == ["arrivals"]


async def test_an_aggregator_that_does_not_look_is_found_out_and_takes_nothing_all_the_same(
    federation: Running, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trained(federation, until) as (running, evidence):
        monkeypatch.setattr("aggregator_service.rounds.uploads.require_content", looks_at_nothing)
        monkeypatch.setattr("aggregator_service.rounds.uploads.require_canonical", looks_at_nothing)
        async with running.stranger() as http:
            probes, _ = await uploads.probe_uploads(http, intruder(running, evidence), uploads.latest_place(evidence))
        history = (await running.operator.get("/v1/runs/run-1")).json()
    assert failed(probes) == dict.fromkeys(UNSEEN + RESPELT, "409 conflict")
    held = {one["digest"] for one in history["rounds"][0]["participants"]}
    assert evidence.declaration is not None
    assert not held & {digest for digest, _ in bodies.body_digests(evidence.declaration, "client-1", ())}


async def test_before_any_round_and_without_an_answer_nothing_is_claimed(federation: Running, until: Until) -> None:
    async with federation() as running:

        async def joined() -> bool:
            entries = await read_ledger(running.silos["client-1"])
            return "join" in {entry.get("call") for entry in entries}

        await until(joined)
        evidence = await read_client_evidence(running.silos["client-1"], "client-1")
        who = intruder(running, evidence)
        async with running.stranger() as http:
            [probe], sent = await uploads.probe_uploads(http, who, uploads.latest_place(evidence))
    assert not probe.held and sent == []

    def nobody(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody listens", request=request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(nobody), base_url="http://aggregator") as http:
        probes, sent = await uploads.probe_uploads(http, who, RoundPlace("run-1", 1))
    assert set(failed(probes).values()) == {"no answer ConnectError"} and len(failed(probes)) == len(probes) == 21
    assert {one.status for one in sent} == {None}


DECLARATION = Declaration(strategy="lpsfed", tensors=(TensorSpec(name="w", shape=(2, 3)),), scalars=("rho",))
WHO = Intruder(Signatory("client-1", new_key()), "client-2", DECLARATION)


async def test_the_own_gate_lets_the_declared_body_pass_and_nothing_else() -> None:
    probes = await gate.probe_gate(WHO)
    assert failed(probes) == {} and {one.name for one in probes} > MALFORMED | {"another destination", "a header more"}
    assert [one.name for one in probes if one.expected == "passes"] == ["control: as declared"]


async def test_a_gate_that_does_not_look_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_service.boundary.gate.require_content", looks_at_nothing)
    found = failed(await gate.probe_gate(WHO))
    assert found == dict.fromkeys(UNSEEN, "passes")


async def test_a_strategy_that_shares_nothing_has_fewer_bodies_to_deform() -> None:
    nothing = replace(WHO, declaration=Declaration(strategy="local", tensors=(), scalars=()))
    assert set(bodies.malformed_updates(nothing.declaration)) == MALFORMED - {
        "another shape",
        "a NaN",
        "another dtype",
        *RESPELT[:2],
    }
    assert failed(await gate.probe_gate(nothing)) == {}


async def test_the_bodies_are_the_same_each_time_and_another_one_for_each_name() -> None:
    first, again = (bodies.body_digests(DECLARATION, "client-1", ["client-2"]) for _ in range(2))
    assert first == again and len(first) == 3 + len(MALFORMED) + 1 + 2
