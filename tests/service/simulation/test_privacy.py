"""Differential privacy at every simulated client: chosen by words, paid for by the budget, told in the report."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from client_service.boundary.ledger import Ledger
from client_service.privacy.accounting import planned_epsilon
from client_service.privacy.guard import Guard
from client_service.privacy.settings import PrivacySettings
from shared.errors import SettingsError
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings, validate_settings
from shared.protocol.secure.fixed_point import STEP
from simulation.cli import app
from simulation.experiments.experiment import Experiment, parse_privacy, require_affordable
from simulation.experiments.in_process import simulate_experiment
from simulation.reports.report import build_report

if TYPE_CHECKING:
    from conftest import Silos

WORDS = {"mechanism": "laplace", "clip_norm": "0.5", "round_epsilon": "2", "scalar_epsilon": "0.5", "budget": "9"}


def test_words_become_settings() -> None:
    found = validate_settings(PrivacySettings, parse_privacy(WORDS | {"rho_range": "0,0.01"}))
    assert (found.mechanism, found.clip_norm, found.limits("rho")) == ("laplace", 0.5, (0.0, 0.01))


def test_a_run_of_noised_clients_tells_what_each_has_spent(silos: Silos, small: MethodSettings, tmp_path: Path) -> None:
    experiment = Experiment(
        silos(2), tmp_path / "run", small, rounds=2, device="cpu", privacy=parse_privacy(WORDS | {"budget": "5.5"})
    )
    outcome = simulate_experiment(experiment, lambda _: None)
    report: dict[str, Any] = build_report(experiment, outcome)
    settings = validate_settings(PrivacySettings, parse_privacy(WORDS))
    assert planned_epsilon(settings, ("margin", "rho"), 2) == pytest.approx(5.5)
    assert {name: one["epsilon"] for name, one in report["privacy"].items()} == {
        "client-1": pytest.approx(5.5),
        "client-2": pytest.approx(5.5),
    }


@pytest.mark.parametrize(
    ("strategy", "method", "rounds", "needed"),
    [
        ("lpsfed", {}, 4, "10.5 or more for 4 rounds of lpsfed"),
        ("fedavg", {}, 5, "10 or more for 5 rounds of fedavg"),
        ("lpsfed", {"signal": "trained"}, 4, "12 or more for 4 rounds of lpsfed"),
    ],
)
def test_a_budget_that_does_not_last_for_the_run_is_refused_at_once(
    strategy: str, method: dict[str, Any], rounds: int, needed: str
) -> None:
    privacy, agreed = parse_privacy(WORDS), MethodSettings(**method)
    with pytest.raises(SettingsError, match=f"privacy.budget: expected {needed}, got 9"):
        require_affordable(privacy, strategy, agreed, rounds)
    require_affordable(privacy, strategy, agreed, 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("budget=1",), "mechanism: expected gaussian or laplace with budget, got off"),
        (("mechanism",), "--privacy: expected key=value, got 'mechanism'"),
        (tuple(f"{name}={value}" for name, value in WORDS.items()), "expected 25.5 or more for 10 rounds"),
    ],
)
def test_the_command_refuses_what_cannot_be(silos: Silos, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    shards, options = silos(1)[0].parent, [part for word in words for part in ("--privacy", word)]
    with pytest.raises(SettingsError, match=said):
        command = ["simulate", str(shards), "--out", str(tmp_path / "run"), *options]
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_under_secure_aggregation_the_sum_is_one_of_releases_and_the_ledger_tells_of_the_budget(
    silos: Silos, small: MethodSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: dict[str, Parameters] = {}
    release = Guard.release

    def note(guard: Guard, update: Parameters, occasion: Any) -> Parameters | None:
        found = release(guard, update, occasion)
        assert found is not None
        released[guard._shard] = found
        assert any((found.arrays[name] != value).any() for name, value in update.arrays.items())
        return found

    monkeypatch.setattr(Guard, "release", note)
    experiment = Experiment(
        silos(3), tmp_path / "run", small, rounds=1, device="cpu", secure=True, privacy=parse_privacy(WORDS)
    )
    outcome = simulate_experiment(experiment, lambda _: None)
    assert outcome.history.phase == "finished" and len(released) == 3
    require_mean(experiment.folder / "aggregator", list(released.values()))
    for name in experiment.names:
        privacy = outcome.statuses[name].privacy
        assert privacy is not None and privacy.epsilon == pytest.approx(3.0)
        [sent] = [
            one for one in Ledger(experiment.folder / name / "ledger.jsonl").entries() if one.get("call") == "update"
        ]
        [charge] = map(json.loads, (experiment.folder / name / "privacy/account.jsonl").read_text().splitlines())
        assert sent["privacy"]["epsilon"] == pytest.approx(3.0) and sent["privacy"]["budget"] == 9
        assert sent["scalars"] == {"rho": pytest.approx(next(iter(charge["kept"].values())))}
        assert {field["dtype"] for field in sent["tensors"]} == {"U64"}


def require_mean(state: Path, released: Sequence[Parameters]) -> None:
    """The aggregator's only state is the mean of these, up to the fixed point."""
    with closing(sqlite3.connect(state / "aggregator.sqlite")) as database:
        [(blob,)] = database.execute("select blob from states").fetchall()
    for name, value in load_file(state / "blobs" / blob).items():
        mean = np.mean([one.arrays[name].astype(np.float64) for one in released], axis=0)
        np.testing.assert_allclose(value, mean, rtol=2.0**-22, atol=STEP)
