"""Changes of the federation by a held stream; where it does not work, polls remain.

All waits of a client use it: for a run, for the end of a round, for the other clients' messages. Where the stream ends,
the next call waits for a time that is drawn from the one that the aggregator has named: so thousands of clients do not
come back at the same moment.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from client_service.boundary.event_stream import EventStream
from client_service.boundary.retry_schedule import RetrySchedule
from client_service.runtime.logs import LOGGER, describe_failure
from shared.errors import FederationError, UnavailableError
from shared.protocol.signing.events import FederationEvent
from shared.timeouts import STREAM_PAUSE_SECONDS

LONGEST_PAUSE = 3600.0  # seconds
WORKING_BEATS = 2  # heart-beats after which a stream counts as one that works, if it has lasted for long enough
WORKING_SECONDS = 10.0
MOST_DOUBLINGS = 16


class ChangeStream:
    """Stream that is held while the client lives, and read in the background.

    Without a heart-beat in time it is given up, which is logged once; it is opened again after a pause that grows with
    each failure, until it works. open_stream: opens one after a known change. is_offered: whether the aggregator has
    said that it holds streams.
    """

    def __init__(
        self,
        open_stream: Callable[[int], Awaitable[EventStream]],
        schedule: RetrySchedule,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._open_stream, self._schedule, self._clock, self._draw = open_stream, schedule, clock, draw
        self.is_offered = False
        self._reader: asyncio.Task[None] | None = None
        self._opened = -1  # the change that the stream began after
        self._latest: FederationEvent | None = None
        self._changed = asyncio.Event()
        self._failures, self._not_before = 0, 0.0

    async def is_held(self, after: int) -> bool:
        """Opens the stream unless it is open; returns whether it is.

        Where it is not, such as before the end of a pause, the caller polls. after: the change that the client knows.
        """
        if self.sequence is not None:
            return True
        if not self.is_offered or self._clock() < self._not_before:
            return False
        try:
            stream = await self._open_stream(after)
            if stream.sequence < after - 1:
                await stream.aclose()
                raise UnavailableError(f"expected change {after} or a later one, got an aggregator of another past")
        except FederationError as error:
            self._record_failure(error)
            return False
        self._opened, self._latest = stream.sequence, None
        self._reader = asyncio.create_task(self._read(stream))
        return True

    @property
    def sequence(self) -> int | None:
        """Last change that the held stream has told of; None without one."""
        if self._reader is None or self._reader.done():
            return None
        return self._opened if self._latest is None else self._latest.sequence

    async def wait_for_change(self, after: int, seconds: float) -> FederationEvent | None:
        """Waits for a change after the known one.

        None if none comes in time, or the stream ends.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._has_news(after) and self.sequence is not None:
                    self._changed.clear()
                    await self._changed.wait()
        return self._latest if self._has_news(after) else None

    async def close(self) -> None:
        """Gives the stream up."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader

    def _has_news(self, after: int) -> bool:
        return self._latest is not None and self._latest.sequence > after

    async def _read(self, stream: EventStream) -> None:
        """Reads changes until the aggregator ends the stream, or until it is lost."""
        began = self._clock()
        failure: Exception | None = None
        try:
            while (event := await stream.next_change()) is not None:
                self._latest = event
                self._changed.set()
            if not self._has_worked(stream, began):
                failure = UnavailableError("expected a stream that lasts, got its end soon after its beginning")
        except FederationError as error:
            failure = error
        finally:
            if self._has_worked(stream, began):
                self._failures = 0
            self._schedule.delay(self._draw(0.0, stream.spread_seconds))
            try:
                await stream.aclose()
            except OSError as error:  # of the disk: the ledger's entry is missing
                failure = UnavailableError(describe_failure(error))
            if failure is not None:
                self._record_failure(failure)
            self._changed.set()

    def _has_worked(self, stream: EventStream, began: float) -> bool:
        return stream.beats >= WORKING_BEATS and self._clock() - began >= WORKING_SECONDS

    def _record_failure(self, error: Exception) -> None:
        """Puts the next attempt off, and logs the first of several failures."""
        self._failures += 1
        if self._failures == 1:
            LOGGER.warning("stream_lost", reason=str(error), instead="polls")
        pause = min(LONGEST_PAUSE, STREAM_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, MOST_DOUBLINGS))
        self._not_before = self._clock() + self._draw(pause / 2, pause)
