"""A silo that demands secure aggregation, and an aggregator that offers none: nothing of an update leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from client_service.settings import client_settings
from shared.errors import SettingsError
from shared.method.settings import MethodSettings
from simulation.experiments.experiment import Experiment
from tests.support.federation import run_federation
from tests.support.given import Silos, Until
from tests.support.questions import entries_of, has_problem

URL = "http://127.0.0.1"


def believed(*declarations: object) -> None:
    """An aggregator that lies when a client joins."""
    del declarations


@pytest.mark.anyio
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("lies", "problem"), [(False, "secure: expected False, got True"), (True, "expected a secure round")]
)
async def test_an_open_aggregator_gets_nothing_of_a_silo_that_demands_secure_rounds(
    silos: Silos,
    small: MethodSettings,
    until: Until,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lies: bool,
    problem: str,
) -> None:
    if lies:
        monkeypatch.setattr("aggregator_service.coordinator.require_same_declaration", believed)
    one = Experiment(silos(1), tmp_path / "run", small, rounds=1, device="cpu")
    demanding = replace(one, secure=True).make_client_settings(one.shards[0], aggregator_url=URL)
    async with run_federation(one.make_aggregator_settings(), [demanding]) as running:
        [http] = await running.enter()
        await running.start(**one.run_request().model_dump(mode="json"))
        await until(has_problem(http, problem))
    calls = {entry["call"] for entry in entries_of(demanding) if entry["kind"] == "intent"}
    assert calls <= {"join", "current", "model", "anchor"}


@pytest.mark.parametrize(
    ("method", "strategy", "told"),
    [
        (MethodSettings(), "fedpub", "a strategy that needs the mean alone"),
        (MethodSettings(), "local", "a strategy that needs the mean alone"),
        (MethodSettings(clip_factor=2.0), "lpsfed", "secure"),
        (MethodSettings(aggregate="median"), "lpsfed", "secure"),
    ],
)
def test_a_client_does_not_start_with_what_excludes_it(
    tmp_path: Path, method: MethodSettings, strategy: str, told: str
) -> None:
    place = {"name": "east", "shard": tmp_path, "state_directory": tmp_path}
    with pytest.raises(SettingsError, match=told):
        client_settings(**place, secure=True, method=method, strategy=strategy)
