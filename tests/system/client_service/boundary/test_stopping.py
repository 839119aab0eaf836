"""Real services that a signal asks to end: they end by themselves, and go on where they were after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import httpx
import pytest

from client_service.boundary.ledger import Ledger
from simulation.experiments import processes as subject
from simulation.experiments.experiment import Experiment
from simulation.experiments.processes import Addresses, choose_addresses, connect_services
from tests.support.forked import start_service
from tests.support.given import Until
from tests.support.questions import LONGEST_SECONDS

pytestmark = [pytest.mark.anyio, pytest.mark.processes]
ENDLESS = """
from client_service.training.sampling import PairSampler
epoch = PairSampler.epoch

def endless(self, generator):
    while True:
        yield from epoch(self, generator)

PairSampler.epoch = endless
"""
SLOW_READER = """
import time
from pathlib import Path
from client_service.tasks import items
read = items.load_shard

def slow(folder):
    (folder / "reading").touch()
    time.sleep(1.0)
    return read(folder)

items.load_shard = slow
"""


@dataclass
class Services:
    """The services of an experiment, each of which can be started, ended and started again."""

    described: Experiment
    places: Addresses
    running: dict[str, ForkServerProcess] = field(default_factory=dict)

    def start(self, name: str, *, patched: str = "") -> None:
        kind = "aggregator" if name == "aggregator" else "client"
        environment = subject._environment_variables(f"LPSFED_{kind.upper()}", self._settings(name))
        if kind == "aggregator":
            environment["LPSFED_AGGREGATOR_OPERATOR_TOKEN"] = self.described.token
        self.running[name] = start_service(f"{kind}_service", environment, self.log(name), patch=patched)

    def end(self, name: str) -> tuple[int | None, list[str]]:
        """SIGTERM -> the exit code, and the events that were logged since the start."""
        process = self.running.pop(name)
        process.terminate()
        process.join(LONGEST_SECONDS)
        code = process.exitcode
        process.kill()
        process.join()
        return code, [json.loads(line)["event"] for line in self.log(name).read_text().splitlines()]

    def log(self, name: str) -> Path:
        self.described.folder.mkdir(exist_ok=True)
        return self.described.folder / f"{name}.log"

    def shard(self, name: str) -> Path:
        return next(path for path in self.described.shards if path.name == name)

    def _settings(self, name: str) -> Any:
        if name == "aggregator":
            return self.described.make_aggregator_settings(port=subject._url_port(self.places.aggregator))
        port = subject._url_port(self.places.clients[name])
        return self.described.make_client_settings(self.shard(name), aggregator_url=self.places.aggregator, port=port)


@pytest.fixture
def services(experiment: Callable[..., Experiment]) -> Iterator[Services]:
    described = experiment("run", strategy="fedavg")
    found = Services(described, choose_addresses(described))
    yield found
    for process in found.running.values():
        process.kill()
        process.join()


async def read(http: httpx.AsyncClient, path: str) -> Any:
    return (await http.get(path)).json()


async def test_services_that_are_ended_in_the_middle_of_a_round_end_at_once_and_the_run_goes_on_when_they_are_back(
    services: Services, until: Until
) -> None:
    services.start("aggregator")
    services.start("client-1", patched=ENDLESS)
    services.start("client-2")
    async with connect_services(services.described, services.places) as federation:
        operator, one = federation.operator, federation.clients["client-1"]

        async def half_of_a_round() -> bool:
            status, history = await read(one, "/v1/status"), await read(operator, "/v1/runs/run-1")
            received = [who["received"] for entry in history["rounds"] for who in entry["participants"]]
            return status["phase"] == "training" and sorted(received) == [False, True]

        request = services.described.run_request().model_dump_json()
        started = await operator.post("/v1/runs", content=request, headers={"Content-Type": "application/json"})
        assert started.status_code == 201
        await until(half_of_a_round)
        for name in ("aggregator", "client-1"):
            code, events = services.end(name)
            processes = 1 if name == "aggregator" else 2
            assert code == 0 and events[-1] == "stopped" and events.count("stopping") == processes
            services.start(name)
    async with connect_services(services.described, services.places) as federation:

        async def finished() -> bool:
            return all([(await read(http, "/v1/quality"))["finished"] for http in federation.clients.values()])

        await until(finished)
        history = await read(federation.operator, "/v1/runs/run-1")
    assert (history["phase"], [entry["missing"] for entry in history["rounds"]]) == ("finished", [[], []])
    assert [services.end(name)[0] for name in list(services.running)] == [0, 0, 0]
    state = services.described.state_folder(services.shard("client-1"))
    assert list(state.rglob("*.partial")) == [] and Ledger(state / "ledger.jsonl").verify() > 0


async def test_a_client_that_is_ended_while_it_reads_its_shard_ends_when_it_has_read_it(
    services: Services, until: Until
) -> None:
    async def reading() -> bool:
        return (services.shard("client-1") / "reading").exists()

    services.start("client-1", patched=SLOW_READER)
    await until(reading)
    code, events = services.end("client-1")
    assert code == 0 and events[0] == "starting" and events.count("stopping") == 2
    assert events[-1] == "stopped" and events.count("stopped") == 2
