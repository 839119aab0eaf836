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
from aggregator_service.aggregation import computation, shared_sums
from aggregator_service.aggregation.shared_sums import SharedSum
from aggregator_service.app import create_app
from aggregator_service.rounds.round_loop import RoundLoop
from aggregator_service.storage.sum_blocks import BlockPlan
from shared.protocol.signing.enrolment import ensure_key_pair
from tests.support.aggregator import METHOD, Federation
from tests.support.federation import run_app
from tests.support.small import small_aggregator

if TYPE_CHECKING:
    from conftest import Place, Store

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("default")]
NAMES = ("client-0", "client-1")
Open = Callable[..., AbstractAsyncContextManager[Federation]]


FOLDER, BUCKET = "folder", "bucket"


@pytest.fixture
def bodies(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    in_a_bucket = getattr(request, "param", FOLDER) == BUCKET
    return str(request.getfixturevalue("store").url) if in_a_bucket else str(tmp_path / "bodies")


@pytest.fixture
def open_worker(tmp_path: Path, place: Place, bodies: str) -> Open:
    key = ensure_key_pair("aggregator", tmp_path).private
    common = {"blobs": bodies, "keys_directory": tmp_path / "registry", "signing_key_file": key}

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


@pytest.fixture
def held_sum(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Set when a sum begins; each sum goes on once the second one is set."""
    begun, goes_on, aggregate = threading.Event(), threading.Event(), computation.aggregate_round

    def wait(*given: Any) -> Any:
        begun.set()
        assert goes_on.wait(30)
        return aggregate(*given)

    monkeypatch.setattr(computation, "aggregate_round", wait)
    return begun, goes_on


async def test_clients_join_at_any_worker_while_a_sum_is_made(
    open_worker: Open, held_sum: tuple[threading.Event, threading.Event]
) -> None:
    begun, goes_on = held_sum
    async with open_worker("one") as one, open_worker("two") as two:
        clients = await one.begun(*NAMES)
        for client in clients:
            assert await client.sends(1, 2.0) == 201
        assert await to_thread.run_sync(begun.wait, 20)
        began = time.monotonic()
        for number, federation in enumerate((one, two), start=2):
            await federation.joined(f"client-{number}")
        assert time.monotonic() - began < 4.0
        goes_on.set()
        assert await clients[0].level(1) == 2.0
        for client in [two.client(f"client-{number}") for number in range(4)]:
            assert await client.sends(2, 3.0) == 201
        assert await clients[0].level(2) == 3.0


async def test_a_sum_that_a_quarantine_at_another_worker_made_wrong_is_dropped(
    open_worker: Open, held_sum: tuple[threading.Event, threading.Event], place: Place, tmp_path: Path
) -> None:
    begun, goes_on = held_sum
    async with open_worker("one") as one, open_worker("two") as two:
        clients = await one.begun(*NAMES, "client-2", quorum=2, rounds=1)
        for value, client in zip((1.0, 3.0, 100.0), clients, strict=True):
            assert await client.sends(1, value) == 201
        assert await to_thread.run_sync(begun.wait, 20)
        answer = await two.operate("POST", "/v1/clients/client-2/quarantine", json={"reason": "it lies"})
        assert answer.status_code == 201
        goes_on.set()
        assert await clients[0].level(1) == 2.0
        assert place.rows("select round from states") == [(1,)]
    named = {name for table in ("states", "updates") for (name,) in place.rows(f"select blob from {table}")}
    left = {one.name for one in (tmp_path / "bodies").iterdir()} - named
    assert len(left) <= 1  # the update of the client in quarantine stays for a while


@pytest.mark.parametrize("bodies", [FOLDER, BUCKET], indirect=True)
async def test_another_worker_takes_blocks_of_the_sum(
    open_worker: Open, bodies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader leaves all blocks of the first round to it, and takes part in those of the second."""
    leaves, taken = threading.Event(), []
    take_block = SharedSum.take_block

    def noted(self: SharedSum, plan: BlockPlan) -> bool:
        leads = self._blocks.leads
        took = take_block(self, plan) if not leads or leaves.is_set() else False
        taken.extend([(leads, plan.step, plan.round)] if took else [])
        return took

    monkeypatch.setattr(shared_sums, "LEAST_SHARED", 0)
    monkeypatch.setattr(SharedSum, "take_block", noted)
    async with open_worker("one") as one, open_worker("two") as two:
        clients = await one.begun(*NAMES, rounds=2)
        for value, client in zip((1.0, 3.0), clients, strict=True):
            assert await client.sends(1, value) == 201
        assert await clients[0].level(1) == await two.client(NAMES[0]).level(1) == 2.0
        steps = {"sum"} if bodies.startswith("s3:") else {"check", "sum"}
        assert {(False, step, 1) for step in steps} == set(taken)
        leaves.set()
        for client in clients:
            assert await client.sends(2, 4.0) == 201
        assert await clients[0].level(2) == 4.0


@pytest.mark.parametrize("bodies", [BUCKET], indirect=True)
async def test_an_object_that_another_has_replaced_is_asked_for_again(
    open_worker: Open, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found in the sum; the worker that had received it has lost its copy."""
    monkeypatch.setattr(shared_sums, "LEAST_SHARED", 0)
    async with open_worker("one") as one, open_worker("two") as two:
        clients = await one.begun(*NAMES, rounds=1)
        assert await clients[0].sends(1, 1.0) == 201
        (name,) = store.names()
        body = store.objects()[name]
        sound = body.get()["Body"].read()
        body.put(Body=sound[:-4] + bytes(4))
        for each in (one, two):
            (each.settings.state_directory / "blobs" / name).unlink(missing_ok=True)
        assert await two.client(NAMES[1]).sends(1, 3.0) == 201
        with anyio.fail_after(30):
            while await clients[0].sends(1, 1.0) != 201:
                await anyio.sleep(0.1)
        assert await clients[0].level(1) == await two.client(NAMES[1]).level(1) == 2.0


async def test_the_operator_sees_and_decides_the_same_at_each_worker(open_worker: Open) -> None:
    async with open_worker("one") as one, open_worker("two") as two:
        await one.joined(*NAMES)
        assert [row["client"] for row in (await two.operate("GET", "/v1/clients")).json()] == list(NAMES)
        (later,) = await one.joined("client-2")
        place = f"/v1/clients/{later.name}/quarantine"
        assert (await two.operate("POST", place, json={"reason": "it lies"})).status_code == 201
        assert (await one.operate("POST", place, json={"reason": "it lies"})).status_code == 409
        assert (await one.operate("DELETE", place)).status_code == 200


async def test_a_worker_holds_the_call_of_a_client_that_has_sent_again_to_another(open_worker: Open) -> None:
    """It learns of the update by a look, and of what comes next without one: the client asks once."""
    async with open_worker("one") as one, open_worker("two") as two:
        clients = await one.begun(*NAMES, rounds=1)
        place, there = f"/v1/clients/{NAMES[0]}/quarantine", two.client(NAMES[0])

        async def ask_anew() -> None:
            assert (await two.operate("POST", place, json={"reason": "a repair"})).status_code == 201
            assert (await two.operate("DELETE", place)).status_code == 200

        assert await clients[0].sends(1, 1.0) == 201
        await ask_anew()
        assert (await there.personalised(1, wait=0.0)).status_code == 409, "it has not sent again"
        assert await clients[0].sends(1, 2.0) == 201
        for wait in (0.0, 1.0):
            began = time.monotonic()
            assert (await there.personalised(1, wait=wait)).status_code == 204
            assert wait <= time.monotonic() - began < wait + 5.0
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await there.personalised(1, wait=25.0))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.sleep(0.5)
            assert answers == []
            await ask_anew()
            await until(lambda: len(answers) == 1)
        assert answers[0].status_code == 409, "its second update is gone too"
        assert await clients[0].sends(1, 3.0) == 201
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.sleep(0.5)
            began = time.monotonic()
            assert len(answers) == 1 and await clients[1].sends(1, 5.0) == 201
            await until(lambda: len(answers) == 2)
            assert time.monotonic() - began < 10.0
        assert answers[1].status_code == 200 and await there.level(1) == 4.0


async def test_what_a_client_sends_to_a_worker_that_has_not_met_it_is_on_record(open_worker: Open) -> None:
    async with open_worker("one") as one, open_worker("two") as two:
        await one.joined(NAMES[0])
        assert (await two.client(NAMES[0]).get("/v1/interactions")).status_code == 404
        assert [row["call"] for row in await one.arrivals()] == ["join", "other"]


async def test_a_worker_whose_clock_is_ahead_does_not_look_without_a_pause(
    open_worker: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline has passed by the clock of its rounds, and the round is not its own to end."""
    async with open_worker("one") as one, open_worker("two") as two:
        monkeypatch.setattr(round_loop(two), "_clock", lambda: time.time() + 7200)
        await until(lambda: round_loop(one).unready_reason is None)
        await one.begun(*NAMES)
        await until(lambda: round_loop(two).run is not None)
        workers, looked = round_loop(two).workers, []
        assert workers is not None and not workers.leads
        lead = workers.lead
        monkeypatch.setattr(workers, "lead", lambda: looked.append(1) or lead())
        await anyio.sleep(2.5)
        assert 1 <= len(looked) <= 5


async def test_a_worker_whose_clock_is_ahead_ends_no_round_early_and_refuses_nothing(open_worker: Open) -> None:
    """Deadlines are by the clock of the database."""
    async with open_worker("one", lambda: time.time() + 7200) as one, open_worker("two") as two:
        await until(lambda: round_loop(one).unready_reason is None and bool(round_loop(one).workers.leads))
        await two.begun(*NAMES, rounds=1)
        clients = [one.client(name) for name in NAMES]
        for client in clients:
            assert await client.sends(1, 2.0) == 201
        assert await two.client(NAMES[0]).level(1) == 2.0


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


async def test_a_receipt_wakes_the_worker_that_leads_and_no_other(open_worker: Open) -> None:
    async with open_worker("one") as one, open_worker("two") as two:
        loops = [round_loop(one), round_loop(two)]
        await until(lambda: any(found.workers.leads for found in loops))
        leader, other = sorted(loops, key=lambda found: not found.workers.leads)
        await anyio.sleep(0.3)  # until both have heard of the start
        before = leader.changes.count, other.changes.count
        other.announce_receipt()
        await until(lambda: leader.changes.count > before[0])
        assert other.changes.count == before[1]
