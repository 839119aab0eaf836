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
ENGINES: dict[str, Callable[[RayCluster, int | None], RunExperiment]] = {
    SERVICES: lambda _, __: simulate_experiment,
    "plain": lambda _, most_bytes: partial(run_sequentially, most_bytes=most_bytes),
    RAY: lambda cluster, most_bytes: partial(run_on_ray, cluster=cluster, most_bytes=most_bytes),
}


def choose_engine(name: str, cluster: RayCluster, most_bytes: int | None = None) -> RunExperiment:
    """Returns the function that runs an experiment on this engine.

    most_bytes: of memory on each machine, beyond which silos wait on the disk; None: half of it. Raises SettingsError
    for options that the engine does not have, and for an unknown engine.
    """
    if name != RAY and cluster != RayCluster():
        raise SettingsError(f"--ray-address, --ray-cpus: expected them with --engine ray alone, got them with {name}")
    if name == SERVICES and most_bytes is not None:
        raise SettingsError("--silo-memory: expected it with --engine plain or ray, got it with services")
    if name == RAY:
        cluster.require_usable()
    return ENGINES[name](cluster, most_bytes)
