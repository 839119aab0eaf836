"""While the aggregator is away or overloaded a client comes back less and less often, and never in step with others."""

from __future__ import annotations

from itertools import pairwise

import httpx
import pytest

from shared.timeouts import LONGEST_PAUSE_SECONDS
from tests.support.hasty import Answer, Attacked, after_the_join, entries_of, joined, problem, require_whole

pytestmark = pytest.mark.anyio
MOST_CALLS = 60  # on average one every 15 s, and some more at the beginning


def nobody_there(number: int, request: httpx.Request) -> httpx.Response:
    del number
    raise httpx.ConnectError("nobody listens", request=request)


def gone_after_the_join(number: int, request: httpx.Request) -> httpx.Response:
    return (joined(request) if number == 1 else None) or nobody_there(number, request)


def too_many_for(seconds: str) -> Answer:
    return after_the_join(lambda _: problem(429, "too-many", **{"Retry-After": seconds}))


OVERLOADED = after_the_join(lambda _: problem(503, "unavailable"))


@pytest.mark.parametrize("answer", [gone_after_the_join, OVERLOADED])
async def test_it_is_called_less_and_less_often_and_the_ledger_counts(attacked: Attacked, answer: Answer) -> None:
    way, state = await attacked(answer)
    assert way.calls.total() <= MOST_CALLS
    assert max(way.time.slept) <= LONGEST_PAUSE_SECONDS and max(way.time.slept[-10:]) > LONGEST_PAUSE_SECONDS / 4
    assert len(entries_of(state)) < 20
    require_whole(state)


async def test_a_join_that_nobody_takes_is_written_each_time_and_tried_seldom(attacked: Attacked) -> None:
    way, state = await attacked(nobody_there)
    assert way.calls.total() <= MOST_CALLS
    assert len(entries_of(state)) == 2 * way.calls.total() + 1  # the last one is cut off


async def test_two_clients_that_lose_it_in_the_same_moment_do_not_come_back_in_step(attacked: Attacked) -> None:
    moments = [
        {round(moment, 1) for moment in (await attacked(OVERLOADED, seed=seed))[0].moments[2:]} for seed in (1, 2)
    ]
    assert len(moments[0] & moments[1]) <= 3


@pytest.mark.parametrize(("seconds", "least"), [("20", 20.0), ("999999999", LONGEST_PAUSE_SECONDS)])
async def test_what_it_asks_for_is_heeded_within_bounds(attacked: Attacked, seconds: str, least: float) -> None:
    way, _ = await attacked(too_many_for(seconds))
    between = [after - before for before, after in pairwise(way.moments[1:])]
    assert len(between) >= 8 and min(between) >= least and max(between) < LONGEST_PAUSE_SECONDS + 1.0
