"""The comparison of a refreshed model with the one before: a silo of a finished run, some events, a row."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import refreshed
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import ignore_progress
from simulation.experiments.in_process import simulate_experiment
from tests.support.given import Silos
from tests.support.small import SMALL


def test_a_refreshed_silo_is_measured_beside_the_model_before(
    silos: Silos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shards, run = silos(2), tmp_path / "run"
    simulate_experiment(Experiment(shards, run, SMALL, rounds=1, device="cpu"), ignore_progress)
    monkeypatch.setattr(sys, "argv", ["refreshed", str(shards[0].parent), str(run), "--events", "3"])
    refreshed.main()
    told = capsys.readouterr().out
    assert all(f"| {shard.name} | run-1." in told for shard in shards)
