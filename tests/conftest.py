"""Small silos for the tests of several packages, and the one event loop that they use."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import anyio
import httpx
import numpy as np
import polars as pl
import pytest

from client_service.app import create_app
from client_service.settings import ClientSettings
from client_service.shard import write_shard
from shared.errors import ConflictError
from shared.method.settings import AnchorSettings, MethodSettings
from shared.protocol.signing.enrolment import kept_pair, register
from simulation.experiment import Experiment

Silos = Callable[..., tuple[Path, ...]]
Opened = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
Until = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]
LONGEST_SECONDS = 120.0  # a bound alone: where much else runs everything takes long


class LeapingClock:
    """The aggregator's clock. A deadline passes when a test says so, not when the machine is busy."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead

    def pass_the_deadline(self) -> None:
        self.ahead += 7200.0


@pytest.fixture
def clock() -> LeapingClock:
    return LeapingClock()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def small() -> MethodSettings:
    """A model that trains in a hundredth of a second; every change of a round shows."""
    anchor = AnchorSettings(users=40, items=30, edges=200)
    return MethodSettings(width=4, layers=1, cutoff=12, batch_size=64, negatives=8, anchor=anchor)


@pytest.fixture
def silos(tmp_path: Path) -> Silos:
    """Folders of so many shards, client-1 and on. Two tastes: of the first items, and of the last ones."""

    def write(count: int, *, seed: int = 0, users: int = 16, items: int = 12) -> tuple[Path, ...]:
        folders = [tmp_path / "shards" / f"client-{number}" for number in range(1, count + 1)]
        for number, folder in enumerate(folders):
            write_shard(folder, folder.name, _pairs(seed + number, users, items), _titled(items))
        return tuple(folders)

    return write


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


class Unreachable(httpx.AsyncBaseTransport):
    """An aggregator that is not there."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody listens", request=request)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not wait long before it tries again."""
    monkeypatch.setattr("client_service.boundary.pace.PAUSE_SECONDS", 0.02)
    monkeypatch.setattr("client_service.boundary.pace.AWAY_SECONDS", 0.02)
    monkeypatch.setattr("client_service.boundary.pace.LONG_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("client_service.boundary.aggregator.ATTEMPTS", 1)
    monkeypatch.setenv("LPSFED_CLIENT_POLL_SECONDS", "0")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The folder of the public keys that an aggregator of the test knows."""
    return tmp_path / "keys"


@pytest.fixture
def opened(impatient: None, keys: Path) -> Opened:
    """`async with opened(settings) as http`: a client service, and its own API. By default no aggregator is there.

    It has a key of its own, which is registered unless its name has another one.
    """
    del impatient

    @asynccontextmanager
    async def run(
        settings: ClientSettings, outside: httpx.AsyncBaseTransport | None = None
    ) -> AsyncIterator[httpx.AsyncClient]:
        pair = kept_pair(settings.name, settings.state_directory)
        with suppress(ConflictError):
            register(pair.public, keys)
        app = create_app(settings, outside or Unreachable())
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://silo")
        async with app.router.lifespan_context(app), http:
            yield http

    return run


@pytest.fixture
def until() -> Until:
    """Look again and again whether something is so; a test in which it never is ends in time."""

    async def wait(holds: Callable[[], Awaitable[bool]]) -> None:
        with anyio.fail_after(LONGEST_SECONDS):
            while not await holds():
                await anyio.sleep(0.005)

    return wait


@pytest.fixture
def experiment(silos: Silos, small: MethodSettings, tmp_path: Path) -> Callable[..., Experiment]:
    """Two clients and two rounds, in a folder of that name."""

    def describe(name: str, *, seed: int = 0, strategy: str = "lpsfed") -> Experiment:
        folder, shards = tmp_path / name, silos(2)
        return Experiment(shards, folder, small, strategy=strategy, rounds=2, seed=seed, device="cpu")

    return describe
