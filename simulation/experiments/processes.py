"""Clients and aggregator as real processes on loopback ports."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import BaseModel, SecretStr

from aggregator_service.settings import AggregatorSettings
from client_service.settings import ClientSettings
from shared.errors import UnavailableError
from shared.timeouts import TIMEOUT_SECONDS
from shared.web.health import ENDS_WITH_PARENT
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Federation
from simulation.ports import HOST, free_ports, is_free

START_SECONDS = 180.0  # a bound alone: a process that ends is noticed at once, and a busy machine starts slowly
STOP_SECONDS = 15.0


@dataclass(frozen=True)
class Addresses:
    """URLs of the services."""

    aggregator: str
    clients: Mapping[str, str]


def choose_addresses(experiment: Experiment, first_port: int = 0) -> Addresses:
    """Chooses a free loopback port for each service.

    From `first_port` on those that are free; otherwise, and with 0, any.
    """
    count = 1 + len(experiment.shards)
    wished = range(first_port, first_port + count) if first_port else ()
    ports = [port if is_free(port) else free_ports(1)[0] for port in wished] or free_ports(count)
    first, *others = (f"http://{HOST}:{port}" for port in ports)
    return Addresses(first, dict(zip(experiment.names, others, strict=True)))


@dataclass
class ServiceProcesses:
    """Started services by name, each with its log.

    They end with this process, unless they are kept.
    """

    processes: dict[str, subprocess.Popen[bytes]]
    kept: bool = False

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the services."""
        return {name: process.pid for name, process in self.processes.items()}

    def keep_running(self) -> None:
        """Leaves the services running when the context and this process end."""
        self.kept = True
        for process in self.processes.values():
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended
                process.stdin.write(b"k")
                process.stdin.close()
            process.returncode = 0  # a handle warns of a child that outlives it; these are meant to


@contextmanager
def start_services(experiment: Experiment, places: Addresses) -> Iterator[ServiceProcesses]:
    """Starts the services as child processes, which end with the context.

    Logs lie in folder/logs.
    """
    logs = experiment.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    children = ServiceProcesses({})
    try:
        settings = experiment.make_aggregator_settings(port=_url_port(places.aggregator))
        children.processes["aggregator"] = start_aggregator(settings, logs / "aggregator.log")
        for shard in experiment.shards:
            url = places.clients[shard.name]
            client = experiment.make_client_settings(shard, aggregator_url=places.aggregator, port=_url_port(url))
            children.processes[shard.name] = start_client(client, logs / f"{shard.name}.log")
        yield children
    finally:
        if not children.kept:
            stop_services(list(children.processes.values()))


@asynccontextmanager
async def connect_services(
    experiment: Experiment, places: Addresses, children: ServiceProcesses | None = None
) -> AsyncIterator[Federation]:
    """Opens connections to the processes, once all of them are ready.

    UnavailableError when one is not ready in time; at once where `children` show that it has ended.
    """
    started = {} if children is None else children.processes
    async with AsyncExitStack() as stack:
        operator = await _connect_service(stack, places.aggregator, experiment.token, started.get("aggregator"))
        clients = {
            name: await _connect_service(stack, url, experiment.operator_key, started.get(name))
            for name, url in places.clients.items()
        }
        yield Federation(operator, clients)


async def _connect_service(
    stack: AsyncExitStack, url: str, token: str, process: subprocess.Popen[bytes] | None
) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {token}"}
    # They train on all cores of this machine: an answer may well take longer than the five seconds that httpx waits.
    calling = httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False)
    http = await stack.enter_async_context(calling)
    await wait_until_ready(http, process)
    return http


def start_aggregator(settings: AggregatorSettings, log: Path, files: Path | None = None) -> subprocess.Popen[bytes]:
    """Starts an aggregator in a process that the caller ends.

    files: folder of another version of it, which gets only what is set: it may lack newer settings.
    """
    variables = _environment_variables("LPSFED_AGGREGATOR", settings)
    if files is not None:
        given = {f"LPSFED_AGGREGATOR_{name.upper()}" for name in settings.model_fields_set}
        variables = {name: value for name, value in variables.items() if name in given} | {"PYTHONPATH": str(files)}
    return _start_service("aggregator_service", variables, log, files)


def start_client(settings: ClientSettings, log: Path) -> subprocess.Popen[bytes]:
    """Starts a client with these settings, in a process that the caller ends."""
    return _start_service("client_service", _environment_variables("LPSFED_CLIENT", settings), log)


def _start_service(
    package: str, environment: dict[str, str], log: Path, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Starts a service in a process session of its own.

    A Ctrl-C at the terminal reaches the caller, which ends its children in order. If the caller is killed they end by
    themselves: it holds the other end of their standard input.
    """
    command = [sys.executable, "-m", package, ENDS_WITH_PARENT]
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            env=os.environ | environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def stop_services(started: list[subprocess.Popen[bytes]], patience: float = STOP_SECONDS) -> None:
    """Ends these processes, the last one started first.

    SIGKILL follows where one takes longer than `patience` seconds.
    """
    for process in reversed(started):
        process.terminate()
    for process in started:
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


async def wait_until_ready(http: httpx.AsyncClient, process: subprocess.Popen[bytes] | None) -> None:
    """Waits until a service is ready.

    Raises UnavailableError if it is not in time; at once where its process has ended.
    """
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process is not None and process.poll() is not None:
            raise UnavailableError(f"{http.base_url}: the service ended with code {process.returncode}; see its log")
        try:
            answer = await http.get("/health/ready")
            if (
                answer.is_success and answer.json().get("trainer") != "starting"
            ):  # the trainer answers the operator's requests
                return
        except httpx.TransportError:
            pass  # not listening yet
        await asyncio.sleep(0.05)
    raise UnavailableError(f"{http.base_url}: expected a ready service within {START_SECONDS:g} s; see its log")


def _environment_variables(prefix: str, settings: BaseModel) -> dict[str, str]:
    """Returns settings as environment variables for a child process.

    Secrets are included, a nested model is JSON.
    """
    names = type(settings).model_fields
    plain = {name: value for name, value in settings if name in names and value is not None}
    return {f"{prefix}_{name.upper()}": _variable_text(value) for name, value in plain.items()}


def _variable_text(value: object) -> str:
    if isinstance(value, BaseModel):
        return value.model_dump_json(exclude_unset=True)  # some say something by being there at all
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return json.dumps(value) if isinstance(value, tuple) else str(value)


def _url_port(url: str) -> int:
    return int(url.rpartition(":")[2])
