"""An engine without services gives what the services give, and goes on where it was interrupted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.engines.plain import conduct_plainly
from simulation.experiment import Experiment
from simulation.run import simulate_experiment

Described = Callable[..., Experiment]


def digests(outcome):
    return {name: status.shared_digest for name, status in outcome.statuses.items()}


@pytest.mark.parametrize("strategy", ["lpsfed", "fedavg", "fedper", "fedrap", "fedpergnn", "pfedrec", "fedssp"])
def test_digests_are_those_of_the_services(experiment: Described, strategy: str) -> None:
    there = simulate_experiment(experiment("services", strategy=strategy), lambda _: None)
    here = conduct_plainly(experiment("plain", strategy=strategy), lambda _: None)
    assert digests(here) == digests(there)
    for name, quality in there.qualities.items():
        assert here.qualities[name].test == quality.test and here.qualities[name].finished
        assert [(e.round, e.values, e.bytes_up) for e in here.qualities[name].rounds] == [(e.round, e.values, e.bytes_up) for e in quality.rounds]
