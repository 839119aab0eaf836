"""Faults that last: the run goes on without that client or fails with a reason, and the client's own API answers."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from shared.protocol.schemas import RunHistoryOut
from tests.support.clock import LeapingClock
from tests.system.faults.federation import LONGEST_SECONDS, Disturbed, Ending, read
from tests.system.faults.proxy import Fault

if TYPE_CHECKING:
    from conftest import Federation, LeapingClock

pytestmark = pytest.mark.anyio
BLACK_HOLE = Fault(end="silence", way="request")
HALF_OPEN = Fault(end="silence", way="answer")
LOST = "client-3"
SHORT_SECONDS = 5.0  # of a phase that has to last until its deadline


@asynccontextmanager
async def answering(running: Disturbed, client: str) -> AsyncIterator[None]:
    """The client's own API answers all the while: life, status, and a list of recommendations."""
    http, asked = running.silos[client], 0
    key = {"Authorization": f"Bearer {running.experiment.application_key}"}

    async def ask() -> None:
        nonlocal asked
        while True:
            assert await read(http, "/health/live") == {"status": "live"}
            assert (await running.status(client)).client == client
            answer = await http.get("/v1/users/user-01/recommendations", headers=key)
            assert answer.status_code == 200 and answer.json()["items"], answer.text
            asked += 1
            await anyio.sleep(0.1)

    async with anyio.create_task_group() as asking:
        asking.start_soon(ask)
        yield
        asking.cancel_scope.cancel()
    assert asked > 1


async def until_shown(running: Disturbed, client: str, problem: str) -> None:
    while problem not in ((await running.status(client)).problem or ""):
        await anyio.sleep(0.05)


async def until_received(running: Disturbed, number: int, updates: int) -> None:
    def received(history: RunHistoryOut) -> int:
        return sum(part.received for one in history.rounds if one.number == number for part in one.participants)

    while received(await running.history()) < updates:
        await anyio.sleep(0.05)


async def until_over(running: Disturbed) -> None:
    while (await running.history()).phase not in ("finished", "failed"):
        await anyio.sleep(0.05)


@pytest.mark.slow
async def test_a_round_closes_at_the_deadline_with_its_quorum(federation: Federation, clock: LeapingClock) -> None:
    with anyio.fail_after(LONGEST_SECONDS):
        async with federation(clock) as running:
            running.proxies[LOST].aim("/v1/runs/", BLACK_HOLE, times=math.inf)
            await running.begin(quorum=2)
            async with answering(running, LOST):
                for number in (1, 2):
                    await until_received(running, number, 2)
                    clock.pass_the_deadline()
                await running.ended("client-1", "client-2")
                await until_shown(running, LOST, "the aggregator cannot be reached: ReadTimeout")
            history = await running.history()
            assert (history.phase, [one.missing for one in history.rounds]) == ("finished", [(LOST,)] * 2)
            assert len(running.proxies[LOST].spoilt) > 1


@pytest.mark.slow
async def test_without_a_quorum_the_run_fails_at_the_deadline_and_says_who_is_missing(federation: Federation) -> None:
    with anyio.fail_after(LONGEST_SECONDS):
        async with federation() as running:
            running.proxies[LOST].aim("/update ", BLACK_HOLE, times=math.inf)
            await running.begin(rounds=1, deadline_seconds=SHORT_SECONDS)
            async with answering(running, LOST):
                await running.ended()
            history = await running.history()
            assert history.phase == "failed" and history.rounds[0].missing[-1] == LOST
            told = r"round 1: [012] of 3 updates at the deadline, missing .*client-3"
            assert re.fullmatch(told, history.reason or "")
            ends = [(await running.quality(name)).failure for name in running.silos]
            assert ends == ["the aggregator ended the run as failed"] * 3


@pytest.mark.slow
async def test_a_run_that_a_client_never_reaches_fails_before_its_first_round(
    federation: Federation, clock: LeapingClock
) -> None:
    with anyio.fail_after(LONGEST_SECONDS):
        async with federation(clock) as running:
            running.proxies[LOST].aim("", BLACK_HOLE, times=math.inf)
            await running.begin()
            async with answering(running, LOST):
                while len(await running.arrivals()) < 2:
                    await anyio.sleep(0.05)
                clock.pass_the_deadline()
                await until_over(running)
                await until_shown(running, LOST, "the aggregator cannot be reached: ReadTimeout")
            history = await running.history()
            assert (history.phase, history.reason) == ("failed", "2 of 3 clients had joined at the deadline")
            assert (await running.status(LOST)).phase == "joining"
            assert LOST not in {one.client for one in await running.arrivals()}


@pytest.mark.slow
async def test_clients_that_nothing_reaches_for_a_while_end_as_if_nothing_had_been(
    federation: Federation, undisturbed: dict[str, Ending]
) -> None:
    with anyio.fail_after(LONGEST_SECONDS):
        async with federation() as running:
            for proxy, call in zip(running.proxies.values(), ("/update ", "/personalized", "/model "), strict=True):
                proxy.aim(call, HALF_OPEN, times=math.inf)
            await running.begin()
            async with answering(running, LOST):
                for name, proxy in running.proxies.items():
                    await until_shown(running, name, "the aggregator cannot be reached: ReadTimeout")
                    proxy.heal()
                assert await running.ended() == undisturbed
            assert (await running.audited()).held
