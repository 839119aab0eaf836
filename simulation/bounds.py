"""An experiment on users and items -> the floors of its shards and the ceiling above them, with a bar."""

from __future__ import annotations

from simulation.console import count_bar
from simulation.experiment import Experiment
from simulation.floors import Bounds, measure_all_floors, measure_ceiling, too_large_to_pool


def measure_bounds(experiment: Experiment, *, shown: bool) -> Bounds:
    """The floors of every shard, and the ceiling where the shards together are not too large for it."""
    shards, cutoff, kept = experiment.shards, experiment.method.cutoff, experiment.floors_folder
    reason = too_large_to_pool(shards)
    with count_bar("floors", len(shards) + (reason is None), shown=shown) as done:
        floors = measure_all_floors(shards, cutoff, cache_of=experiment.cache_of, observe=done, kept=kept)
        ceiling = measure_ceiling(shards, cutoff, kept) if reason is None else None
        if reason is None:
            done("all silos' data")
    return Bounds(floors, ceiling, () if reason is None else (reason,))
