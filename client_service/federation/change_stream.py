"""Changes of the federation by a held stream; where it does not work, polls remain."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress

from client_service.boundary.aggregator_api import Aggregator
from client_service.boundary.event_stream import EventStream
from client_service.runtime.logs import LOGGER, describe_failure
from shared.errors import FederationError, UnavailableError
from shared.protocol.signing.events import FederationEvent
from shared.timeouts import STREAM_PAUSE_SECONDS

LONGEST_PAUSE = 3600.0  # seconds
WORKING_BEATS = 2  # heart-beats after which a stream counts as one that works
MOST_DOUBLINGS = 16


class ChangeStream:
    """Stream that is held while the client lives, and read in the background.

    Without a heart-beat in time it is given up, which is logged once; it is opened again after a pause that grows with
    each failure, until it works.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._aggregator, self._clock, self._draw = aggregator, clock, draw
        self._reader: asyncio.Task[None] | None = None
        self._latest: FederationEvent | None = None
        self._changed = asyncio.Event()
        self._failures, self._not_before = 0, 0.0

    async def is_held(self, after: int) -> bool:
        """Opens the stream unless it is open; returns whether it is.

        Where it is not, such as before the end of a pause, the caller polls. after: the change that the client knows.
        """
        if self._reader is not None and not self._reader.done():
            return True
        if not self._aggregator.offers_stream or self._clock() < self._not_before:
            return False
        try:
            stream = await self._aggregator.open_stream(after)
            if stream.sequence < after - 1:
                await stream.aclose()
                raise UnavailableError(f"expected change {after} or a later one, got an aggregator of another past")
        except FederationError as error:
            self._record_failure(error)
            return False
        self._latest = None
        self._reader = asyncio.create_task(self._read(stream))
        return True

    async def wait_for_change(self, after: int, seconds: float) -> FederationEvent | None:
        """Waits for a change after the known one.

        None if none comes in time, or the stream ends.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._has_news(after) and self._reader is not None and not self._reader.done():
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
        failure: Exception | None = None
        try:
            while (event := await stream.next_change()) is not None:
                self._latest = event
                self._changed.set()
            if stream.beats < WORKING_BEATS:
                failure = UnavailableError("expected a stream that lasts, got its end soon after its beginning")
        except FederationError as error:
            failure = error
        finally:
            if stream.beats >= WORKING_BEATS:
                self._failures = 0
            try:
                await stream.aclose()
            except OSError as error:  # of the disk: the ledger's entry is missing
                failure = UnavailableError(describe_failure(error))
            if failure is not None:
                self._record_failure(failure)
            self._changed.set()

    def _record_failure(self, error: Exception) -> None:
        """Puts the next attempt off, and logs the first of several failures."""
        self._failures += 1
        if self._failures == 1:
            LOGGER.warning("stream_lost", reason=str(error), instead="polls")
        pause = min(LONGEST_PAUSE, STREAM_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, MOST_DOUBLINGS))
        self._not_before = self._clock() + self._draw(pause / 2, pause)
