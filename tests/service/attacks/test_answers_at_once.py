"""An aggregator that never lets a client wait makes it neither call without pause nor fill its disk.

It answered long polls at once, and a client called 8,136 times in five minutes and wrote two lines each time.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from client_service.boundary.retry_schedule import BURST
from shared.protocol.schemas import RunOut
from tests.support.hasty import (
    LEAST,
    MINUTES_5,
    Attacked,
    after_the_join,
    entries_of,
    joined,
    problem,
    require_whole,
    said,
)
from tests.support.small import SMALL

pytestmark = pytest.mark.anyio
NOTHING_NEW = {
    "there is no run": lambda _: RunOut(sequence=7, joined=1),
    "two answers in turn": lambda number: RunOut(sequence=7, joined=number % 2),
    "only the time that is left": lambda number: RunOut(sequence=7, joined=1, seconds_left=1e6 - number),
}


def never_aggregated(number: int, request: httpx.Request) -> httpx.Response:
    """A round has closed, it says, and 204 to whoever asks what it gave."""
    del number
    if request.url.path.endswith("/personalized"):
        return httpx.Response(204, stream=httpx.ByteStream(b""))
    run: dict[str, Any] = {"run": "run-1", "phase": "open", "round": 2, "rounds": 5, "standing": "absent"}
    return joined(request) or said(RunOut(sequence=7, joined=1, method=SMALL, **run))


def always_a_conflict(number: int, request: httpx.Request) -> httpx.Response:
    if request.url.path.endswith("/personalized"):
        return problem(409, "conflict")
    return never_aggregated(number, request)


@pytest.mark.parametrize("kind", NOTHING_NEW)
async def test_a_question_that_brings_nothing_new_is_asked_once_a_second_and_counted(
    attacked: Attacked, kind: str
) -> None:
    way, state = await attacked(after_the_join(lambda number: said(NOTHING_NEW[kind](number))))
    assert way.calls["current"] <= MINUTES_5 / LEAST + 2
    entries = entries_of(state)
    assert len(entries) < 20 and sum(entry.get("n", 0) for entry in entries) > 250
    require_whole(state)


async def test_a_long_poll_for_a_round_s_parameters_is_too(attacked: Attacked) -> None:
    way, state = await attacked(never_aggregated)
    assert way.calls["personalized"] <= MINUTES_5 / LEAST + 2 and way.calls["current"] == 1
    assert len(entries_of(state)) < 20
    require_whole(state)


async def test_refusals_in_turn_with_answers_are_fewer_and_fewer(attacked: Attacked) -> None:
    way, state = await attacked(always_a_conflict)
    assert way.calls.total() < MINUTES_5 / LEAST / 4
    assert len(entries_of(state)) < 20
    require_whole(state)


async def test_news_without_end_are_followed_once_a_second_after_a_burst(attacked: Attacked) -> None:
    """An aggregator can make them up. Each is on the ledger by itself: it might be true."""
    way, state = await attacked(after_the_join(lambda number: said(RunOut(sequence=number, joined=1))))
    assert way.calls["current"] <= MINUTES_5 / LEAST + BURST + 1
    assert len(entries_of(state)) <= 2 * way.calls.total() + 1
    require_whole(state)
