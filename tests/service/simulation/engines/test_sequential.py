"""An engine without services gives what the services give, and goes on where it was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.errors import DataError, FederationError, SettingsError
from shared.method.settings import BasisSettings
from simulation.engines.sequential import run_sequentially
from simulation.engines.silo import SiloRun
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import ignore_progress
from simulation.experiments.in_process import simulate_experiment

Described = Callable[..., Experiment]
Found = Callable[..., Any]
PRIVATE = {"mechanism": "laplace", "clip_norm": 1.0, "round_epsilon": 1.0, "budget": 1e6}
STEPS = 2 + 2 * (2 + 2) + 2  # two clients: begin, twice fit and apply, finish


FURTHER = [pytest.param(name, marks=pytest.mark.slow) for name in ("fedavg", "fedper", "fedrap", "fedpergnn")]


@pytest.mark.parametrize("strategy", ["lpsfed", "fedpub", "f2mf", "fedutr", *FURTHER])
def test_an_outcome_is_that_of_the_services(experiment: Described, found: Found, strategy: str) -> None:
    there = simulate_experiment(experiment("services", strategy=strategy), ignore_progress)
    here = run_sequentially(experiment("plain", strategy=strategy), ignore_progress)
    assert found(here) == found(there)
    said = [
        [(one.client, one.digest, one.rho, one.rhobar) for one in held.participants] for held in here.history.rounds
    ]
    assert said == [
        [(one.client, one.digest, one.rho, one.rhobar) for one in held.participants] for held in there.history.rounds
    ]


def with_basis(described: Experiment) -> Experiment:
    basis = BasisSettings(kind="iterated", rank=4, rounds=3)
    return replace(described, method=described.method.model_copy(update={"basis": basis}))


def test_a_common_basis_is_summed_first(experiment: Described, found: Found) -> None:
    there = simulate_experiment(with_basis(experiment("services")), ignore_progress)
    here = run_sequentially(with_basis(experiment("plain")), ignore_progress)
    assert found(here) == found(there)
    assert (here.history.run, here.history.request.basis) == ("run-2", "run-1")


@pytest.mark.parametrize("after", range(1, STEPS + 1))
def test_a_run_goes_on_where_it_was_interrupted(
    experiment: Described, found: Found, interrupt: Any, whole: Any, after: int
) -> None:
    described = experiment("broken")
    with pytest.raises(KeyboardInterrupt):
        run_sequentially(described, interrupt(after))
    again = interrupt(STEPS + 100)
    assert found(run_sequentially(described, again)) == found(whole)
    assert again.seen <= STEPS


@pytest.fixture(scope="module")
def wholes() -> dict[str, Any]:
    """What an uninterrupted run has given, once for all tests: its shards and its seed are the same in each."""
    return {}


@pytest.fixture
def whole(experiment: Described, wholes: dict[str, Any]) -> Any:
    if "whole" not in wholes:
        wholes["whole"] = run_sequentially(experiment("whole"), ignore_progress)
    return wholes["whole"]


def test_a_basis_run_goes_on_where_it_was_interrupted(experiment: Described, found: Found, interrupt: Any) -> None:
    whole, described = (
        run_sequentially(with_basis(experiment("whole")), ignore_progress),
        with_basis(experiment("broken")),
    )
    for after in (5, 5, 9):
        with pytest.raises(KeyboardInterrupt):
            run_sequentially(described, interrupt(after))
    assert found(run_sequentially(described, ignore_progress)) == found(whole)


def test_a_run_that_is_over_is_told_again_without_training(
    experiment: Described, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_sequentially(experiment("one"), ignore_progress)
    monkeypatch.setattr("client_service.federation.training_run.TrainingRun.fit", None)
    assert found(run_sequentially(experiment("one"), ignore_progress)) == found(whole)


def test_what_only_services_do_is_refused_before_the_work(experiment: Described) -> None:
    for changed, words in (
        ({"secure": True}, "--secure: expected it with --engine services alone"),
        ({"privacy": PRIVATE}, "--privacy: expected it with"),
    ):
        with pytest.raises(SettingsError, match=words):
            run_sequentially(replace(experiment("one"), **changed), ignore_progress)
    method = experiment("one").method.model_copy(update={"quarantine_factor": 3.0})
    with pytest.raises(SettingsError, match="quarantine_factor: expected 0"):
        run_sequentially(replace(experiment("one"), method=method), ignore_progress)


def test_a_folder_of_other_settings_or_with_damage_is_named(
    experiment: Described, interrupt: Any, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_sequentially(experiment("one"), interrupt(6))
    with pytest.raises(DataError, match="expected a run of the same settings"):
        run_sequentially(experiment("one", seed=1), ignore_progress)
    [state] = (tmp_path / "one" / "engine").glob("*.safetensors")
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(DataError, match="expected the state after round 1, got another content"):
        run_sequentially(experiment("one"), ignore_progress)


def test_a_shard_that_cannot_be_read_is_named(experiment: Described) -> None:
    described = experiment("one")
    (described.shards[1] / "interactions.parquet").write_bytes(b"nothing")
    with pytest.raises(FederationError, match=r"client-2/interactions\.parquet"):
        run_sequentially(described, ignore_progress)


@pytest.mark.parametrize("with_sums", [False, True])
def test_silos_that_wait_on_the_disk_end_as_those_in_memory(
    experiment: Described, found: Found, monkeypatch: pytest.MonkeyPatch, *, with_sums: bool
) -> None:
    """Of 1,024 silos few fit into memory."""
    described = with_basis if with_sums else lambda one: one
    whole = run_sequentially(described(experiment("whole")), ignore_progress)
    opened, open_silo = [], SiloRun.__init__

    def note(silo: SiloRun, settings: Any) -> None:
        opened.append(settings.name)
        open_silo(silo, settings)

    monkeypatch.setattr(SiloRun, "__init__", note)
    parked = run_sequentially(described(experiment("parked")), ignore_progress, most_bytes=0)
    assert found(parked) == found(whole)
    assert len(opened) >= 2 * (1 + 6)  # each silo anew for each of its calls
    assert whole.silo_seconds and parked.silo_seconds


def test_a_silo_that_waits_on_the_disk_goes_on_after_an_interrupt(
    experiment: Described, found: Found, interrupt: Any, whole: Any
) -> None:
    described = experiment("broken")
    for after in (3, 5, 6):
        with pytest.raises(KeyboardInterrupt):
            run_sequentially(described, interrupt(after), most_bytes=0)
    assert found(run_sequentially(described, ignore_progress, most_bytes=0)) == found(whole)
