"""Calls wait for their turn: not for a long poll, not for news, and longer and longer while nobody answers."""

from __future__ import annotations

import httpx
import pytest

from client_service.boundary.retry_schedule import BURST, MOST_QUESTIONS, Pace, seconds_asked
from shared.errors import ConflictError, PrivacyError, UnavailableError
from shared.timeouts import AWAY_SECONDS, LONG_PAUSE_SECONDS, PAUSE_SECONDS
from tests.support.hasty import VirtualTime

pytestmark = pytest.mark.anyio
POLL, OTHER = "/v1/runs/current", "/v1/runs/run-1/model"


def most(_: float, bound: float) -> float:
    return bound


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


def paced(time: VirtualTime, least: float = 1.0) -> Pace:
    return Pace(least, clock=time.clock, sleep=time.sleep, draw=most)


async def test_a_question_without_news_waits_from_when_it_was_last_asked(time: VirtualTime) -> None:
    pace = paced(time)
    await pace.turn(POLL)
    time.now += 0.25
    pace.answered(POLL, news=False)
    await pace.turn(OTHER)
    assert time.slept == []
    await pace.turn(POLL)
    assert time.now == pytest.approx(1.0)


async def test_a_long_poll_is_followed_at_once(time: VirtualTime) -> None:
    pace = paced(time)
    for _ in range(100):
        await pace.turn(POLL)
        time.now += 20.0
        pace.answered(POLL, news=False)
    assert time.slept == []


async def test_news_are_followed_at_once_up_to_a_burst_which_an_update_gives_back(time: VirtualTime) -> None:
    pace = paced(time)
    for _ in range(int(BURST)):
        await pace.turn(POLL)
        pace.answered(POLL, news=True)
    assert time.slept == []
    await pace.turn(POLL)
    assert time.now == pytest.approx(1.0)
    pace.earned()
    await pace.turn(POLL)
    assert len(time.slept) == 1


async def test_failures_double_the_bound_up_to_a_cap_and_an_answer_ends_them(time: VirtualTime) -> None:
    pace = paced(time)
    bounds = [pace.failed() for _ in range(8)]
    assert bounds == [1.0, 2.0, 4.0, 8.0, 16.0, AWAY_SECONDS, AWAY_SECONDS, AWAY_SECONDS]
    await pace.turn(POLL)
    assert time.now == AWAY_SECONDS
    pace.answered(POLL, news=True)
    assert pace.failed() == PAUSE_SECONDS


async def test_the_jitter_is_full(time: VirtualTime) -> None:
    drawn: list[tuple[float, float]] = []
    pace = Pace(1.0, clock=time.clock, sleep=time.sleep, draw=lambda *bounds: drawn.append(bounds) or 0.0)  # type: ignore[func-returns-value]
    pace.failed()
    pace.failed()
    assert drawn == [(0.0, 1.0), (0.0, 2.0)]


async def test_after_a_refusal_the_pause_is_as_long_as_somebody_needs_to_change_something(time: VirtualTime) -> None:
    pace = Pace(1.0, clock=time.clock, sleep=time.sleep, draw=lambda least, _: least)
    pace.held_up(PrivacyError("another declaration"))
    await pace.turn(POLL)
    assert time.now == LONG_PAUSE_SECONDS
    pace.held_up(ConflictError("send one again"))
    await pace.turn(POLL)
    assert time.now == LONG_PAUSE_SECONDS + PAUSE_SECONDS


async def test_setbacks_grow_and_are_forgotten_once_all_goes_on(time: VirtualTime) -> None:
    pace = paced(time)
    waits = []
    for step in range(4):
        before = time.now
        if step == 3:
            pace.went_on()
        pace.held_up(UnavailableError("away"))
        await pace.turn(POLL)
        waits.append(time.now - before)
    assert waits == [1.0, 2.0, 4.0, 1.0]


async def test_without_a_least_time_nothing_waits_but_for_failures(time: VirtualTime) -> None:
    pace = paced(time, 0.0)
    for _ in range(100):
        await pace.turn(POLL)
        pace.answered(POLL, news=False)
    assert time.slept == []
    pace.failed()
    await pace.turn(POLL)
    assert time.now == 1.0


async def test_no_more_than_so_many_questions_are_remembered(time: VirtualTime) -> None:
    pace = paced(time)
    for number in range(10 * MOST_QUESTIONS):
        await pace.turn(f"/v1/runs/run-{number}/model")
    assert len(pace._turns) == MOST_QUESTIONS


@pytest.mark.parametrize(
    ("said", "seconds"), [("7", 7.0), ("", None), ("-1", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("٣", None)]
)
def test_retry_after_is_read_where_it_is_a_number_of_seconds(said: str, seconds: float | None) -> None:
    assert seconds_asked(httpx.Response(503, headers={"Retry-After": said.encode()})) == seconds
