"""Two workers in one process on one PostgreSQL: what one knows late, and what must not depend on it."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from anyio import to_thread

from aggregator_service import coordinator
from aggregator_service.app import create_app
from aggregator_service.rounds.round_loop import RoundLoop
from shared.protocol.signing.enrolment import ensure_key_pair
from tests.support.aggregator import METHOD, Federation
from tests.support.federation import run_app
from tests.support.small import small_aggregator

if TYPE_CHECKING:
    from conftest import Place

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("default")]
NAMES = ("client-0", "client-1")
Open = Callable[..., AbstractAsyncContextManager[Federation]]


@pytest.fixture
def open_worker(tmp_path: Path, place: Place) -> Open:
    key = ensure_key_pair("aggregator", tmp_path).private
    common = {"blobs": str(tmp_path / "bodies"), "keys_directory": tmp_path / "registry", "signing_key_file": key}

    @asynccontextmanager
    async def opened(name: str, clock: Callable[[], float] = time.time) -> AsyncIterator[Federation]:
        settings = small_aggregator(tmp_path / name, method=METHOD, database=place.url, shared=True, **common)
        app = create_app(settings, clock=clock)
        async with run_app(app, "http://aggregator") as http:
            yield Federation(app, http, settings, clock)

    return opened


def round_loop(federation: Federation) -> RoundLoop:
    found: RoundLoop = federation.app.state.coordinator.federation.round_loop
    return found


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not condition():
            await anyio.sleep(0.02)


async def test_a_client_that_joins_elsewhere_while_a_run_begins_takes_part(
    open_worker: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, joined, resolve = threading.Event(), threading.Event(), coordinator.resolve_request

    def wait(*given: Any) -> Any:
        begins.set()
        assert joined.wait(20)
        return resolve(*given)

    monkeypatch.setattr(coordinator, "resolve_request", wait)
    async with open_worker("one") as one, open_worker("two") as two:
        await one.joined(NAMES[0])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(one.start_run, rounds=1, clients=2))
            await to_thread.run_sync(begins.wait, 20)
            (client,) = await two.joined(NAMES[1])
            joined.set()
        assert await client.standing() == "expected"
        assert round_loop(one).run is not None and round_loop(one).run.phase == "open"


async def test_what_a_client_sends_to_a_worker_that_has_not_met_it_is_on_record(open_worker: Open) -> None:
    async with open_worker("one") as one, open_worker("two") as two:
        await one.joined(NAMES[0])
        assert (await two.client(NAMES[0]).get("/v1/interactions")).status_code == 404
        assert [row["call"] for row in await one.arrivals()] == ["join", "other"]


async def test_a_worker_whose_clock_is_ahead_does_not_look_without_a_pause(
    open_worker: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline has passed by its clock, and the round is not its own to end."""
    async with open_worker("one") as one, open_worker("two", lambda: time.time() + 7200) as two:
        await until(lambda: round_loop(one).unready_reason is None)
        await one.begun(*NAMES)
        await until(lambda: round_loop(two).run is not None)
        workers, looked = round_loop(two).workers, []
        assert workers is not None and not workers.leads
        lead = workers.lead
        monkeypatch.setattr(workers, "lead", lambda: looked.append(1) or lead())
        await anyio.sleep(2.5)
        assert 1 <= len(looked) <= 5


async def test_both_go_on_once_the_database_has_ended_all_sessions(open_worker: Open, place: Place) -> None:
    async with open_worker("one") as one, open_worker("two") as two:
        clients = await one.begun(*NAMES, rounds=1)
        assert await clients[0].sends(1, 1.0) == 201
        assert place.cut_off() > 2
        last = two.client(NAMES[1])
        with anyio.fail_after(30):
            while await _status(last) not in (200, 201):
                await anyio.sleep(0.1)
        assert await clients[0].level(1) == await last.level(1) == 2.0
        await until(lambda: round_loop(one).unready_reason is None and round_loop(two).unready_reason is None)


async def _status(client: Any) -> int:
    try:
        return int(await client.sends(1, 3.0))
    except httpx.TransportError:
        return 0
