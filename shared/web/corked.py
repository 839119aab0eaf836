"""Pieces of an answer that are written in one turn of the event loop -> one call of the system, not one for each."""

from __future__ import annotations

import asyncio
from typing import Any

MOST = 64 << 10  # bytes that wait for the end of the turn


class CorkedTransport:
    """A transport whose small writes leave together. All else is as the transport itself has it."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._waiting: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Leave with what else is written in this turn; at once where that has become much, so that a caller who does
        not listen holds the sender up as by the transport itself."""
        if not data:
            return
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)
        self._size += len(data)
        if self._size > MOST:
            self._flush()

    def close(self) -> None:
        """What was written leaves first."""
        self._flush()
        self._transport.close()

    def write_eof(self) -> None:
        """What was written leaves first; what comes can still be read."""
        self._flush()
        self._transport.write_eof()

    def abort(self) -> None:
        """What was written and has not left is dropped."""
        self._take()
        self._transport.abort()

    def _flush(self) -> None:
        data = self._take()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _take(self) -> bytes:
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._size = 0
        return data
