"""The privacy report of a secure federation: its calls are known, and what lies open in a ledger is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from audit.checks import ledgers
from audit.evidence.case import open_case
from audit.evidence.collect import read_aggregator_evidence, read_client_evidence
from audit.probes import gate, uploads
from audit.report import make_report
from shared.protocol.signing.keys import read_private
from shared.protocol.signing.requests import Signatory
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import execute_run
from simulation.experiments.in_process import open_federation

if TYPE_CHECKING:
    from conftest import Silos

pytestmark = pytest.mark.anyio
Change = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture
def described(silos: Silos, small: Any, tmp_path: Path) -> Experiment:
    return replace(Experiment(silos(3), tmp_path / "run", small, rounds=1, device="cpu"), secure=True)


async def test_a_secure_run_is_as_declared_and_everything_in_it_is_on_record(described: Experiment) -> None:
    async with open_federation(described) as federation:
        await execute_run(federation, described.run_request(), lambda _: None)
        clients = [await read_client_evidence(http, name) for name, http in federation.clients.items()]
        parts = (await read_aggregator_evidence(federation.operator, "aggregator"), *clients)
        found = make_report(open_case(parts))
        assert [(one.name, one.faults) for one in found.findings if one.faults] == []
        calls = {total.call for total in found.totals}
        assert {"keys", "shares", "checks", "update", "request", "consents", "answers"} <= calls
        shard = described.shards[0]
        key = read_private(described.state_folder(shard) / f"{shard.name}.key")
        who = uploads.Intruder(
            Signatory(shard.name, key), "client-2", described.make_aggregator_settings().declaration()
        )
        transport = federation.operator._transport
        async with httpx.AsyncClient(transport=transport, base_url="http://aggregator") as http:
            probes, sent = await uploads.probe_uploads(http, who, uploads.RoundPlace("run-1", 1))
        assert [(one.name, one.expected, one.observed) for one in probes if not one.held] == []
        assert len(sent) >= 10
        assert [(one.name, one.observed) for one in await gate.probe_gate(who) if not one.held] == []

    opened: dict[str, Change] = {
        "in another form": lambda one: one | {"tensors": [each | {"dtype": "F32"} for each in one["tensors"]]},
        "undeclared scalar 'margin'": lambda one: one | {"scalars": one["scalars"] | {"margin": 0.5}},
        "other than its fields make": lambda one: one | {"bytes": one["bytes"] + 8},
    }
    for told, change in opened.items():
        entries = tuple(change(one) if one.get("call") == "update" else one for one in parts[1].entries)
        case = open_case((parts[0], parts[1].model_copy(update={"entries": entries}), *parts[2:]))
        assert any(told in fault for fault in ledgers.check_fields(case).faults)
