"""Small silos for the tests of several packages, and the one event loop that they use."""

from __future__ import annotations

import gc
import math
import os
import sqlite3
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
import sqlalchemy
from fastapi.routing import _IncludedRouter
from httpx._config import DEFAULT_TIMEOUT_CONFIG, create_ssl_context

from aggregator_service.storage.engines.sqlite import PRAGMAS
from client_service.data.interaction_files import write_shard
from client_service.event_log.database import PRAGMAS as LOG_PRAGMAS
from client_service.settings import ClientSettings
from client_service.training.margins import TABLE_STEPS
from shared.method.settings import MethodSettings
from simulation.experiments.experiment import Experiment
from tests.support.clock import LeapingClock
from tests.support.federation import Federation, run_client, run_federation
from tests.support.given import Federate, Opened, Silos, Until
from tests.support.questions import LONGEST_SECONDS, wait_until
from tests.support.small import SMALL, small_aggregator, small_client

gc.disable()  # until the first test: what is collected and imported before lives to the end
for part in ("connect", "read", "write", "pool"):  # by default a call waits 5 s, which a busy machine may well need
    setattr(DEFAULT_TIMEOUT_CONFIG, part, LONGEST_SECONDS)


def trust_nobody(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    """A context without the public authorities, which take 20 ms to read: no test calls one of theirs."""
    named = trust_env and (os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"))
    if verify is True and cert is None and not named:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return create_ssl_context(verify, cert, trust_env)


httpx.create_ssl_context = httpx._transports.default.create_ssl_context = trust_nobody
BUILT = dict[int, list[tuple[Any, Any, Any]]]()
build_route = _IncludedRouter._build_effective_context


def build_route_once(router: _IncludedRouter, route: Any) -> Any:
    """What FastAPI makes of a route in an app, once for all apps that include it alike: thousands are made here.

    It takes a client 50 ms. Nothing of one app is in it but the overrides of dependencies, which no test uses.
    """
    given = replace(router.include_context, dependency_overrides_provider=None)
    made = BUILT.setdefault(id(route), [])
    for _, known, built in made:
        if known == given:
            return built
    built = build_route(_IncludedRouter(router.original_router, given), route)
    made.append((route, given, built))
    return built


_IncludedRouter._build_effective_context = build_route_once  # type: ignore[method-assign]
TESTS = Path(__file__).parent
BEGUN = set[Path]()
LONG = (  # files of tests that take longest, longest first: what two processes share ends with short ones
    "system/simulation/test_demo.py",
    "system/simulation/test_road_of_the_readme.py",
    "system/simulation/test_road_of_graphs.py",
    "system/client_service/boundary/test_stopping.py",
    "system/simulation/test_processes.py",
    "system/strategies/test_contributing.py",
)


class FailureLines:
    """Line of each failed test as soon as it has failed; pytest tells all of it at the end alone."""

    def __init__(self, terminal: Any) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = report.longreprtext.strip().rpartition("\n")[2] if crash is None else crash.message.partition("\n")[0]
            self._terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}): {why}", red=True)


@pytest.hookimpl(trylast=True)  # the terminal comes last
def pytest_configure(config: pytest.Config) -> None:
    """Tells of failures at once in the process that reports, not in its workers, which begin with other folders."""
    if getattr(config, "workerinput", {}).get("workerid") == "gw1":
        config.args.reverse()  # each of two workers compiles the half that the other one then finds compiled
    if not hasattr(config, "workerinput") and (terminal := config.pluginmanager.get_plugin("terminalreporter")):
        config.pluginmanager.register(FailureLines(terminal))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts long tests first, so that no worker begins one when the other ends; all workers have one order of files."""
    order = {TESTS / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: (order.get(item.path, len(order)), item.path))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What is imported by the first test of a file lives to the end: no collection looks through it again."""
    if item.path not in BEGUN:
        BEGUN.add(item.path)
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """No line of progress only because the machine is busy: what a command writes on stderr is compared."""
    for seconds in ("FIRST_SECONDS", "HEARTBEAT_SECONDS"):
        monkeypatch.setattr(f"simulation.progress.{seconds}", math.inf)


TABLES, SQLITE = "client_service.training.margins.TABLE_STEPS", "aggregator_service.storage.engines.sqlite.PRAGMAS"
EVENT_LOG = "client_service.event_log.database.PRAGMAS"
UNHURRIED = {
    "os.fsync": os.fsync,
    "client_service.runtime.memory.gc": gc,
    TABLES: TABLE_STEPS,
    SQLITE: PRAGMAS,
    EVENT_LOG: LOG_PRAGMAS,
}
HURRIED = {
    "os.fsync": lambda _: None,
    "client_service.runtime.memory.gc": SimpleNamespace(collect=gc.collect, freeze=lambda: None, unfreeze=lambda: None),
    TABLES: 10,
    SQLITE: tuple("synchronous=OFF" if pragma.startswith("synchronous") else pragma for pragma in PRAGMAS),
    EVENT_LOG: tuple("synchronous=OFF" if pragma.startswith("synchronous") else pragma for pragma in LOG_PRAGMAS),
}


