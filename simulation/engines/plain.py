"""The engine of one process: the silos one after the other, without services between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from typing import Any

from client_service.runtime.workers import TrainingWorker
from simulation.engines.conduct import conduct_experiment
from simulation.engines.host import SiloHost, SiloOrder, SiloReply, Verb
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Observe, Outcome


class PlainCrew:
    """One host, in a thread whose linear algebra is pinned as that of a service."""

    def __init__(self, host: SiloHost, worker: TrainingWorker) -> None:
        self._host, self._worker = host, worker

    def take_in(self, orders: Iterator[SiloOrder]) -> None:
        """Hosts these silos."""
        for order in orders:
            self._worker.submit(self._host.take_in, order).result()

    def ask(self, verb: Verb, each: Mapping[str, tuple[Any, ...]]) -> Iterator[SiloReply]:
        """Calls one silo after the other."""
        for client, arguments in each.items():
            yield self._worker.submit(self._host.ask, client, verb, arguments).result()


def conduct_plainly(experiment: Experiment, observe: Observe) -> Outcome:
    """Runs the experiment in this process, without services."""
    threads = experiment.threads
    with closing(SiloHost(threads)) as host, TrainingWorker(threads, nullcontext()) as worker:
        return conduct_experiment(experiment, observe, PlainCrew(host, worker))
