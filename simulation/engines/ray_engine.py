"""Engine over a Ray cluster: silos on actors, shards in the object store.

For research alone: Ray carries Python objects between the machines of one owner, without a privacy boundary.
"""

from __future__ import annotations

import heapq
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from client_service.settings import ClientSettings
from shared.errors import FederationError, SettingsError, UnavailableError
from simulation.engines.host import SiloHost, SiloReply, Verb, digest_engine_code, pack_silo
from simulation.engines.workers import run_on_workers
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Observe, Outcome

START_SECONDS = 300.0  # for the first host: a busy machine loads its libraries for minutes
LATE_SECONDS = 60.0  # after the first: who is not there by then has no place in the cluster
ANSWER_SECONDS = 5.0  # of a cluster's address
LOOK_SECONDS = 1.0  # an interrupt at the terminal takes effect between two looks
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would tell its makers of every cluster


def import_ray() -> Any:
    """Imports Ray; raises SettingsError if it is not installed."""
    try:
        import ray
    except ImportError:
        raise SettingsError("--engine ray: expected Ray, it is not installed: pip install 'lpsfed[ray]'") from None
    return ray


@dataclass(frozen=True)
class RayCluster:
    """Address of a Ray cluster.

    address: of a running cluster; "": one is started on this machine for the run, with `cpus` CPUs (0: all of them).
    """

    address: str = ""
    cpus: int = 0

    def require_usable(self) -> None:
        """Raises SettingsError without Ray, or for both an address and a number of CPUs."""
        import_ray()
        if self.address and self.cpus:
            raise SettingsError(
                "--ray-cpus: expected it without --ray-address, because that cluster has its own, got both"
            )

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """Connects to Ray while the context is open.

        An existing connection of this process is used as it is. Raises UnavailableError if no cluster answers.
        """
        ray = import_ray()
        if ray.is_initialized():
            yield ray
            return
        where: dict[str, Any] = {"address": self.address} if self.address else {"num_cpus": self.cpus or os.cpu_count()}
        try:
            _require_answer(self.address)
            ray.init(**where, include_dashboard=False, log_to_driver=False, logging_level="error")
        except (OSError, RuntimeError, ValueError) as error:
            raise UnavailableError(f"--ray-address: expected a Ray cluster at {self.address}, got: {error}") from None
        try:
            yield ray
        finally:
            ray.shutdown()


def _require_answer(address: str) -> None:
    """Raises OSError if host:port does not answer; Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()


class RayWorkers:
    """Silos on actors of a cluster, each on one actor throughout.

    Its model is in the actor's memory.
    """

    def __init__(self, ray: Any, threads: int, device: str, most_bytes: int | None = None) -> None:
        self._ray = ray
        needs = {"num_cpus": threads, "num_gpus": int(device == "cuda")}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        count = count_hosts(nodes, needs)
        beside = max(count_hosts([node], needs) for node in nodes if node.get("CPU", 0) >= threads)
        made = ray.remote(SiloHost).options(**needs)
        self.hosts = [made.remote(threads, most_bytes, beside) for _ in range(count)]
        self.places: dict[str, Any] = {}

    def host_silos(self, silos: Iterator[ClientSettings]) -> None:
        """Places the heaviest silos first, each on the host with the least load.

        Their files go through the object store, one silo at a time.
        """
        self._await_hosts()
        orders = (pack_silo(settings) for settings in silos)
        sized = sorted(((order.size, order.settings.name, self._ray.put(order)) for order in orders), reverse=True)
        loads = [(0, number) for number in range(len(self.hosts))]
        pending = []
        for size, name, order in sized:
            load, number = heapq.heappop(loads)
            heapq.heappush(loads, (load + size, number))
            self.places[name] = self.hosts[number]
            pending.append(self.hosts[number].receive_silo.remote(order))
        for _ in self._gather(pending):
            pass

    def call(self, verb: Verb, each: Mapping[str, tuple[Any, ...]]) -> Iterator[SiloReply]:
        """Calls the silos on all hosts at once, those of one host in turn."""
        return self._gather([self.places[name].call.remote(name, verb, arguments) for name, arguments in each.items()])

    def close(self) -> None:
        """Ends the actors and removes their scratch folders."""
        for host in self.hosts:
            self._ray.kill(host)

    def _gather(self, pending: list[Any]) -> Iterator[Any]:
        """Yields results as they come, all of a look at once.

        A look at all that is pending for each result would grow with the square of the silos.
        """
        errors = self._ray.exceptions
        while pending:
            ready, pending = self._ray.wait(pending, num_returns=len(pending), timeout=LOOK_SECONDS)
            for reference in ready:
                try:
                    yield self._ray.get(reference)
                except errors.RayTaskError as error:
                    raise _unwrap_error(error) from None
                except errors.RayActorError as error:
                    words = "a host of silos has ended; the same command goes on from the last round"
                    raise UnavailableError(f"{words} ({type(error).__name__})") from None

    def _await_hosts(self) -> None:
        """Waits for hosts, and continues with those that are there in time.

        Raises SettingsError if a node has another version: its silos would train otherwise. UnavailableError if
        no host has started.
        """
        asked = {host.code.remote(): host for host in self.hosts}
        ready, _ = self._ray.wait([*asked], num_returns=1, timeout=START_SECONDS)
        ready, late = self._ray.wait([*asked], num_returns=len(asked), timeout=LATE_SECONDS if ready else 0)
        for reference in late:
            self._ray.kill(asked[reference])
        if not ready:
            raise UnavailableError(
                f"--engine ray: expected a host of silos within {START_SECONDS:g} s, none has started"
            )
        self.hosts, own = [asked[reference] for reference in ready], digest_engine_code()
        for found in self._gather(ready):
            if other := sorted(package for package in own if found[package] != own[package]):
                raise SettingsError(
                    f"--engine ray: expected the same lpsfed on every node, another {other[0]} is there"
                )


def count_hosts(nodes: Sequence[Mapping[str, float]], needs: Mapping[str, int]) -> int:
    """Computes how many hosts fit on the nodes of a cluster by their resources.

    Raises UnavailableError for none.
    """
    named = {"CPU": needs["num_cpus"], "GPU": needs["num_gpus"]}
    wanted = {name: need for name, need in named.items() if need}
    count = sum(min(int(has.get(name, 0) // need) for name, need in wanted.items()) for has in nodes)
    if count < 1:
        words = ", ".join(f"{need} {name}" for name, need in wanted.items())
        raise UnavailableError(f"--engine ray: expected a node with {words} for a host of silos, there is none")
    return count


def _unwrap_error(error: Any) -> Exception:
    """Returns an error of ours as it was raised, or wraps another one."""
    cause = error.cause
    if isinstance(cause, FederationError):
        return cause
    return FederationError(f"a host of silos has failed: {type(cause).__name__}: {cause}")


def run_on_ray(
    experiment: Experiment, observe: Observe, cluster: RayCluster = RayCluster(), most_bytes: int | None = None
) -> Outcome:
    """Runs the experiment on a cluster, or resumes it after its last stored round.

    most_bytes: of the memory of all hosts on a machine, see `SiloHost`.
    """
    with cluster.connected() as ray:
        workers = RayWorkers(ray, experiment.threads, experiment.device, most_bytes)
        try:
            return run_on_workers(experiment, observe, workers)
        finally:
            workers.close()
