"""Real services on loopback, each in a thread and an event loop of its own, and a proxy before each client."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx

from aggregator_service.app import create_app as create_aggregator
from audit.evidence.case import open_case
from audit.evidence.collect import read_aggregator_evidence, read_client_evidence
from audit.report import PrivacyReport, make_report
from client_service.app import create_app as create_client
from client_service.federation.messages import QualityOut, StatusOut
from client_service.settings import ClientSettings
from shared.protocol.schemas import ArrivalOut, RunHistoryOut
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Outcome
from tests.support.serving import serve
from tests.system.faults.proxy import Proxy

DEADLINE_SECONDS = 150.0  # of each phase of a run, where no test says otherwise; a body may take 120
LONGEST_SECONDS = 3 * DEADLINE_SECONDS
CALL_SECONDS = 0.7  # of each step of a client's call, and of its polls
BODY_SECONDS = 2.0  # for a body to come whole


@dataclass(frozen=True)
class Ending:
    """What a run has left of one client, there and at the aggregator. Nothing that a clock decides."""

    holds: str | None  # a digest
    rounds: tuple[tuple[float | None, ...], ...]
    test: dict[str, float] | None
    sent: tuple[str | None, ...]  # the digest of each round's update

    @staticmethod
    def of(status: StatusOut, quality: QualityOut, history: RunHistoryOut) -> Ending:
        rounds = tuple((one.round, one.recall, one.ndcg, one.rho, one.margin, one.loss) for one in quality.rounds)
        parts = [part for number in history.rounds for part in number.participants if part.client == quality.client]
        return Ending(status.shared_digest, rounds, quality.test, tuple(part.digest for part in parts))


def endings_of(outcome: Outcome) -> dict[str, Ending]:
    """Of a run that was simulated, by client."""
    names, history = outcome.statuses, outcome.history
    return {name: Ending.of(outcome.statuses[name], outcome.qualities[name], history) for name in names}


def calling(url: str, secret: str) -> httpx.AsyncClient:
    """A way to a service as its operator."""
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=DEADLINE_SECONDS)


class Watched:
    """What the services of a run tell their operators."""

    operator: httpx.AsyncClient
    silos: dict[str, httpx.AsyncClient]

    async def status(self, client: str) -> StatusOut:
        return StatusOut.model_validate(await read(self.silos[client], "/v1/status"))

    async def quality(self, client: str) -> QualityOut:
        return QualityOut.model_validate(await read(self.silos[client], "/v1/quality"))

    async def history(self) -> RunHistoryOut:
        return RunHistoryOut.model_validate(await read(self.operator, "/v1/runs/run-1"))

    async def endings(self, *clients: str) -> dict[str, Ending]:
        """How the run has ended at these clients, or at all."""
        history, names = await self.history(), clients or tuple(self.silos)
        return {name: Ending.of(await self.status(name), await self.quality(name), history) for name in names}


@dataclass
class Disturbed(Watched):
    """An aggregator that listens, a proxy for each client, and, once `begun`, the clients and a run."""

    experiment: Experiment
    operator: httpx.AsyncClient
    proxies: dict[str, Proxy]
    _addresses: dict[str, str]
    _stack: AsyncExitStack
    silos: dict[str, httpx.AsyncClient] = field(default_factory=dict)

    async def begin(self, **request: Any) -> None:
        """Start a run, then the clients."""
        run = self.experiment.run_request().model_dump(mode="json") | {"deadline_seconds": DEADLINE_SECONDS} | request
        answer = await self.operator.post("/v1/runs", json=run)
        assert answer.status_code == 201, answer.text
        for shard in self.experiment.shards:
            settings = impatient(
                self.experiment.make_client_settings(shard, aggregator_url=self._addresses[shard.name])
            )
            http = calling(self._stack.enter_context(serve(create_client(settings))), self.experiment.operator_key)
            self.silos[shard.name] = await self._stack.enter_async_context(http)

    async def ended(self, *clients: str) -> dict[str, Ending]:
        """How the run ended at these clients, or at all, once it has."""
        names = clients or tuple(self.silos)
        while not all([(await self.quality(name)).finished for name in names]):
            await anyio.sleep(0.05)
        return await self.endings(*names)

    async def arrivals(self) -> tuple[ArrivalOut, ...]:
        """Every join and every update as it came, and whatever else had a body."""
        return (await read_aggregator_evidence(self.operator, "aggregator")).arrivals

    async def audited(self) -> PrivacyReport:
        """The privacy report: every ledger against the aggregator's record."""
        parts = [await read_client_evidence(http, name) for name, http in self.silos.items()]
        return make_report(open_case((*parts, await read_aggregator_evidence(self.operator, "aggregator"))))


async def read(http: httpx.AsyncClient, path: str) -> Any:
    answer = await http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def impatient(settings: ClientSettings) -> ClientSettings:
    limits = {"timeout_seconds": CALL_SECONDS, "wait_seconds": CALL_SECONDS, "call_seconds": 5 * CALL_SECONDS}
    return settings.model_copy(update=limits)


@asynccontextmanager
async def disturbed(experiment: Experiment, clock: Callable[[], float] = time.time) -> AsyncIterator[Disturbed]:
    """The experiment's aggregator and its proxies. They end before what they lead to does."""
    settings = experiment.make_aggregator_settings().model_copy(update={"longest_body_seconds": BODY_SECONDS})
    app = create_aggregator(settings, clock=clock)
    async with AsyncExitStack() as stack:
        url = stack.enter_context(serve(app, wind_down=app.state.coordinator.wind_down))
        operator = await stack.enter_async_context(calling(url, experiment.token))
        proxies = {name: Proxy(int(url.rpartition(":")[2])) for name in experiment.names}
        addresses = {name: await stack.enter_async_context(one.listening()) for name, one in proxies.items()}
        yield Disturbed(experiment, operator, proxies, addresses, stack)
