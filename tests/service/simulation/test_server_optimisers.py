"""Whole federations whose server steps: open and secure give the same, and what it remembers lies in the state."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from client_service.boundary.ledger import Ledger
from client_service.federation import upload
from client_service.privacy.guard import Guard
from client_service.privacy.settings import PrivacySettings
from client_service.secure_rounds.masking import Masking
from shared.method.parameters import Float32, Parameters, digest_arrays
from shared.method.settings import MethodSettings, ServerStepSettings
from simulation.experiments.experiment import Experiment
from simulation.experiments.in_process import simulate_experiment

if TYPE_CHECKING:
    from conftest import Silos

ROUNDS = 2
Run = Callable[..., list[dict[str, Float32]]]


def states(one: Experiment) -> list[dict[str, Float32]]:
    """The aggregator's state after each round, its memory with it."""
    folder = one.folder / "aggregator"
    with closing(sqlite3.connect(folder / "aggregator.sqlite")) as database:
        return [
            load_file(folder / "blobs" / blob) for (blob,) in database.execute("select blob from states order by round")
        ]


@pytest.fixture
def run(silos: Silos, small: MethodSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Both modes train alike: without it a secure run's draws follow from a secret of each silo."""
    monkeypatch.setattr(Masking, "draws", lambda *_: b"")

    def hold(server: str, *, secure: bool) -> list[dict[str, Float32]]:
        reported = "reported" if secure and server == "ga" else None
        step = ServerStepSettings(magnitudes=reported, tau=0.1, rate=0.05)
        changes = {"start": "random", "mlp_learning_rate": 0.01, "server": server, "server_step": step}
        changes |= {"similarity_floor": 0.0}
        method, folder = small.model_copy(update=changes), tmp_path / f"{server}-{secure}"
        one = replace(Experiment(silos(3), folder, method, rounds=ROUNDS, seed=3, device="cpu"), secure=secure)
        simulate_experiment(one, lambda _: None)
        return states(one)

    return hold


@pytest.mark.parametrize("server", ["adam", "yogi"])
def test_open_and_secure_federations_take_the_same_steps_and_remember_the_same(run: Run, server: str) -> None:
    opened, secured = run(server, secure=False), run(server, secure=True)
    assert len(opened) == len(secured) == ROUNDS
    for one, other in zip(opened, secured, strict=True):
        assert set(one) == set(other) and any(name.startswith("@memory/v.") for name in one)
        for name, value in one.items():
            np.testing.assert_allclose(other[name], value, rtol=1e-3, atol=2e-6, err_msg=name)
    assert max(abs(value).max() for name, value in opened[-1].items() if name.startswith("@memory/m.")) > 1e-5


def test_a_client_says_in_its_ledger_what_it_reported(run: Run, tmp_path: Path) -> None:
    run("ga", secure=True)
    (file, *_) = sorted((tmp_path / "ga-True").rglob("ledger.jsonl"))
    uploads = [entry for entry in Ledger(file).entries() if entry.get("call") == "update"]
    only_up = {tensor["name"]: tensor.get("up_only", False) for tensor in uploads[0]["tensors"]}
    assert only_up["magnitude.update"] is True and only_up["pooling.hidden.weight"] is False


def test_a_noised_silo_reports_the_sizes_of_its_release_and_not_of_its_update(
    silos: Silos, small: MethodSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, left = list[Parameters](), list[Parameters]()
    release, gate = Guard.release, upload.pass_gate

    def watch_release(self: Guard, *rest: Any) -> Parameters | None:
        found = release(self, *rest)
        released.extend([] if found is None else [found])
        return found

    monkeypatch.setattr(Guard, "release", watch_release)
    monkeypatch.setattr(
        upload, "pass_gate", lambda declaration, update: left.append(update) or gate(declaration, update)
    )
    step = ServerStepSettings(magnitudes="reported", tau=0.1, rate=0.05)
    method = small.model_copy(update={"server": "ga", "server_step": step})
    privacy = PrivacySettings(mechanism="gaussian", clip_norm=0.05, noise_multiplier=2.0, delta=1e-5, budget=50.0)
    one = Experiment(silos(3), tmp_path / "run", method, "fedavg", rounds=1, seed=3, device="cpu")
    simulate_experiment(replace(one, secure=True, privacy=privacy), lambda _: None)
    assert len(released) == len(left) == 3
    for own, update in zip(sorted(released, key=digest_of), sorted(left, key=digest_of), strict=True):
        for name, value in own.arrays.items():
            np.testing.assert_array_equal(update.arrays[name], value)
        (size,) = update.arrays["magnitude.update"]
        assert size == pytest.approx(privacy.mean_noise(), rel=0.5)  # of few numbers; training moved far less


def digest_of(update: Parameters) -> str:
    """Of what is no report."""
    return digest_arrays({name: value for name, value in update.arrays.items() if not name.startswith("magnitude.")})
