"""The same federation over Ray: digests, two nodes, an interrupt, and what is told where something is amiss."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.engines.ray_engine import RayCluster, conduct_over_ray
from simulation.experiment import Experiment
from simulation.run import simulate_experiment

pytest.importorskip("ray")
Described = Callable[..., Experiment]
pytestmark = pytest.mark.processes


def test_digests(experiment: Described) -> None:
    here = conduct_over_ray(experiment("ray"), lambda _: None, RayCluster(cpus=2))
    there = simulate_experiment(experiment("services"), lambda _: None)
    assert {n: s.shared_digest for n, s in here.statuses.items()} == {n: s.shared_digest for n, s in there.statuses.items()}
