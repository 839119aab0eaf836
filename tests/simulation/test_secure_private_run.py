"""Secure aggregation and differential privacy together: what is masked and summed is the noised release."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from client_service.boundary.ledger import Ledger
from client_service.privacy.guard import Guard
from client_service.privacy.settings import PrivacySettings
from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.protocol.secure.fixed_point import STEP
from simulation.experiment import Experiment
from simulation.run import simulate

if TYPE_CHECKING:
    from conftest import Silos


def test_the_sum_is_one_of_noised_updates_and_the_ledger_tells_of_the_budget(
    silos: Silos, small: MethodSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: dict[str, Parameters] = {}
    release = Guard.release

    def noted(guard: Guard, update: Parameters, occasion: Any) -> Parameters | None:
        found = release(guard, update, occasion)
        assert found is not None
        released[guard._shard] = found
        assert any((found.arrays[name] != value).any() for name, value in update.arrays.items())
        return found

    monkeypatch.setattr(Guard, "release", noted)
    privacy = PrivacySettings(mechanism="gaussian", clip_norm=0.1, noise_multiplier=1.0, delta=1e-5, budget=1e6)
    one = Experiment(silos(3), tmp_path / "run", small, rounds=1, device="cpu", privacy=privacy)
    outcome = simulate(replace(one, secure=True), lambda _: None)
    assert outcome.history.phase == "finished" and len(released) == 3
    folder = one.folder / "aggregator"
    with closing(sqlite3.connect(folder / "aggregator.sqlite")) as database:
        [(blob,)] = database.execute("select blob from states").fetchall()
    for name, value in load_file(folder / "blobs" / blob).items():
        mean = np.mean([one.arrays[name].astype(np.float64) for one in released.values()], axis=0)
        np.testing.assert_allclose(value, mean, rtol=2.0**-22, atol=STEP)
    entries = Ledger(one.state_of(one.shards[0]) / "ledger.jsonl").entries()
    [update] = [entry for entry in entries if entry.get("call") == "update"]
    assert update["privacy"]["budget"] == 1e6 and {field["dtype"] for field in update["tensors"]} == {"U64"}
