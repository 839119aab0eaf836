"""Whole federations of session silos over the services: trained, served, restarted, secure, and asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from client_service.data.session_files import load_session_shard
from client_service.federation.checkpoint import Owner, TrainingCheckpoint, load_checkpoint, save_checkpoint
from client_service.federation.messages import QualityOut
from client_service.secure_rounds.masking import Masking
from client_service.tasks import task_named
from client_service.training.session_trainer import SessionTrainer
from client_service.training.training_state import RoundContext
from shared.errors import SettingsError
from shared.method.settings import MethodSettings
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import execute_run
from simulation.experiments.floors import measure_session_bounds
from simulation.experiments.in_process import fail_when_stuck, open_federation, simulate_experiment
from simulation.experiments.tasks import SIMULATED
from simulation.reports.report import build_report

Visits = Callable[[int], list[Path]]


@pytest.fixture
def sessions(visits: Visits, taught: MethodSettings, tmp_path: Path) -> Experiment:
    shards = tuple(visits(3))
    return Experiment(shards, tmp_path / "run", taught, "fedavg", "sessions", rounds=3, seed=1, device="cpu")


@pytest.mark.anyio
async def test_a_federation_learns_answers_and_refuses_what_is_of_users(sessions: Experiment) -> None:
    async with open_federation(sessions) as federation:
        outcome = await execute_run(federation, sessions.run_request(), fail_when_stuck(lambda _: None))
        silo = federation.clients[sessions.names[0]]
        silo.headers["Authorization"] = f"Bearer {sessions.application_key}"
        example = SIMULATED["sessions"].find_example(sessions.shards[0])
        answer = await silo.post(example.path, json=example.body)
        [found] = answer.json()["results"]
        assert answer.status_code == 200 and found["model"].startswith("run-1.") and len(found["items"]) == 5
        for path in ("/v1/users/1/recommendations", "/v1/items", f"/v1/items/{found['items'][0]['item']}/similar"):
            refused = await silo.get(path)
            assert refused.status_code == 409 and "'sessions'" in refused.json()["detail"]
        told = await silo.delete("/v1/users/somebody")
        assert told.status_code == 409
        silo.headers["Authorization"] = f"Bearer {sessions.operator_key}"
        assert (await silo.post("/v1/refresh")).status_code == 409
        page = (await silo.get("/", params={"basket": ", ".join(example.body["session"])})).text
        assert "What comes next?" in page and found["items"][0]["item"] in page
    quality = outcome.qualities[sessions.names[0]]
    losses = [entry.loss for entry in quality.rounds if entry.loss is not None]
    assert losses[-1] < losses[0]
    assert quality.test is not None and set(quality.test) == {"hr@10", "hr@20", "mrr@10", "mrr@20"}
    assert quality.comparison is not None and quality.comparison.groups[0].name == "all visits"
    report = build_report(sessions, outcome, measure_session_bounds(sessions, shown=False))
    assert set(report["floors"]) == {"popularity", "repeats", "successors", "item-knn"}
    json.dumps(report)


def test_an_open_and_a_secure_federation_end_with_the_same_model(
    sessions: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Masking, "draws", lambda *_: b"")  # else a secret of each silo decides the order of its batches
    found = []
    for secure in (False, True):
        one = replace(sessions, folder=sessions.folder / str(secure), secure=secure, rounds=1)
        outcome = simulate_experiment(one, lambda _: None)
        found.append(outcome.qualities[one.names[0]].test)
    assert found[0] == pytest.approx(found[1], abs=0.03)  # a masked number has 16 bits behind the point


def test_items_and_sessions_cannot_be_mixed(sessions: Experiment) -> None:
    with pytest.raises(SettingsError, match="task: expected 'items', whose data"):
        replace(sessions, strategy="fedmf").make_silo_settings(sessions.shards[0])
    with pytest.raises(SettingsError, match="task: expected 'sessions', whose data"):
        replace(sessions, task="items").make_silo_settings(sessions.shards[0])


def test_training_goes_on_from_a_checkpoint_to_the_bit(visits: Visits, taught: MethodSettings, tmp_path: Path) -> None:
    shard = load_session_shard(visits(1)[0])
    method = taught.model_copy(update={"catalogue": len(shard.item_ids)})
    owner = Owner(run="r", seed=0, shard=shard.digest, method=method, kind="", start=None, recipe=None)
    whole = SessionTrainer(shard, method, torch.device("cpu"))
    for number in (1, 2):
        whole.context = RoundContext(number, 2, 0)
        whole.train()
        if number == 1:
            save_checkpoint(tmp_path, TrainingCheckpoint(owner, 1, QualityOut(client="a"), whole.state()))
    again = SessionTrainer(shard, method, torch.device("cpu"))
    kept = load_checkpoint(tmp_path, owner)
    assert kept is not None and again.fits(kept.state)
    again.restore(kept.state)
    again.context = RoundContext(2, 2, 0)
    again.train()
    for name, value in whole.arrays().items():
        assert np.array_equal(value, again.arrays()[name]), name


def test_a_silo_without_the_list_of_items_is_told_so(sessions: Experiment) -> None:
    settings = sessions.make_silo_settings(sessions.shards[0]).model_copy(update={"catalogue": None})
    with pytest.raises(SettingsError, match="expected the list of the"):
        task_named("sessions").read(settings)