@pytest.fixture(scope="module", autouse=True)
def hurry_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """In one process nothing waits for a disk, and popularity tables settle in a few steps where a service is tested.
    A client that gives memory back looks through what the test has made alone, and not through all modules.

    So it is for a service that the tests of a file share as well. Files of `processes` are left alone.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("processes") is None:
            for name, value in HURRIED.items():
                if name not in (TABLES, SQLITE) or TESTS / "unit" not in request.path.parents:
                    patch.setattr(name, value)
        yield


@pytest.fixture(autouse=True)
def hurry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that compares a run in this process with one in others is marked `processes`: both are left alone."""
    if request.node.get_closest_marker("processes") is not None:
        for name, value in UNHURRIED.items():
            monkeypatch.setattr(name, value)


@sqlalchemy.event.listens_for(sqlalchemy.Engine, "connect")
def hurry_database(connection: Any, _: object) -> None:
    """A database of another package, as that of a search, waits for the disk only where files do."""
    if os.fsync is not UNHURRIED["os.fsync"] and isinstance(connection, sqlite3.Connection):
        connection.execute("pragma synchronous=off")


@pytest.fixture
def clock() -> LeapingClock:
    return LeapingClock()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Of the session, so that tests of a file can share a service."""
    return "asyncio"


@pytest.fixture(scope="session")
def small() -> MethodSettings:
    return SMALL


@pytest.fixture
def silos(tmp_path: Path) -> Silos:
    """Folders of so many shards, client-1 and on."""
    return partial(_write_silos, tmp_path)


@pytest.fixture(scope="module")
def shared_silos(tmp_path_factory: pytest.TempPathFactory) -> Silos:
    """The same for the tests of a file that share their shards: none of them may change any."""
    return lambda count, **sizes: _write_silos(tmp_path_factory.mktemp("shared"), count, **sizes)


@pytest.fixture(scope="module")
def shared_settings(shared_silos: Silos) -> Callable[..., ClientSettings]:
    """Settings of one client, changed so, for a service that the tests of a file share."""

    def write(**changes: Any) -> ClientSettings:
        [shard] = shared_silos(1)
        return small_client(shard, shard.parents[1], **changes)

    return write


def _write_silos(place: Path, count: int, *, seed: int = 0, users: int = 16, items: int = 12) -> tuple[Path, ...]:
    """Write shards of two tastes: of the first items, and of the last ones."""
    folders = [place / "shards" / f"client-{number}" for number in range(1, count + 1)]
    for number, folder in enumerate(folders):
        write_shard(folder, folder.name, _pairs(seed + number, users, items), _titled(items))
    return tuple(folders)


def _pairs(seed: int, users: int, items: int) -> pl.DataFrame:
    """Each user has six items of its half: four to train on, one to validate and one to test."""
    rng, rows = np.random.default_rng(seed), []
    for user in range(users):
        half = np.arange(items // 2) + items // 2 * (user % 2)
        chosen = rng.permutation(half)[:6]
        for item, split in zip(chosen, ("train",) * 4 + ("valid", "test"), strict=True):
            rows.append((f"user-{user:02d}", f"item-{item:02d}", split))
    return pl.DataFrame(rows, schema=["user", "item", "split"], orient="row")


def _titled(items: int) -> pl.DataFrame:
    ids = [f"item-{item:02d}" for item in range(items)]
    return pl.DataFrame({"item": ids, "title": [f"Title of {item}" for item in ids]})


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not wait long before it tries again."""
    monkeypatch.setattr("client_service.boundary.retry_schedule.PAUSE_SECONDS", 0.02)
    monkeypatch.setattr("client_service.boundary.retry_schedule.LONGEST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr("client_service.boundary.retry_schedule.LONG_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("client_service.boundary.aggregator_api.ATTEMPTS", 1)
    monkeypatch.setenv("LPSFED_CLIENT_POLL_SECONDS", "0.02")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The folder of the public keys that an aggregator of the test knows."""
    return tmp_path / "keys"


@pytest.fixture
def opened(impatient: None, keys: Path) -> Opened:
    """`async with opened(settings) as http`: a client service, and its own API. By default no aggregator is there."""
    del impatient
    return lambda settings, outside=None: run_client(settings, keys, outside)


SECURE_CLIENT = {"trust_on_first_use": True, "aggregator_url": "http://127.0.0.1:1"}  # https, or loopback


@pytest.fixture
def federation(impatient: None, silos: Silos, keys: Path, clock: LeapingClock, tmp_path: Path) -> Federate:
    """`async with federation(2, strategy="fedavg") as running`: an aggregator and the settings of two clients.

    `first`: settings of the first client alone. None of them runs before it has entered.
    """
    del impatient

    def build(
        count: int, first: Mapping[str, Any] = MappingProxyType({}), **common: Any
    ) -> AbstractAsyncContextManager[Federation]:
        shards, settings = silos(count), small_aggregator(tmp_path / "aggregator", keys_directory=keys, **common)
        needs = SECURE_CLIENT if common.get("secure") else {}
        own = [small_client(one, tmp_path, **needs, **common, **(first if one == shards[0] else {})) for one in shards]
        return run_federation(settings, own, clock)

    return build


@pytest.fixture
def until() -> Until:
    """Look again and again whether something is so; a test in which it never is ends in time."""
    return wait_until


@pytest.fixture
def experiment(silos: Silos, small: MethodSettings, tmp_path: Path) -> Callable[..., Experiment]:
    """Two clients and two rounds, in a folder of that name."""

    def describe(name: str, *, seed: int = 0, strategy: str = "lpsfed") -> Experiment:
        folder, shards = tmp_path / name, silos(2)
        return Experiment(shards, folder, small, strategy=strategy, rounds=2, seed=seed, device="cpu")

    return describe
