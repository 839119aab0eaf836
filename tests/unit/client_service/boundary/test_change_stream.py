"""Waits of a client by a stream: none is missed, none keeps it busy, and thousands do not come back at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from client_service.boundary.aggregator_api import SHORT_WAIT, Aggregator, connect
from client_service.boundary.change_stream import ChangeStream
from client_service.boundary.gate import Boundary
from client_service.boundary.ledger import Ledger
from client_service.boundary.retry_schedule import RetrySchedule
from client_service.federation.run_poll import RunPoll
from client_service.metrics import ClientMetrics
from shared.errors import UnavailableError
from shared.protocol.schemas import RunOut
from shared.protocol.signing.events import FederationEvent
from shared.protocol.signing.keys import new_key
from shared.timeouts import CallLimits
from tests.support.small import small_client

pytestmark = pytest.mark.anyio


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class Told:
    """A stream that tells of what is put into it; None: its end, an error: its loss."""

    def __init__(self, sequence: int = 5, spread: float = 0.0) -> None:
        self.sequence, self.beats, self.spread_seconds = sequence, 0, spread
        self.events: asyncio.Queue[FederationEvent | Exception | None] = asyncio.Queue()
        self.closed = False

    def tell(self, sequence: int, state: RunOut | None = None) -> None:
        self.events.put_nowait(
            FederationEvent(kind="change", stream="ab" * 16, sequence=sequence, clock=1.0, state=state)
        )

    async def next_change(self) -> FederationEvent | None:
        event = await self.events.get()
        if isinstance(event, Exception):
            raise event
        return event

    async def aclose(self) -> None:
        self.closed = True


def changes_of(*streams: Told, clock: Clock) -> tuple[ChangeStream, RetrySchedule]:
    """A client's changes, for which these streams are opened one after the other."""
    left = list(streams)

    async def open_stream(after: int) -> Any:
        del after
        return left.pop(0)

    schedule = RetrySchedule(1.0, clock=clock, sleep=clock.sleep, draw=lambda _, most: most)
    changes = ChangeStream(open_stream, schedule, clock=clock, draw=lambda _, most: most)
    changes.is_offered = True
    return changes, schedule


@pytest.mark.parametrize("ends", [None, UnavailableError("the stream was lost")], ids=["an end", "a loss"])
async def test_calls_after_an_end_wait_for_the_time_that_the_aggregator_has_named(ends: Exception | None) -> None:
    """Ten thousand clients, each with its own draw, come back over twenty seconds."""
    clock, stream = Clock(), Told(spread=20.0)
    changes, schedule = changes_of(stream, clock=clock)
    assert await changes.is_held(5)
    stream.events.put_nowait(ends)
    assert await changes.wait_for_change(5, 60.0) is None and changes.sequence is None and stream.closed
    await schedule.wait_turn("any call")
    assert clock.now == 1020.0


async def test_streams_that_end_soon_are_opened_ever_more_seldom_however_many_heart_beats_they_had() -> None:
    """Two heart-beats of a nanosecond's interval are none of a stream that works."""
    clock, streams = Clock(), [Told() for _ in range(4)]
    changes, _ = changes_of(*streams, clock=clock)
    pauses = []
    for stream in streams:
        began = clock.now
        while not await changes.is_held(5):
            clock.now += 1.0
        pauses.append(clock.now - began)
        stream.beats = 1000
        stream.events.put_nowait(None)
        await changes.wait_for_change(5, 60.0)
    assert pauses == [0.0, 10.0, 20.0, 40.0]


Answer = Callable[[str], int]


@asynccontextmanager
async def linked(
    folder: Path, changes: ChangeStream, schedule: RetrySchedule, answer: Answer
) -> AsyncIterator[Aggregator]:
    """The aggregator's API through the gate; answer: status of the answer to a path and query."""

    async def reply(request: httpx.Request) -> httpx.Response:
        return httpx.Response(answer(request.url.raw_path.decode().rpartition("/")[2]), stream=httpx.ByteStream(b""))

    settings = small_client(folder / "shard", folder)
    boundary = Boundary("north", httpx.URL("http://aggregator"), settings.declaration(), False, 1 << 20)
    inner, limits = httpx.MockTransport(reply), CallLimits(poll=1.0)
    async with connect(
        boundary, Ledger(folder / "ledger.jsonl"), new_key(), limits=limits, inner=inner, schedule=schedule
    ) as link:
        link.changes = changes
        yield link


async def test_a_client_waits_for_a_rounds_end_by_its_stream(tmp_path: Path) -> None:
    clock, stream, asked = Clock(), Told(), list[str]()
    changes, schedule = changes_of(stream, clock=clock)
    assert await changes.is_held(5)

    def answer(path: str) -> int:
        asked.append(path)
        return 204

    async with linked(tmp_path, changes, schedule, answer) as link:
        waiting = asyncio.create_task(link.fetch_personalised("run-1", 1, 20.0))
        await asyncio.sleep(0.1)
        assert asked == [f"personalized?wait={SHORT_WAIT:g}"] and not waiting.done()
        stream.tell(6)
        assert await waiting is None, "its caller asks again, at once"


async def test_a_change_during_a_poll_is_not_missed(tmp_path: Path) -> None:
    clock, stream = Clock(), Told()
    changes, schedule = changes_of(stream, clock=clock)
    assert await changes.is_held(5)

    def answer(path: str) -> int:
        del path
        stream.tell(6)  # the answer was made before it
        return 204

    async with asyncio.timeout(10.0), linked(tmp_path, changes, schedule, answer) as link:
        assert await link.fetch_personalised("run-1", 1, 1e6) is None


async def test_a_client_without_a_stream_waits_by_polls(tmp_path: Path) -> None:
    asked: list[str] = []
    changes, schedule = changes_of(clock=Clock())
    async with linked(tmp_path, changes, schedule, lambda path: asked.append(path) or 204) as link:
        assert await link.fetch_personalised("run-1", 1, 20.0) is None and asked == ["personalized?wait=20"]


async def test_a_wait_of_no_time_does_not_keep_the_client_busy(tmp_path: Path) -> None:
    """The setting wait_seconds may be as small as a user likes."""
    changes, schedule = changes_of(Told(), clock=Clock())
    settings, times = small_client(tmp_path / "shard", tmp_path, wait_seconds=1e-9, poll_seconds=0.0), 0
    async with linked(tmp_path, changes, schedule, lambda _: 500) as link:
        poll = RunPoll(link, settings, ClientMetrics())
        poll.record_done(RunOut(sequence=5))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                while (await poll.fetch()).sequence == 5:
                    times += 1
    assert times <= 10
