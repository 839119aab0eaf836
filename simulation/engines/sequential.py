"""Engine of one process: the silos one after the other, without services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from typing import Any

from client_service.runtime.workers import TrainingWorker
from client_service.settings import ClientSettings
from simulation.engines.host import SiloHost, SiloReply, Verb
from simulation.engines.workers import run_on_workers
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Observe, Outcome


class SequentialWorkers:
    """Workers of one host, in a thread pinned like a service's."""

    def __init__(self, host: SiloHost, worker: TrainingWorker) -> None:
        self._host, self._worker = host, worker

    def host_silos(self, silos: Iterator[ClientSettings]) -> None:
        """Hosts these silos in their own folders."""
        for settings in silos:
            self._worker.submit(self._host.open_silo, settings).result()

    def call(self, verb: Verb, each: Mapping[str, tuple[Any, ...]]) -> Iterator[SiloReply]:
        """Calls one silo after the other."""
        for client, arguments in each.items():
            yield self._worker.submit(self._host.call, client, verb, arguments).result()


def run_sequentially(experiment: Experiment, observe: Observe, most_bytes: int | None = None) -> Outcome:
    """Runs the experiment in this process, without services; most_bytes: see `SiloHost`."""
    threads = experiment.threads
    with closing(SiloHost(threads, most_bytes)) as host, TrainingWorker(threads, nullcontext()) as worker:
        return run_on_workers(experiment, observe, SequentialWorkers(host, worker))
