"""Registry of engines, which run the clients of a simulation.

A new engine is a file here and a line below.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shared.errors import SettingsError
from simulation.engines.plain import conduct_plainly
from simulation.engines.ray_engine import RayCluster, conduct_over_ray
from simulation.engines.study import Conduct
from simulation.experiments.in_process import simulate_experiment

SERVICES, RAY = "services", "ray"
ENGINES: dict[str, Callable[[RayCluster], Conduct]] = {
    SERVICES: lambda _: simulate_experiment,
    "plain": lambda _: conduct_plainly,
    RAY: lambda cluster: partial(conduct_over_ray, cluster=cluster),
}


def choose_engine(name: str, cluster: RayCluster) -> Conduct:
    """Returns the function that runs an experiment on this engine.

    Raises SettingsError for a cluster that is not used, and for an unknown engine.
    """
    if name != RAY and cluster != RayCluster():
        raise SettingsError(f"--ray-address, --ray-cpus: expected them with --engine ray alone, got them with {name}")
    if name == RAY:
        cluster.require_usable()
    return ENGINES[name](cluster)
