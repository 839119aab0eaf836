"""The privacy report of a federation with a common basis: its sums are as declared, and planted breaks are named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from audit.checks import ledgers
from audit.evidence.case import open_case
from audit.evidence.collect import read_aggregator_evidence, read_client_evidence
from audit.evidence.evidence import PartEvidence
from audit.probes import uploads
from audit.report import PrivacyReport, make_report
from shared.method.settings import BasisSettings
from shared.protocol.masked_wire import body_forms
from shared.protocol.signing.keys import read_private
from shared.protocol.signing.requests import Signatory
from shared.protocol.wire import body_size
from simulation.datasets.synthetic import generate_dataset
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import execute_run
from simulation.experiments.in_process import open_federation
from simulation.partitioning.partition import partition_dataset, write_partition
from tests.support.small import SMALL

Entry = dict[str, Any]
Parts = tuple[PartEvidence, ...]
Tried = list[tuple[str, str, str]]


@pytest.fixture(scope="module")
def summed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Parts, Tried]:
    """Evidence after a strict run, a basis run and a run that uses it; and the probes of client-1 that did not hold."""
    return asyncio.run(_conduct(_describe(tmp_path_factory.mktemp("summed"))))


def _describe(folder: Path, **changes: object) -> Experiment:
    dataset = generate_dataset(0, users=60, items=50)
    parts = partition_dataset(dataset, clients=3, method="random", seed=0)
    shards = tuple(write_partition(dataset, parts, folder / "shards"))
    method = SMALL.model_copy(update={"basis": BasisSettings(kind="exact"), **changes})
    return Experiment(shards, folder / "run", method, rounds=1, device="cpu", secure=True)


async def _conduct(described: Experiment, *, strict: bool = True) -> tuple[Parts, Tried]:
    async with open_federation(described) as federation:
        if strict:
            await execute_run(federation, described.strict_request(), lambda _: None)
        await execute_run(federation, described.run_request(), lambda _: None)
        clients = [await read_client_evidence(http, name) for name, http in federation.clients.items()]
        parts = (await read_aggregator_evidence(federation.operator, "aggregator"), *clients)
        shard, transport = described.shards[0], federation.operator._transport
        key = read_private(described.state_folder(shard) / f"{shard.name}.key")
        declaration = described.make_aggregator_settings().declaration()
        who = uploads.Intruder(Signatory(shard.name, key), described.shards[1].name, declaration)
        place = uploads.latest_place(clients[0])
        async with httpx.AsyncClient(transport=transport, base_url="http://aggregator") as http:
            probes, _ = await uploads.probe_uploads(http, who, place)
        assert ("sums in a round of training" in {one.name for one in probes}) == strict
        return parts, [(one.name, one.expected, one.observed) for one in probes if not one.held]


def report(parts: Parts) -> PrivacyReport:
    return make_report(open_case(parts))


def altered(parts: Parts, change: Callable[[Entry], Entry | None]) -> list[str]:
    """What the report says of the fields of the first client, whose entries of basis uploads are changed so."""
    entries = (change(one) if _is_sum(one) else one for one in parts[1].entries)
    kept = tuple(one for one in entries if one is not None)
    changed = (parts[0], parts[1].model_copy(update={"entries": kept}), *parts[2:])
    assert not report(changed).held
    return list(ledgers.check_fields(open_case(changed)).faults)


def _is_sum(entry: Entry) -> bool:
    return any(tensor["name"].startswith("basis.") for tensor in entry.get("tensors", ()))


def test_three_runs_are_as_declared_and_the_report_says_who_has_sent_sums(summed: tuple[Parts, Tried]) -> None:
    parts, tried = summed
    found = report(parts)
    assert [(one.name, one.faults) for one in found.findings if one.faults] == [] and tried == []
    assert [run.request.part for run in parts[0].runs] == ["training", "basis", "training"]
    [note] = (note for note in found.notes if "statistics of its items, masked" in note)
    assert note.startswith("client-1, client-2, client-3: each has sent") and "basis.degrees, basis.pairs" in note


def test_a_tensor_more_beside_the_sums_is_named(summed: tuple[Parts, Tried]) -> None:
    more = {"name": "basis.users", "dtype": "U32", "shape": [3], "bytes": 12, "sha256": "0" * 64}
    faults = altered(summed[0], lambda one: one | {"tensors": [*one["tensors"], more]})
    assert any("run-2 round 1: undeclared tensor 'basis.users'" in fault for fault in faults)


def test_sums_in_a_run_of_training_are_named(summed: tuple[Parts, Tried]) -> None:
    faults = altered(summed[0], lambda one: one | {"run": "run-3"})
    assert any("run-3 round 1: undeclared tensor 'basis.pairs'" in fault for fault in faults)


def test_sums_of_a_silo_that_has_not_agreed_to_them_are_named(summed: tuple[Parts, Tried]) -> None:
    """A silo whose policy says no declares none."""
    parts = summed[0]
    declaration = parts[1].declaration
    assert declaration is not None
    strict = parts[1].model_copy(update={"declaration": declaration.of_part("training")})
    found = report((parts[0], strict, *parts[2:]))
    faults = {one.name: one.faults for one in found.findings if not one.held}
    assert any("run-2 round 1: undeclared tensor 'basis.degrees'" in fault for fault in faults["fields"])
    assert "declaration" in faults


def test_sums_in_the_open_are_named_in_a_secure_federation(summed: tuple[Parts, Tried]) -> None:
    """Masked sums have the type and the size of open ones; the body says who masks with whom, and is longer."""
    declaration = summed[0][1].declaration
    assert declaration is not None and declaration.sums
    opened = body_size(body_forms(declaration.sums["basis"]), {})
    faults = altered(summed[0], lambda one: one | {"bytes": opened})
    assert any(f"a body of {opened:,} bytes, other than its fields make" in fault for fault in faults)


def test_a_federation_of_sums_alone_is_probed_in_its_rounds_of_sums(tmp_path: Path) -> None:
    """There is no round of training whose update the probes could imitate."""
    alone = _describe(tmp_path, strategy={"train": False, "send": False})
    parts, tried = asyncio.run(_conduct(alone, strict=False))
    found = report(parts)
    assert [(one.name, one.faults) for one in found.findings if one.faults] == [] and tried == []
    assert [run.request.part for run in parts[0].runs] == ["basis"]
    assert any("statistics of its items, masked" in note for note in found.notes)
