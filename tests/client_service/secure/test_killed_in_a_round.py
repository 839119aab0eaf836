"""A client that ends at any moment of a secure round: it starts again and sends the same, or the others do without it.

A kill is told to the disk alone: at that very moment the client's state directory is copied, and a new service starts
from the copy. What the old one does from then on reaches nobody.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI

from aggregator_service.app import create_app
from client_service.secure.vault import NAME
from simulation.experiment import Experiment
from tests.support.clock import LeapingClock

if TYPE_CHECKING:
    from conftest import Opened, Silos, Until

pytestmark = pytest.mark.anyio
URL = "http://127.0.0.1"
OWN = "/v1/runs/run-1/rounds/1/clients/client-1"
QUICK = [("GET roster", False), ("PUT update", True)]
CALLS = (
    "PUT keys",
    "GET roster",
    "PUT shares",
    "GET delivery",
    "PUT checks",
    "GET sharers",
    "PUT update",
    "GET request",
    "PUT consents",
    "GET signatures",
    "PUT answers",
)


class Killed(Exception):
    """The process is gone. Nobody catches this: it ends whatever the client does."""


@dataclass
class Line(httpx.AsyncBaseTransport):
    """A client's way to the aggregator of the moment, on which it dies before a call arrives or before its answer."""

    world: World
    dies_at: str = ""
    answered: bool = False
    dead: bool = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.dead:
            raise Killed
        chosen = f"{request.method} {request.url.path}" == self.dies_at
        if chosen and not self.answered:
            self._die()
        if self.world.app is None:
            raise httpx.ConnectError("the aggregator is away", request=request)
        answer = await httpx.ASGITransport(self.world.app).handle_async_request(request)
        if (chosen and answer.status_code != httpx.codes.NO_CONTENT) or (chosen and request.method == "PUT"):
            self._die()
        return answer

    def _die(self) -> None:
        self.dead = True
        shutil.copytree(self.world.state, self.world.grave)
        raise Killed


@dataclass
class World:
    """The aggregator of the moment, and where client-1 keeps its state."""

    state: Path
    grave: Path
    app: FastAPI | None = None
    operator: httpx.AsyncClient | None = None
    others: list[httpx.AsyncClient] = field(default_factory=list)

    async def history(self) -> dict[str, Any]:
        assert self.operator is not None
        found: dict[str, Any] = (await self.operator.get("/v1/runs/run-1")).json()
        return found


@pytest.fixture
def described(silos: Silos, small: Any, tmp_path: Path) -> Experiment:
    method = small.model_copy(update={"start": "random", "mlp_learning_rate": 0.01})
    one = Experiment(silos(4), tmp_path / "run", method, rounds=1, seed=5, device="cpu")
    return replace(one, secure=True)


Entered = Callable[..., Any]


@pytest.fixture
def entered(described: Experiment, opened: Opened, clock: LeapingClock, tmp_path: Path) -> Entered:
    """`async with entered(quorum=3) as world`: an aggregator, a run, and clients 2 to 4 in it."""

    @asynccontextmanager
    async def enter(**request: Any) -> AsyncIterator[World]:
        world = World(described.state_of(described.shards[0]), tmp_path / "grave" / "client-1")
        async with AsyncExitStack() as stack:
            world.app = app = create_app(described.make_aggregator_settings(), clock=clock)
            await stack.enter_async_context(app.router.lifespan_context(app))
            said = {"Authorization": f"Bearer {described.token}"}
            http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=URL, headers=said)
            world.operator = await stack.enter_async_context(http)
            for shard in described.shards[1:]:
                other = opened(described.make_client_settings(shard, aggregator_url=URL), Line(world))
                world.others.append(await stack.enter_async_context(other))
                world.others[-1].headers["Authorization"] = f"Bearer {described.operator_key}"
            asked = described.run_request().model_copy(update=request).model_dump(mode="json")
            assert (await http.post("/v1/runs", json=asked)).status_code == 201
            yield world

    return enter


async def ended(world: World, until: Until, *more: httpx.AsyncClient) -> dict[str, Any]:
    async def over() -> bool:
        found = [(await http.get("/v1/quality")).json() for http in (*world.others, *more)]
        return all(one["finished"] for one in found)

    await until(over)
    return await world.history()


async def killed(described: Experiment, opened: Opened, until: Until, line: Line) -> None:
    async def dead() -> bool:
        return line.dead

    settings = described.make_client_settings(described.shards[0], aggregator_url=URL)
    with suppress(Killed):
        async with opened(settings, line):
            await until(dead)


@pytest.mark.parametrize(
    ("call", "answered"),
    [
        pytest.param(call, answered, marks=() if (call, answered) in QUICK else pytest.mark.slow)
        for call in CALLS
        for answered in (False, True)
    ],
)
async def test_a_client_that_was_killed_goes_on_in_the_same_round(
    described: Experiment, entered: Entered, opened: Opened, until: Until, call: str, answered: bool
) -> None:
    async with entered() as world:
        method, name = call.split()
        line = Line(world, f"{method} {OWN}/{name}", answered)
        await killed(described, opened, until, line)
        kept = (world.grave / NAME).read_text()
        assert re.search('"phase":"(begun|sharing|checked|ready)"', kept)
        again = described.make_client_settings(described.shards[0], aggregator_url=URL)
        again = again.model_copy(update={"state_directory": world.grave})
        async with opened(again, Line(world)) as http:
            http.headers["Authorization"] = f"Bearer {described.operator_key}"
            history = await ended(world, until, http)
            assert (history["phase"], history["rounds"][0]["missing"]) == ("finished", [])
            assert not (world.grave / NAME).exists()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("PUT keys", marks=pytest.mark.slow),
        pytest.param("PUT shares", marks=pytest.mark.slow),
        pytest.param("PUT checks", marks=pytest.mark.slow),
        "PUT update",
        pytest.param("PUT consents", marks=pytest.mark.slow),
        pytest.param("PUT answers", marks=pytest.mark.slow),
    ],
)
async def test_the_others_do_without_a_client_that_stays_away(
    described: Experiment, entered: Entered, opened: Opened, until: Until, clock: LeapingClock, call: str
) -> None:
    async with entered(quorum=3) as world:
        method, name = call.split()
        await killed(described, opened, until, Line(world, f"{method} {OWN}/{name}"))
        step = "masked" if name == "update" else name

        async def alone() -> bool:
            [one] = (await world.history())["rounds"]
            return bool(one["secure"] and (one["secure"]["step"], one["secure"]["waiting_for"]) == (step, ["client-1"]))

        await until(alone)
        clock.ahead += described.run_request().deadline_seconds
        history = await ended(world, until)
        missing = [] if call in ("PUT consents", "PUT answers") else ["client-1"]
        assert (history["phase"], history["rounds"][0]["missing"]) == ("finished", missing)
