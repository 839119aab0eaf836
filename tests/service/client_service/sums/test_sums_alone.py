"""A federation that shares sums alone: nothing else leaves a silo, and each makes its model when the sums are there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from client_service.federation.client_run import check_method
from client_service.federation.run_records import load_quality
from client_service.sums.storage import load_basis_head
from shared.errors import PrivacyError
from shared.method.settings import BasisSettings
from shared.sums import method_of_part
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Outcome, execute_run, ignore_progress
from simulation.experiments.in_process import open_federation, simulate_experiment
from tests.support.questions import wait_until
from tests.support.small import SMALL

pytestmark = pytest.mark.anyio
Silos = Callable[[int], tuple[Path, ...]]


def described(shards: tuple[Path, ...], folder: Path, **changed: object) -> Experiment:
    method = SMALL.model_copy(
        update={"basis": BasisSettings(kind="exact"), "strategy": {"train": False, "send": False}}
    )
    one = Experiment(shards, folder, method, rounds=1, device="cpu", secure=True)
    return replace(one, **changed)  # type: ignore[arg-type]


def figures(found: Outcome) -> dict[str, object]:
    return {
        name: (quality.test, quality.comparison and quality.comparison.groups, quality.rounds[0].values)
        for name, quality in found.qualities.items()
    }


def test_nothing_but_masked_sums_leaves_and_the_models_are_those_that_a_run_would_have_made(
    silos: Silos, tmp_path: Path
) -> None:
    shards = silos(3)
    one = described(shards, tmp_path / "alone")
    found = simulate_experiment(one, ignore_progress)
    assert found.history.request.part == "basis" and found.history.run == "run-1"
    untrained = {"strategy": {"train": False}}
    other = replace(one, folder=tmp_path / "untrained", method=one.method.model_copy(update=untrained))
    trained = simulate_experiment(other, ignore_progress)
    assert trained.history.run == "run-2"
    assert figures(found) == figures(trained)
    for shard in shards:
        status, quality = found.statuses[shard.name], found.qualities[shard.name]
        assert status.model == "run-1.0" and not status.problem and quality.comparison is not None
        lines = (one.state_folder(shard) / "ledger.jsonl").read_text("utf-8").splitlines()
        updates = [entry for entry in map(json.loads, lines) if entry.get("call") == "update"]
        sent = [{tensor["name"]: tensor["dtype"] for tensor in entry["tensors"]} for entry in updates]
        assert sent and all(set(names) == {"basis.degrees", "basis.pairs"} for names in sent)
        assert not any("F32" in names.values() for names in sent) and not any(entry["scalars"] for entry in updates)


async def test_a_run_that_trains_is_refused_by_aggregator_and_silo(silos: Silos, tmp_path: Path) -> None:
    shards = silos(3)
    one = described(shards, tmp_path / "alone")
    asked = {"clients": 3, "rounds": 1}
    async with open_federation(one) as federation:
        refused = await federation.operator.post("/v1/runs", json=asked)
        assert refused.status_code == 422 and "shares sums alone" in refused.json()["detail"]
        sending = {**asked, "method": {"strategy": {"train": True, "send": True}}}
        assert (await federation.operator.post("/v1/runs", json=sending)).status_code == 422
    settings = one.make_client_settings(shards[0], aggregator_url="http://127.0.0.1:9")
    for strategy in ({"train": False, "send": False}, {"train": True, "send": True}):
        method = method_of_part(one.agreed_method, "training").model_copy(update={"strategy": strategy})
        with pytest.raises(PrivacyError, match=r"^expected a run that sums, because this silo shares sums alone"):
            check_method(settings, method, "training")
    assert not list(settings.declaration().of_part("training").uploaded)


async def test_a_silo_that_was_stopped_before_its_model_was_made_makes_it_when_it_is_back(
    silos: Silos, tmp_path: Path
) -> None:
    one = described(silos(3), tmp_path / "alone")
    async with open_federation(one) as federation:
        before = await execute_run(federation, one.run_request(), ignore_progress)
    victim = one.shards[0]
    models = one.make_client_settings(victim, aggregator_url="http://127.0.0.1:9").models_directory
    kept = load_quality(models, victim.name)
    for path in sorted(models.rglob("*")):
        if path.is_file():
            path.unlink()
    async with open_federation(one):
        await wait_until(lambda: _is_made(models, victim.name))
    again = load_quality(models, victim.name)
    assert (again.run, again.test) == (kept.run, kept.test) == ("run-1", before.qualities[victim.name].test)


async def _is_made(models: Path, name: str) -> bool:
    return (await asyncio.to_thread(load_quality, models, name)).finished


def test_a_silo_that_joins_later_makes_its_model_of_the_kept_sums(silos: Silos, tmp_path: Path) -> None:
    shards = silos(4)
    one = described(shards, tmp_path / "late", late=shards[-1:])
    found = simulate_experiment(one, ignore_progress)
    quality, status = found.qualities[shards[-1].name], found.statuses[shards[-1].name]
    assert quality.run == "run-1" and quality.comparison is not None and status.model == "run-1.0"
    head = load_basis_head(one.state_folder(shards[-1]) / "basis")
    assert head is not None and head.run == "run-1"
    assert '"update"' not in (one.state_folder(shards[-1]) / "ledger.jsonl").read_text("utf-8")
