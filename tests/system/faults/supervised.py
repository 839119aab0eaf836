"""The services as processes of their own, each of which is started again whenever it is killed.

One server process has imported what takes long and forks them all: a start costs a tenth of what it costs alone.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

import anyio
import httpx
from anyio.abc import TaskGroup
from pydantic import BaseModel

from client_service.federation.messages import QualityOut
from client_service.settings import ClientSettings
from shared.files import use_private_umask
from shared.web.logs import configure_logging
from shared.web.server import run_server
from simulation.experiments.experiment import Experiment
from tests.system.faults.federation import DEADLINE_SECONDS, Watched, calling
from tests.system.faults.points import AGGREGATOR, CLIENT, ROUND, Plan
from tests.system.faults.proxy import HOST

STOP_SECONDS = 15.0
LOOK_SECONDS = 0.05
FORKS = multiprocessing.get_context("forkserver")
# Not polars: it starts threads at once, which no fork takes on.
FORKS.set_forkserver_preload(["__main__", "aggregator_service.__main__", "torch"])
T = TypeVar("T")


def serve(package: str, settings: BaseModel, place: tuple[Path, str], plan: Plan | None) -> None:
    """The service, in a process that was forked for it. `place`: folder and name."""
    folder, name = place
    with (folder / f"{name}.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    (folder / f"{name}.part").write_text(str(os.getpid()))
    (folder / f"{name}.part").rename(folder / name)
    if plan is not None and plan.place == name:
        plan.install()
    if package == "client_service":
        anyio.run(serve_whole_client, settings)
    else:
        importlib.import_module(f"{package}.__main__").serve(settings)
    sys.exit()


async def serve_whole_client(settings: BaseModel) -> None:
    """Trainer and server as one process: what dies in a moment of a run is what trains."""
    from client_service.app import create_app
    from client_service.runtime.logs import LOGGER

    assert isinstance(settings, ClientSettings)
    configure_logging("client_service", settings.log_level)
    app = create_app(settings)
    service = app.state.service
    with use_private_umask():
        await run_server(
            app,
            settings,
            identities=app.state.identities,
            on_shutdown=lambda: None,
            unready_reason=lambda: service.unready_reason,
            logger=LOGGER,
        )


@contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Ports that nobody else is given, also not between a service's death and its next start."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the services' own, which listen beside these
            one.bind((HOST, 0))
        yield [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


@dataclass
class Supervised(Watched):
    """An aggregator and, once `begun`, its clients and a run. `deaths`: who was killed, and when."""

    experiment: Experiment
    ports: dict[str, int]
    plan: Plan | None
    calls: dict[str, httpx.AsyncClient]
    tasks: TaskGroup
    deaths: list[tuple[str, float]] = field(default_factory=list)
    running: dict[str, BaseProcess] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.operator = self.calls[AGGREGATOR]
        self.silos = {name: self.calls[name] for name in self.experiment.names}

    @property
    def folder(self) -> Path:
        """Logs, process ids, and what a plan says."""
        return self.experiment.folder / "supervised"

    async def begin(self, **changes: object) -> None:
        """Start the services and a run. changes: of the run's request."""
        self.tasks.start_soon(self._keep, AGGREGATOR, "aggregator_service", self.experiment.make_aggregator_settings)
        await self._ready(AGGREGATOR)
        run = self.experiment.run_request().model_dump(mode="json") | {"deadline_seconds": DEADLINE_SECONDS, **changes}
        answer = await self.operator.post("/v1/runs", json=run)
        assert answer.status_code == 201, answer.text
        url = f"http://{HOST}:{self.ports[AGGREGATOR]}"
        for shard in self.experiment.shards:

            def settings(port: int, shard: Path = shard) -> BaseModel:
                return self.experiment.make_client_settings(shard, aggregator_url=url, port=port)

            self.tasks.start_soon(self._keep, shard.name, "client_service", settings)

    async def _keep(self, name: str, package: str, settings: Callable[[int], BaseModel]) -> None:
        """A process of that name, and the next one after each death, until one ends in another way."""
        told = settings(self.ports[name])
        while True:
            process = FORKS.Process(target=serve, args=(package, told, (self.folder, name), self.plan), daemon=True)
            process.start()
            self.running[name] = process
            await anyio.wait_readable(process.sentinel)
            process.join()
            assert process.exitcode == -signal.SIGKILL, f"{name} ended with code {process.exitcode}: {self.log(name)}"
            self.deaths.append((name, time.monotonic()))

    async def _ready(self, name: str) -> None:
        while not await patient(self._is_ready, name):
            await anyio.sleep(LOOK_SECONDS)

    async def _is_ready(self, name: str) -> bool:
        return (await self.calls[name].get("/health/ready")).is_success

    async def recovered(self) -> float:
        """Seconds from the death until the killed service answers and the round is over for the client, once it is."""
        while not self.deaths:
            await anyio.sleep(LOOK_SECONDS)
        await self._ready(self.deaths[0][0])
        while not (quality := await patient(self.quality, CLIENT)) or not _past(quality):
            await anyio.sleep(LOOK_SECONDS)
        return time.monotonic() - self.deaths[0][1]

    async def finished(self) -> None:
        """Until every client has evaluated the run."""
        for name in self.experiment.names:
            while not (quality := await patient(self.quality, name)) or not quality.finished:
                await anyio.sleep(LOOK_SECONDS)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    def end(self) -> dict[str, int | None]:
        """Ask every service to end, the last one first; how each did."""
        for process in reversed(self.running.values()):
            process.terminate()
        for process in self.running.values():
            process.join(STOP_SECONDS)
            if process.exitcode is None:
                process.kill()
                process.join()
        return {name: process.exitcode for name, process in self.running.items()}


def _past(quality: QualityOut) -> bool:
    """Has the client been through the round, or has its run ended before that?"""
    return quality.finished or quality.rounds[-1].round >= ROUND


async def patient(ask: Callable[[str], Awaitable[T]], name: str) -> T | None:
    """The answer, or None where nobody answers at this moment."""
    try:
        return await ask(name)
    except httpx.TransportError:
        return None


@asynccontextmanager
async def supervised(experiment: Experiment, plan: Plan | None = None) -> AsyncIterator[Supervised]:
    """At the end all that still runs is asked to end, and has to do so in order."""
    names = (AGGREGATOR, *experiment.names)
    (experiment.folder / "supervised").mkdir(parents=True)
    with held_ports(len(names)) as ports:
        where = dict(zip(names, ports, strict=True))
        secrets = dict.fromkeys(experiment.names, experiment.operator_key) | {AGGREGATOR: experiment.token}
        calls = {name: calling(f"http://{HOST}:{port}", secrets[name]) for name, port in where.items()}
        async with anyio.create_task_group() as tasks:
            running = Supervised(experiment, where, plan, calls, tasks)
            try:
                yield running
            finally:
                tasks.cancel_scope.cancel()
                ended = running.end()
                for http in calls.values():
                    with anyio.CancelScope(shield=True):
                        await http.aclose()
        assert set(ended.values()) == {0}, ended
