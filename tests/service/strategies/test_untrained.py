"""LPSFed without training: the closed forms as they begin, sent and served in one round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shared.errors import SettingsError
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Outcome
from simulation.experiments.floors import NO_BOUNDS
from simulation.experiments.in_process import simulate_experiment
from simulation.reports.report import build_report

Describe = Callable[..., Experiment]


def outcomes(experiment: Describe, small: MethodSettings) -> tuple[Experiment, Outcome, Outcome]:
    trained = experiment("trained")
    method = small.model_copy(update={"strategy": {"train": False}})
    untrained = replace(experiment("untrained"), method=method, rounds=1)
    return trained, simulate_experiment(trained, lambda _: None), simulate_experiment(untrained, lambda _: None)


def test_what_is_not_trained_is_served_as_it_began(experiment: Describe, small: MethodSettings) -> None:
    described, trained, untrained = outcomes(experiment, small)
    for name, quality in untrained.qualities.items():
        start = next(one for one in trained.qualities[name].rounds if one.round == 0)
        assert {tuple(one.values.items()) for one in quality.rounds} == {tuple(start.values.items())}
        assert trained.statuses[name].shared_digest != untrained.statuses[name].shared_digest
    told = build_report(replace(described, method=small), trained, NO_BOUNDS, None)["notes"]
    gains = sum(quality.best_round == 0 for quality in trained.qualities.values())
    assert any("strategy.train=false" in note for note in told) == (2 * gains >= len(trained.qualities))


def test_one_round_is_enough_without_training(small: MethodSettings) -> None:
    assert build_strategy("lpsfed", small).enough_rounds is None
    assert build_strategy("lpsfed", small.model_copy(update={"strategy": {"train": False}})).enough_rounds == 1


def test_another_strategy_has_no_such_setting(small: MethodSettings) -> None:
    with pytest.raises(SettingsError, match="train"):
        build_strategy("fedavg", small.model_copy(update={"strategy": {"train": False}}))
