"""uvicorn's connection -> one that nobody can hold open by saying nothing, or by not listening.

uvicorn limits the time between two requests alone. It waits for ever for the rest of a request's head, for whatever
is left of a body that was refused unread, and for a caller to take its answer. Bodies that are read have a limit of
their own: `shared.web.access.Timed`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from shared.timeouts import ANSWER_SECONDS, HEAD_SECONDS, UNREAD_SECONDS
from shared.web.raw_heads import STATE, Measured, RawHead

MOST_UNREAD = 2 << 20  # bytes of a body that go on coming after its refusal
SILENT = 2  # times as many connections as are answered may be open; beyond them nobody is even told so


class Connection(H11Protocol):
    """A clock runs while no request is under way; a byte does not set it back, and at its end the connection goes."""

    _late: asyncio.TimerHandle | None = None
    _unread = 0  # bytes of a refused body that may still come

    def __init__(self, config: Config, *arguments: Any, **others: Any) -> None:
        super().__init__(config, *arguments, **others)
        self.conn = Measured(config.h11_max_incomplete_event_size, self._note_head)

    def _note_head(self, size: int, names: tuple[str, ...]) -> None:
        """Where the request's state will be copied from in a moment."""
        peer = self.client[0] if self.client else None
        self.app_state = {**self.app_state, STATE: RawHead(size, names, peer)}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > SILENT * self.limit_concurrency:
            transport.abort()
        self._watch(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_refused_unread():
            self._unread -= len(data)
            if self._unread < 0:
                self.transport.close()
        self._watch(HEAD_SECONDS)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unread = MOST_UNREAD
        self._watch(UNREAD_SECONDS if self._is_refused_unread() else ANSWER_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _is_refused_unread(self) -> bool:
        """Is a body still coming in whose answer has gone out? Nobody reads it, but a caller whose sending is cut off
        at once would not come to read why: so it goes on for a moment, and up to so many bytes."""
        answered = self.cycle is not None and self.cycle.response_complete
        return answered and self.conn.their_state is h11.SEND_BODY

    def _watch(self, seconds: float) -> None:
        under_way = self.cycle is not None and not self.cycle.response_complete
        if under_way:
            self._unwatch()
        elif self._late is None or self._late.when() > self.loop.time() + seconds:
            self._unwatch()
            self._late = self.loop.call_later(seconds, self.transport.abort)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
