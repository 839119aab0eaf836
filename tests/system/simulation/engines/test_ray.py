"""The same federation over Ray: digests, two nodes, a node that dies, and what is told where something is amiss."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shared.errors import FederationError, SettingsError, UnavailableError
from simulation.engines.ray_engine import RayCluster, RayWorkers, run_on_ray
from simulation.engines.sequential import run_sequentially
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import ignore_progress
from simulation.experiments.in_process import simulate_experiment

ray = pytest.importorskip("ray", reason="needs the environment that `make engines` makes")
pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("default")]  # Ray's own warnings are not ours
Described = Callable[..., Experiment]
Found = Callable[..., Any]


@pytest.fixture
def two_nodes() -> Iterator[Any]:
    """A cluster of two nodes with one CPU each, and this process connected to it."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def end_node(cluster: Any, node: Any) -> None:
    """With all that runs on it: its workers would go on for a while after their raylet."""
    [raylet] = node.all_processes["raylet"]
    tasks = Path(f"/proc/{raylet.process.pid}/task").glob("*/children")
    workers = [int(pid) for task in tasks for pid in task.read_text(encoding="ascii").split()]
    assert workers
    cluster.remove_node(node, allow_graceful=False)
    for pid in workers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def crews(monkeypatch: pytest.MonkeyPatch) -> list[RayWorkers]:
    """Those that have taken silos in."""
    hired: list[RayWorkers] = []
    host_silos = RayWorkers.host_silos

    def note(workers: RayWorkers, orders: Any) -> None:
        hired.append(workers)
        host_silos(workers, orders)

    monkeypatch.setattr(RayWorkers, "host_silos", note)
    return hired


def test_a_federation_over_two_nodes_ends_as_that_of_the_services(
    experiment: Described, found: Found, two_nodes: Any, crews: list[RayWorkers]
) -> None:
    here = run_on_ray(experiment("ray"), ignore_progress)
    there = simulate_experiment(experiment("services"), ignore_progress)
    assert found(here) == found(there)
    assert len(two_nodes.list_all_nodes()) == len(crews[0].hosts) == 2  # neither node has a CPU for both
    assert len({id(host) for host in crews[0].places.values()}) == 2


def test_silos_that_wait_on_the_disk_of_a_host_end_as_those_in_memory(
    experiment: Described, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: dict[str, bool] = {}

    def look_and_close(workers: RayWorkers) -> None:
        for host in workers.hosts:
            look = host.__ray_call__.remote(lambda host: {name: one.silo is None for name, one in host._silos.items()})
            waiting.update(ray.get(look))
            ray.kill(host)

    monkeypatch.setattr(RayWorkers, "close", look_and_close)
    here = run_on_ray(experiment("disk"), ignore_progress, RayCluster(cpus=1), most_bytes=1)
    assert found(here) == found(run_sequentially(experiment("memory"), ignore_progress))
    assert waiting == {"client-1": True, "client-2": True}


def test_a_node_that_dies_is_told_and_the_run_goes_on_with_those_that_are_left(
    experiment: Described, found: Found, two_nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulation.engines.ray_engine.LATE_SECONDS", 20.0)  # the cluster may not know of it yet
    seen = []

    def kill_node(progress: object) -> None:
        seen.append(progress)
        if len(seen) == 5:
            end_node(two_nodes, two_nodes.list_all_nodes()[1])

    with pytest.raises(UnavailableError, match="a host of silos has ended; the same command goes on"):
        run_on_ray(experiment("ray"), kill_node)
    assert found(run_on_ray(experiment("ray"), ignore_progress)) == found(
        simulate_experiment(experiment("services"), ignore_progress)
    )


def test_a_mistake_on_a_host_is_told_in_its_own_words_and_the_cluster_is_left_free(experiment: Described) -> None:
    described = experiment("one")
    (described.shards[1] / "interactions.parquet").write_bytes(b"nothing")
    with pytest.raises(FederationError, match=r"client-2/shard/interactions\.parquet: expected a Parquet file"):
        run_on_ray(described, ignore_progress, RayCluster(cpus=1))
    assert not ray.is_initialized()


def test_a_cluster_that_is_not_there_or_too_small_is_named(experiment: Described) -> None:
    with pytest.raises(UnavailableError, match=r"--ray-address: expected a Ray cluster at 127\.0\.0\.1:1"):
        run_on_ray(experiment("one"), ignore_progress, RayCluster(address="127.0.0.1:1"))
    with pytest.raises(SettingsError, match="--ray-cpus: expected it without --ray-address"):
        RayCluster(address="auto", cpus=2).require_usable()
