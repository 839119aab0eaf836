"""Engine of one process: the silos one after the other, without services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from typing import Any

from client_service.runtime.workers import TrainingWorker
from simulation.engines.host import SiloHost, SiloOrder, SiloReply, Verb
from simulation.engines.workers import run_on_workers
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Observe, Outcome


class SequentialWorkers:
    """Workers of one host, in a thread pinned like a service's."""

    def __init__(self, host: SiloHost, worker: TrainingWorker) -> None:
        self._host, self._worker = host, worker

    def host_silos(self, orders: Iterator[SiloOrder]) -> None:
        """Hosts these silos."""
        for order in orders:
            self._worker.submit(self._host.open_silo, order).result()

    def call(self, verb: Verb, each: Mapping[str, tuple[Any, ...]]) -> Iterator[SiloReply]:
        """Calls one silo after the other."""
        for client, arguments in each.items():
            yield self._worker.submit(self._host.call, client, verb, arguments).result()


def run_sequentially(experiment: Experiment, observe: Observe) -> Outcome:
    """Runs the experiment in this process, without services."""
    threads = experiment.threads
    with closing(SiloHost(threads)) as host, TrainingWorker(threads, nullcontext()) as worker:
        return run_on_workers(experiment, observe, SequentialWorkers(host, worker))
