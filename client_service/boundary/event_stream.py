"""Stream of the federation's events, each verified before anything of it is used.

Nothing but the request of the stream leaves the client. What a man in the middle can do to the events is withhold
them, for no longer than heart-beats may be late: their clock must go on as this client's. What an aggregator can do is
send: events are read one after the other, EVENT_SECONDS apart, and a stream of more bytes than changes need is ended.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable

import httpx

from shared.errors import UnavailableError
from shared.protocol.signing.events import END, EVENT_SECONDS, LONGEST_EVENT, FederationEvent, read_event
from shared.protocol.signing.keys import PublicKey, public_key
from shared.timeouts import BEAT_SECONDS, LOST_BEATS

MOST_BYTES = 2 << 20  # that may come at once; a change has some 3,000
BYTES_A_SECOND = 32 << 10  # that may come beside them for as long as the stream lasts
PIECE_BYTES = 512  # for which each piece counts beside its own bytes: to read a tiny one costs as much as a large one
KeyOf = Callable[[str], PublicKey]


class EventStream:
    """Answer that is held open by the aggregator.

    trusted_key: returns the key that must sign the events, for the key that the first one names; None: that one itself.
    request: the signature of the request. ended: called once with the bytes and the sha256 of all that came.
    sequence: of the last change that this stream has told of. beats: heart-beats so far. spread_seconds: time over
    which all clients are to come back after an end.
    """

    def __init__(
        self,
        answer: httpx.Response,
        request: str,
        trusted_key: KeyOf | None,
        ended: Callable[[int, str], None],
        *,
        after: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._answer, self._request, self._trusted_key, self._ended = answer, request, trusted_key, ended
        self._parts: AsyncIterator[bytes] = answer.aiter_raw()
        self._clock, self._buffer, self._searched = clock, bytearray(), 0
        self._hash, self._size = hashlib.sha256(), 0
        self._key: PublicKey | None = None
        self._stream, self._offset = "", 0.0
        self._patience = BEAT_SECONDS  # for the first event, which comes at once
        self._after, self._newest_beat = after, 0.0
        self._next_read = 0.0
        self._allowed, self._counted = float(MOST_BYTES), clock()
        self.sequence, self.beats, self.spread_seconds = -1, 0, 0.0
        self._announced = -1  # the last change of which the first event tells

    async def open(self) -> None:
        """Reads the first event, which must answer this very request.

        Raises UnavailableError if it does not, or if a proxy keeps it back.
        """
        content = await self._next_content()
        if content is None:
            raise UnavailableError("expected an event that opens the stream, got the end of the answer")
        first = read_event(content)
        if first.kind != "opened" or first.request != self._request or first.aggregator is None:
            raise UnavailableError("expected an event that opens this stream, got another")
        own = first.aggregator
        self._key = public_key(bytes.fromhex(own)) if self._trusted_key is None else self._trusted_key(own)
        read_event(content, self._key)
        self._stream, self._offset, self._newest_beat = first.stream, first.clock - self._clock(), first.clock
        self._patience = LOST_BEATS * (first.beat_seconds or BEAT_SECONDS)
        self._announced = first.sequence
        # Of the change that has just been, the aggregator tells again where the client asks after another.
        self.sequence = first.sequence if self._after == first.sequence else first.sequence - 1

    async def next_change(self) -> FederationEvent | None:
        """Waits for the next change; None if the aggregator has ended the stream.

        Raises UnavailableError if no event comes in time, for an event that does not belong here, and for an end
        before the change that the first event announces: a proxy may end each answer there.
        """
        while (content := await self._next_content()) is not None:
            event = read_event(content, self._key)
            if event.stream != self._stream:
                raise UnavailableError("expected an event of this stream, got one of another")
            self.spread_seconds = event.spread_seconds or 0.0
            if event.kind == "beat":
                self._require_present(event)
                if event.sequence == self.sequence:
                    continue
            if event.kind == "opened" or event.sequence <= self.sequence:
                raise UnavailableError("expected a later change, got one that has been")
            self.sequence = event.sequence
            return event  # a heart-beat with a later number tells of a change that was kept back
        if self.sequence < self._announced:
            raise UnavailableError(f"expected change {self._announced}, got the end of the answer")
        return None

    async def aclose(self) -> None:
        """Closes the connection, and records what has come."""
        ended, self._ended = self._ended, _do_nothing
        ended(self._size, self._hash.hexdigest())
        await self._answer.aclose()

    def _require_present(self, beat: FederationEvent) -> None:
        """Raises UnavailableError for a heart-beat of another time."""
        if beat.clock <= self._newest_beat or self._clock() + self._offset - beat.clock > self._patience:
            raise UnavailableError("expected a heart-beat of this moment, got an earlier one")
        self._newest_beat, self.beats = beat.clock, self.beats + 1

    async def _next_content(self) -> bytes | None:
        """Reads one event; None at the orderly end of the answer."""
        await asyncio.sleep(max(0.0, self._next_read - self._clock()))
        self._next_read = self._clock() + EVENT_SECONDS
        try:
            async with asyncio.timeout(self._patience):
                while (found := self._buffer.find(END, self._searched)) < 0:
                    if len(self._buffer) > LONGEST_EVENT:
                        raise UnavailableError("expected an event of the federation, got a longer one")
                    part = await anext(self._parts, None)
                    if part is None:
                        return None
                    self._hash.update(part)
                    self._size += len(part)
                    self._searched = max(0, len(self._buffer) - 1)
                    self._buffer += part
                    self._require_allowed(len(part))
        except TimeoutError:
            raise UnavailableError(f"expected an event within {self._patience:g} s, got none") from None
        except httpx.TransportError as lost:
            raise UnavailableError(f"the stream was lost: {type(lost).__name__}") from None
        content = bytes(self._buffer[: found + len(END)])
        del self._buffer[: found + len(END)]
        self._searched = 0
        return content

    def _require_allowed(self, size: int) -> None:
        """Raises UnavailableError for more bytes, or pieces, than a federation's changes need."""
        now = self._clock()
        self._allowed = min(MOST_BYTES, self._allowed + (now - self._counted) * BYTES_A_SECOND) - size - PIECE_BYTES
        self._counted = now
        if self._allowed < 0.0:
            raise UnavailableError(f"expected a stream of at most {BYTES_A_SECOND} bytes a second, got more")


def _do_nothing(size: int, digest: str) -> None:
    del size, digest
