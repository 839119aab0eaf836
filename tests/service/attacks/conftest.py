"""Genuine clients of an aggregator that lies to them, or keeps one busy in a time of their own; and secure runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from client_service.boundary import aggregator_api, retry_schedule
from client_service.boundary.retry_schedule import RetrySchedule
from client_service.federation.training_run import TrainingRun
from shared import timeouts
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.protocol.schemas import GraphBounds
from simulation.experiments.experiment import Experiment
from tests.support.hasty import LEAST, Answer, Attacked, Hasty, VirtualTime
from tests.support.liar import Liar
from tests.support.misled import MOVING, Mislead, Misled, make_liar, members_of, settings_of
from tests.support.neighbours import force_graph
from tests.support.questions import LONGEST_SECONDS
from tests.support.small import small_client

if TYPE_CHECKING:
    from conftest import Opened, Silos


@pytest.fixture
def attacked(silos: Silos, tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> Attacked:
    """It follows for five minutes; its way to the aggregator and its state after that."""
    (shard,) = silos(1)
    for name in ("PAUSE_SECONDS", "LONGEST_PAUSE_SECONDS", "LONG_PAUSE_SECONDS"):
        monkeypatch.setattr(retry_schedule, name, getattr(timeouts, name))
    monkeypatch.setattr(aggregator_api, "ATTEMPTS", timeouts.ATTEMPTS)

    async def follow(answer: Answer, *, seed: int = 0) -> tuple[Hasty, Path]:
        time, state = VirtualTime(), tmp_path / f"state-{seed}"
        own = {"clock": time.clock, "sleep": time.sleep, "draw": random.Random(seed).uniform}
        monkeypatch.setattr(aggregator_api, "RetrySchedule", partial(RetrySchedule, **own))
        way, settings = Hasty(time, answer), small_client(shard, tmp_path, state_directory=state, poll_seconds=LEAST)
        async with opened(settings, way), asyncio.timeout(LONGEST_SECONDS):
            await way.over.wait()
        return way, state

    return follow


@pytest.fixture
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> GraphBounds | None:
    """Bounds of the graph of neighbours that `mislead` and `secure_run` announce: see BOTH_GRAPHS."""
    return force_graph(monkeypatch) if getattr(request, "param", "everybody") == "drawn" else None


@pytest.fixture
def mislead(
    silos: Silos, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: GraphBounds | None
) -> Mislead:
    """`async with mislead(4, Kind, ...) as clients`: so many follow a liar of that kind until the context ends.

    `client`: settings of each client; what else is said is the liar's. The silos of a secure run have exchanged keys.
    """

    monkeypatch.setenv("LPSFED_CLIENT_POLL_SECONDS", "0")  # a liar begins anew as soon as a sum is there

    @asynccontextmanager
    async def follow(
        count: int, kind: type[Liar] = Liar, *, client: dict[str, object] | None = None, **how: object
    ) -> AsyncIterator[Misled]:
        shards, folder = silos(count), tmp_path / "state"
        liar = make_liar(**({"names": [shard.name for shard in shards], "kind": kind, "bounds": bounds} | how))
        pinned = {"members": members_of(liar, shards, folder)} if liar.declaration.secure else {}
        async with AsyncExitStack() as stack:
            clients = {}
            for shard in shards:
                settings = settings_of(liar, shard, folder, **(pinned | (client or {})))
                service = opened(settings, liar.transport(shard.name))
                clients[shard.name] = await stack.enter_async_context(service)
            yield Misled(liar, clients)

    return follow


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int, str], Parameters]:
    """Every update that a client has trained, by run, round and client, whatever became of it."""
    found, fit = {}, TrainingRun.fit

    def note(part: TrainingRun, strategy: Any, moment: Any, received: Any) -> Any:
        update, seconds = fit(part, strategy, moment, received)
        found[part.place.run, moment.round, part.place.client] = update
        return update, seconds

    monkeypatch.setattr(TrainingRun, "fit", note)
    return found


@pytest.fixture
def secure_run(
    silos: Silos, small: MethodSettings, tmp_path: Path, bounds: GraphBounds | None
) -> Callable[[int], Experiment]:
    """A secure run of one round with so many clients."""

    def describe(count: int) -> Experiment:
        method = small.model_copy(update=MOVING)
        one = Experiment(silos(count), tmp_path / "run", method, rounds=1, device="cpu")
        shares = {} if bounds is None else bounds.model_dump()
        return replace(one, secure=True, **shares)

    return describe
