"""Shards of sessions -> what each silo has without any network."""

from __future__ import annotations

from client_service.data.session_files import read_session_shard
from client_service.data.sessions import TRAIN, SessionShard
from client_service.evaluation.metrics import Measures
from client_service.evaluation.session_baselines import floors_of
from client_service.evaluation.session_metrics import measure_prefixes
from simulation.experiments.experiment import Experiment
from simulation.experiments.floors import Bounds
from simulation.progress import count_bar


def measure_session_bounds(experiment: Experiment, *, shown: bool) -> Bounds:
    """The floors of every shard. There is no ceiling: a network on all silos' sessions is a run of its own."""
    found = {}
    with count_bar("floors", len(experiment.shards), shown=shown) as done:
        for path in experiment.shards:
            found[path.name] = measure_own_floors(read_session_shard(path))
            done(path.name)
    return Bounds(found)


def measure_own_floors(shard: SessionShard) -> dict[str, Measures | None]:
    """On the shard's test examples, its own items candidates."""
    clicks, starts = shard.split_sessions(TRAIN)
    items = len(shard.item_ids)
    floors = floors_of(clicks, starts, items)
    return {name: measure_prefixes(floor, shard.test, items) for name, floor in floors.items()}
