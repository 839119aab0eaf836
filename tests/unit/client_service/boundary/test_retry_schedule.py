"""Calls wait for their turn: not for a long poll, not for news, and longer and longer while nobody answers."""

from __future__ import annotations

import httpx
import pytest

from client_service.boundary.retry_schedule import BURST, MOST_QUESTIONS, RetrySchedule, read_retry_after
from shared.errors import ConflictError, PrivacyError, UnavailableError
from shared.timeouts import LONG_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, PAUSE_SECONDS
from tests.support.hasty import VirtualTime

pytestmark = pytest.mark.anyio
POLL, OTHER = "/v1/runs/current", "/v1/runs/run-1/model"


def most(_: float, bound: float) -> float:
    return bound


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


def paced(time: VirtualTime, least: float = 1.0) -> RetrySchedule:
    return RetrySchedule(least, clock=time.clock, sleep=time.sleep, draw=most)


async def test_a_question_without_news_waits_from_when_it_was_last_asked(time: VirtualTime) -> None:
    schedule = paced(time)
    await schedule.wait_turn(POLL)
    time.now += 0.25
    schedule.record_answer(POLL, news=False)
    await schedule.wait_turn(OTHER)
    assert time.slept == []
    await schedule.wait_turn(POLL)
    assert time.now == pytest.approx(1.0)


async def test_a_long_poll_is_followed_at_once(time: VirtualTime) -> None:
    schedule = paced(time)
    for _ in range(100):
        await schedule.wait_turn(POLL)
        time.now += 20.0
        schedule.record_answer(POLL, news=False)
    assert time.slept == []


async def test_news_are_followed_at_once_up_to_a_burst_which_an_update_gives_back(time: VirtualTime) -> None:
    schedule = paced(time)
    for _ in range(int(BURST)):
        await schedule.wait_turn(POLL)
        schedule.record_answer(POLL, news=True)
    assert time.slept == []
    await schedule.wait_turn(POLL)
    assert time.now == pytest.approx(1.0)
    schedule.reset_bursts()
    await schedule.wait_turn(POLL)
    assert len(time.slept) == 1


async def test_failures_double_the_bound_up_to_a_cap_and_an_answer_ends_them(time: VirtualTime) -> None:
    schedule = paced(time)
    bounds = [schedule.record_failed_call() for _ in range(8)]
    assert bounds == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]
    await schedule.wait_turn(POLL)
    assert time.now == LONGEST_PAUSE_SECONDS
    schedule.record_answer(POLL, news=True)
    assert schedule.record_failed_call() == PAUSE_SECONDS


async def test_the_jitter_is_full(time: VirtualTime) -> None:
    drawn: list[tuple[float, float]] = []
    schedule = RetrySchedule(1.0, clock=time.clock, sleep=time.sleep, draw=lambda *bounds: drawn.append(bounds) or 0.0)  # type: ignore[func-returns-value]
    schedule.record_failed_call()
    schedule.record_failed_call()
    assert drawn == [(0.0, 1.0), (0.0, 2.0)]


async def test_after_a_refusal_the_pause_is_as_long_as_somebody_needs_to_change_something(time: VirtualTime) -> None:
    schedule = RetrySchedule(1.0, clock=time.clock, sleep=time.sleep, draw=lambda least, _: least)
    schedule.record_failure(PrivacyError("another declaration"))
    await schedule.wait_turn(POLL)
    assert time.now == LONG_PAUSE_SECONDS
    schedule.record_failure(ConflictError("send one again"))
    await schedule.wait_turn(POLL)
    assert time.now == LONG_PAUSE_SECONDS + PAUSE_SECONDS


async def test_setbacks_grow_and_are_forgotten_once_all_goes_on(time: VirtualTime) -> None:
    schedule = paced(time)
    waits = []
    for step in range(4):
        before = time.now
        if step == 3:
            schedule.record_success()
        schedule.record_failure(UnavailableError("away"))
        await schedule.wait_turn(POLL)
        waits.append(time.now - before)
    assert waits == [1.0, 2.0, 4.0, 1.0]


async def test_without_a_least_time_nothing_waits_but_for_failures(time: VirtualTime) -> None:
    schedule = paced(time, 0.0)
    for _ in range(100):
        await schedule.wait_turn(POLL)
        schedule.record_answer(POLL, news=False)
    assert time.slept == []
    schedule.record_failed_call()
    await schedule.wait_turn(POLL)
    assert time.now == 1.0


async def test_no_more_than_so_many_questions_are_remembered(time: VirtualTime) -> None:
    schedule = paced(time)
    for number in range(10 * MOST_QUESTIONS):
        await schedule.wait_turn(f"/v1/runs/run-{number}/model")
    assert len(schedule._buckets) == MOST_QUESTIONS


@pytest.mark.parametrize(
    ("said", "seconds"), [("7", 7.0), ("", None), ("-1", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("٣", None)]
)
def test_retry_after_is_read_where_it_is_a_number_of_seconds(said: str, seconds: float | None) -> None:
    assert read_retry_after(httpx.Response(503, headers={"Retry-After": said.encode()})) == seconds
