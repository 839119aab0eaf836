"""A search by validation: resumable, blind to test pairs, and not held up by a trial that fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import polars as pl
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState
from typer.testing import CliRunner

from client_service.data.interaction_files import FEATURES, load_shard, write_shard
from client_service.federation.messages import StatusOut
from shared.errors import DataError, FederationError, SettingsError
from shared.method.settings import PRESETS, MethodSettings, method_settings
from shared.strategies import STRATEGIES
from simulation.cli import app
from simulation.experiments.blind import hide_test_pairs, write_blind_shards
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Progress
from simulation.experiments.in_process import STUCK_SECONDS, fail_when_stuck
from simulation.tuning import search as searching
from simulation.tuning.search import (
    Search,
    open_study,
    run_search,
    spent_trials,
    summarise_search,
    validate_experiment,
    write_best_settings,
)
from simulation.tuning.spaces import COMMON, initial_value, search_space

Silos = Callable[..., tuple[Path, ...]]
Validate = Callable[[Experiment, Callable[[int, float], None]], float]
SPACE = {"margin_strength": FloatDistribution(0.0, 1.0)}


def quiet(*_: object) -> None:
    """Nobody looks at the bar, or at a round."""


@pytest.fixture
def task(silos: Silos, small: MethodSettings) -> Search:
    return Search(silos(2), "lpsfed", small, SPACE, rounds=2, device="cpu")


def scored(experiment: Experiment, told: Callable[[int, float], None]) -> float:
    """A trial that takes no time and prefers a margin of .7."""
    value = 1.0 - abs(experiment.method.margin_strength - 0.7)
    for number in range(1, experiment.rounds + 1):
        told(number, value)
    return value


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Validate], None]:
    return lambda function: monkeypatch.setattr(searching, "validate_experiment", function)


def values(study: optuna.Study) -> list[float]:
    return [trial.params["margin_strength"] for trial in study.trials]


# Spaces


@pytest.mark.parametrize("strategy", list(STRATEGIES))
@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_strategy_has_a_space_of_valid_settings_that_holds_the_presets(strategy: str, preset: Any) -> None:
    network = {"model": "unifilter", "nodes.features": 4, "nodes.classes": 2, "local_epochs": 2}
    model: dict[str, Any] = network if preset == "nodes" else {}  # the preset's closed form sends no parameters
    base = method_settings(preset, **model)
    if preset in ("sessions", "nodes") and strategy == "lpsfed":
        with pytest.raises(SettingsError, match="expected an encoder beneath both MLPs"):
            search_space(strategy, base)
        return
    for name, distribution in search_space(strategy, base).items():
        value = initial_value(name, strategy, base)
        if isinstance(distribution, FloatDistribution):
            assert distribution.low <= value <= distribution.high
            ends: tuple[Any, ...] = (distribution.low, distribution.high)
        else:
            assert isinstance(distribution, CategoricalDistribution) and value in distribution.choices
            ends = distribution.choices
        assert all(method_settings(preset, **model, **{name: end}) for end in ends)


def test_a_new_strategy_has_a_space_without_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "new", lambda method: replace(STRATEGIES["fedavg"](method), name="new"))
    assert search_space("new", method_settings()) == COMMON
    with pytest.raises(SettingsError, match="'nobody'"):
        search_space("nobody", method_settings())


def test_a_strategy_with_an_item_table_has_no_mlps_and_no_softmax_to_tune() -> None:
    assert set(search_space("fedmf", method_settings())) == {"learning_rate", "negatives"}


def test_only_what_a_strategy_uses_is_searched() -> None:
    own = set(search_space("lpsfed", method_settings()))
    assert own - set(search_space("fedavg", method_settings())) == {"margin_strength", "similarity_floor"}
    assert "temperature" not in search_space("fedavg", method_settings(loss="bpr"))
    assert not {"rounds", "local_epochs", "cutoff"} & own  # these would give one strategy a larger budget


def test_what_is_fixed_stays_and_something_must_be_left() -> None:
    assert "decay" not in search_space("fedavg", method_settings(decay=3), {"decay"})
    with pytest.raises(SettingsError, match="all of them fixed"):
        search_space("fedavg", method_settings(), set(COMMON))


# What a trial sees


def test_blind_shards_have_no_test_pair_and_are_otherwise_the_same(tmp_path: Path) -> None:
    rows = [("a", "x", "train"), ("a", "y", "valid"), ("a", "z", "test"), ("b", "y", "train"), ("b", "x", "test")]
    table = pl.DataFrame(rows, schema=["user", "item", "split"], orient="row")
    known = {"item": ["x", "y", "z"], "title": ["Red hat", None, "Shoe"], "category": ["hat", "hat", None]}
    write_shard(tmp_path / "client-1", "client-1", table, pl.DataFrame(known))
    (tmp_path / "client-1" / FEATURES).write_bytes(b"vectors")
    whole = load_shard(tmp_path / "client-1")
    (path,) = write_blind_shards(hide_test_pairs, [tmp_path / "client-1"], tmp_path / "blind")
    blind = load_shard(path)
    assert whole.test.nnz == 2 and blind.test.nnz == 0
    assert blind.item_ids == whole.item_ids  # z occurs in a test pair alone and is still ranked
    assert (blind.train != whole.train).nnz == (blind.valid != whole.valid).nnz == 0
    assert (blind.name, blind.user_ids, blind.titles) == (whole.name, whole.user_ids, whole.titles)
    assert whole.features is not None and whole.features.equals(blind.features)  # by which items are scored too
    assert blind.feature_file == path / FEATURES and blind.feature_file.read_bytes() == b"vectors"


def test_a_trial_s_value_is_the_mean_of_the_clients_best_rounds(task: Search, tmp_path: Path) -> None:
    heard: list[tuple[int, float]] = []
    value = validate_experiment(task.make_experiment({}, tmp_path / "run"), lambda *one: heard.append(one))
    kept = [json.loads((tmp_path / "run" / path.name / "model" / "quality.json").read_text()) for path in task.shards]
    curves = np.array([[entry["ndcg"] for entry in quality["rounds"]] for quality in kept])  # (clients, rounds + 1)
    assert value == pytest.approx(curves.max(axis=1).mean())
    assert [number for number, _ in heard] == [1, 2]
    assert [mean for _, mean in heard] == pytest.approx(curves.mean(axis=0)[1:].tolist())


def test_test_pairs_have_no_part_in_a_trial(silos: Silos, small: MethodSettings, tmp_path: Path) -> None:
    shards = silos(2)
    blind = write_blind_shards(hide_test_pairs, shards, tmp_path / "blind")
    seen = [
        validate_experiment(
            Search(paths, "fedavg", small, SPACE, rounds=1, device="cpu").make_experiment({}, tmp_path / name), quiet
        )
        for name, paths in (("whole", shards), ("without", blind))
    ]
    assert seen[0] == seen[1] > 0.0


def test_whatever_told_raises_ends_the_run(task: Search, tmp_path: Path) -> None:
    def told(number: int, mean: float) -> None:
        raise optuna.TrialPruned(f"{number} {mean > 0}")

    with pytest.raises(optuna.TrialPruned, match="1 True"):
        validate_experiment(task.make_experiment({}, tmp_path / "run"), told)


def test_a_client_that_cannot_go_on_ends_the_run_but_a_passing_problem_does_not() -> None:
    now = [0.0]
    observe = fail_when_stuck(lambda _: None, lambda: now[0])

    def seen(problem: str | None) -> Progress:
        status = StatusOut(client="c", phase="training", device="cpu", device_reason="", problem=problem)
        return Progress({"c": status}, 2, 0.0)

    observe(seen("not finite"))
    now[0] += STUCK_SECONDS - 1
    observe(seen("not finite"))
    observe(seen(None))
    now[0] += STUCK_SECONDS
    observe(seen("not finite"))
    now[0] += STUCK_SECONDS
    with pytest.raises(FederationError, match="c cannot continue: not finite"):
        observe(seen("not finite"))


# The search


def test_a_search_in_two_goes_is_the_search_in_one(task: Search, tmp_path: Path, instant: Any) -> None:
    instant(scored)
    one = open_study(task, tmp_path / "one")
    run_search(task, one, 9, quiet)
    for trials in (4, 9):
        run_search(task, open_study(task, tmp_path / "two"), trials, quiet)
    again = open_study(task, tmp_path / "two")
    assert values(again) == values(one) and len(set(values(one))) == 9
    assert values(one)[0] == task.base.margin_strength  # the settings as they are go first
    run_search(task, again, 9, quiet)
    assert len(again.trials) == 9


def test_another_task_is_refused_in_the_same_folder(task: Search, tmp_path: Path) -> None:
    open_study(task, tmp_path)
    other = Search(task.shards, "fedavg", task.base, SPACE, rounds=3, device="cpu")
    with pytest.raises(SettingsError, match="got another rounds, strategy"):
        open_study(other, tmp_path)


def test_a_trial_that_fails_is_kept_with_its_reason_and_counts(task: Search, tmp_path: Path, instant: Any) -> None:
    def sometimes(experiment: Experiment, told: Callable[[int, float], None]) -> float:
        if experiment.method.margin_strength == task.base.margin_strength:
            raise DataError("client-1: nothing to read")
        return scored(experiment, told)

    instant(sometimes)
    study, heard = open_study(task, tmp_path), list[str]()
    run_search(task, study, 3, heard.append)
    found = summarise_search(task, study)
    assert (found["trials"], found["failed"], found["default"]) == (3, 1, None)
    assert study.trials[0].user_attrs["reason"] == "client-1: nothing to read" and heard[0] == "failed"
    assert found["validation"] == max(1.0 - abs(value - 0.7) for value in values(study)[1:])


def test_when_every_trial_fails_the_reason_is_told(task: Search, tmp_path: Path, instant: Any) -> None:
    def never(*_: object) -> float:
        raise DataError("nothing to read")

    instant(never)
    study = open_study(task, tmp_path)
    run_search(task, study, 2, quiet)
    with pytest.raises(FederationError, match="none of 2; nothing to read"):
        summarise_search(task, study)


def test_an_interrupt_keeps_what_is_done_and_its_trial_is_tried_again(
    task: Search, tmp_path: Path, instant: Any
) -> None:
    tried: list[float] = []

    def interrupted(experiment: Experiment, told: Callable[[int, float], None]) -> float:
        tried.append(experiment.method.margin_strength)
        if len(tried) == 3:
            raise KeyboardInterrupt
        return scored(experiment, told)

    instant(interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_search(task, open_study(task, tmp_path), 4, quiet)
    study = open_study(task, tmp_path)
    assert len(spent_trials(study)) == 2 and summarise_search(task, study)["trials"] == 2
    run_search(task, study, 4, quiet)
    assert len(spent_trials(study)) == 4 and len(tried) == 5
    assert tried[3] == tried[2]


def test_a_trial_of_a_process_that_is_gone_does_not_count(task: Search, tmp_path: Path, instant: Any) -> None:
    instant(scored)
    study = open_study(task, tmp_path)
    study.ask(task.space)  # and nobody ever told how it ended
    run_search(task, study, 2, quiet)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.COMPLETE, TrialState.COMPLETE]
    assert len(spent_trials(study)) == 2


def test_a_poor_trial_is_ended_early_and_its_epochs_are_counted(task: Search, tmp_path: Path, instant: Any) -> None:
    long = Search(task.shards, "lpsfed", task.base, SPACE, rounds=8, device="cpu")
    tried: list[Experiment] = []

    def worse(experiment: Experiment, told: Callable[[int, float], None]) -> float:
        tried.append(experiment)
        value = 1.0 if len(tried) <= searching.RANDOM_TRIALS else 0.1
        for number in range(1, experiment.rounds + 1):
            told(number, value)
        return value

    instant(worse)
    study = open_study(long, tmp_path)
    run_search(long, study, searching.RANDOM_TRIALS + 1, quiet)
    last, warmup = study.trials[-1], long.base.warmup(8)
    assert last.state == TrialState.PRUNED and last.user_attrs["epochs"] == warmup + 1 < 8
    assert summarise_search(long, study)["epochs"] == 8 * searching.RANDOM_TRIALS + warmup + 1


def test_best_json_holds_what_a_run_needs(task: Search, tmp_path: Path, instant: Any) -> None:
    instant(scored)
    study = open_study(task, tmp_path)
    run_search(task, study, 6, quiet)
    kept = json.loads(write_best_settings(tmp_path, summarise_search(task, study)).read_text())
    assert method_settings(**kept["values"]).margin_strength == kept["values"]["margin_strength"]
    assert MethodSettings.model_validate(kept["settings"]).margin_strength == kept["values"]["margin_strength"]
    assert kept["validation"] == max(trial.value or 0.0 for trial in study.trials) and kept["epochs"] == 12


def test_the_command_searches_resumes_and_writes_what_it_found(
    silos: Silos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Path, ...]] = []
    monkeypatch.setattr(searching, "validate_experiment", lambda e, told: (seen.append(e.shards), scored(e, told))[1])
    shards, out = silos(2)[0].parent, tmp_path / "out"
    given = ("tune", str(shards), "--out", str(out), "--rounds", "2", "--set", "width=4", "--set", "decay=0.5")
    first = CliRunner().invoke(app, [*given, "--trials", "2", "--json"], catch_exceptions=False)
    found = json.loads(first.stdout)
    assert found == json.loads((out / "best.json").read_text())
    assert found["trials"] == 2 and found["settings"]["width"] == 4 and "decay" not in found["values"]
    shown = CliRunner().invoke(app, [*given, "--trials", "3"], catch_exceptions=False).stdout
    assert json.loads((out / "best.json").read_text())["trials"] == len(seen) == 3
    assert "--set width=4 --set decay=0.5 --set learning_rate=" in shown and "3 trials: 0 ended early" in shown
    assert not any(path.is_relative_to(shards) for paths in seen for path in paths)  # without test pairs, elsewhere


def test_ctrl_c_ends_the_command_with_what_is_known(
    silos: Silos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def interrupted(experiment: Experiment, told: Callable[[int, float], None]) -> float:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return scored(experiment, told)

    monkeypatch.setattr(searching, "validate_experiment", interrupted)
    ended = CliRunner().invoke(app, ["tune", str(silos(2)[0].parent), "--out", str(tmp_path / "out"), "--rounds", "2"])
    assert ended.exit_code == 130
    assert json.loads((tmp_path / "out" / "best.json").read_text())["trials"] == 1
