"""Registry of engines, which run the clients of a simulation.

A new engine is a file here and a line below.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shared.errors import SettingsError
from simulation.engines.ray_engine import RayCluster, run_on_ray
from simulation.engines.sequential import run_sequentially
from simulation.engines.study import RunExperiment
from simulation.experiments.in_process import simulate_experiment

SERVICES, RAY = "services", "ray"
ENGINES: dict[str, Callable[[RayCluster], RunExperiment]] = {
    SERVICES: lambda _: simulate_experiment,
    "plain": lambda _: run_sequentially,
    RAY: lambda cluster: partial(run_on_ray, cluster=cluster),
}


def choose_engine(name: str, cluster: RayCluster) -> RunExperiment:
    """Returns the function that runs an experiment on this engine.

    Raises SettingsError for a cluster that is not used, and for an unknown engine.
    """
    if name != RAY and cluster != RayCluster():
        raise SettingsError(f"--ray-address, --ray-cpus: expected them with --engine ray alone, got them with {name}")
    if name == RAY:
        cluster.require_usable()
    return ENGINES[name](cluster)
