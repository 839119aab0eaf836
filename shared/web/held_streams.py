"""Answers that are held open for many callers, each for the price of its socket.

A request is read, checked and logged as every other one. Its answer's head is sent, and the connection then leaves the
HTTP server: no task, no state of HTTP and no middleware is kept for it. What is written to it afterwards is written in
chunks that were made once for all.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shared.errors import UnavailableError
from shared.web.connection_limits import LimitedConnection
from shared.web.request_bodies import CLOSE

HOLD = "hold_connection"  # in the state of a request's scope
MAY_HOLD = "may_hold_connection"
NO_ROOM = "expected fewer held answers than half of most_connections, in all and of an address: poll, or see there"
MOST_UNREAD = 64 << 10  # bytes that wait for a caller who does not read, beyond which the connection is closed
UNANSWERED_SECONDS = 60  # after which the system gives up a caller whose machine no longer answers
GOODBYE_SECONDS = 1.0  # for a caller by TLS to agree to the end: asyncio alone would wait for half a minute
INTERNET = (socket.AF_INET, socket.AF_INET6)
LAST_CHUNK = b"0\r\n\r\n"
# The caller must not use the connection for its next call, which is closed behind the end; nginx must not collect.
HEADERS = CLOSE | {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def encode_chunk(content: bytes) -> bytes:
    """Encodes a piece of an answer of unknown length (RFC 9112, 7.1)."""
    return b"%x\r\n%b\r\n" % (len(content), content)


class HeldConnection(asyncio.Protocol):
    """Connection whose answer is open, and which the HTTP server has given away.

    on_lost: called once when it has ended.
    """

    __slots__ = ("_limited", "_release", "_transport", "on_lost")

    def __init__(
        self, transport: asyncio.Transport, limited: LimitedConnection, release: Callable[[LimitedConnection], None]
    ) -> None:
        self._transport, self._limited, self._release = transport, limited, release
        self.on_lost: Callable[[], None] | None = None
        limited.is_evictable = is_never
        transport.set_write_buffer_limits(high=MOST_UNREAD)
        used = transport.get_extra_info("socket")
        if used is not None and used.family in INTERNET and hasattr(socket, "TCP_USER_TIMEOUT"):
            used.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * UNANSWERED_SECONDS)

    @property
    def has_read(self) -> bool:
        """Whether the system has taken everything that was written."""
        return self._transport.get_write_buffer_size() == 0

    def write(self, chunk: bytes) -> None:
        """Writes an encoded chunk; closes the connection of a caller who does not read."""
        if not self._transport.is_closing():
            self._transport.write(chunk)

    def end(self) -> None:
        """Ends the answer; a caller who has not read is cut off."""
        if self.has_read:
            self.write(LAST_CHUNK)
            self._transport.close()
            if self._transport.get_extra_info("ssl_object") is not None:
                asyncio.get_running_loop().call_later(GOODBYE_SECONDS, self._transport.abort)
        else:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Closes the connection: nothing may follow a request whose answer is open."""
        del data
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._release(self._limited)
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost()


def is_never() -> bool:
    """Tells that a held connection is closed for no other."""
    return False


class Hold(Protocol):
    """Function that takes a connection out of the HTTP server; None: it is lost already."""

    def __call__(self) -> HeldConnection | None: ...


def find_hold(scope: Scope) -> Hold | None:
    """Returns the function that holds a request's connection; None if it cannot be held.

    It needs a connection, and HTTP/1.1 for its chunks.
    """
    hold: Hold | None = scope.get("state", {}).get(HOLD)
    return hold if scope.get("http_version") == "1.1" else None


def require_room(scope: Scope) -> None:
    """Raises UnavailableError if too many answers are held already."""
    if not scope["state"][MAY_HOLD]():
        raise UnavailableError(NO_ROOM)


class HeldResponse(Response):
    """Answer that stays open.

    begin: gets the connection, to which it writes, and which it ends.
    """

    def __init__(self, media_type: str, hold: Hold, begin: Callable[[HeldConnection], None]) -> None:
        super().__init__(None, media_type=media_type, headers=HEADERS | {"Transfer-Encoding": "chunked"})
        del self.headers["content-length"]
        self._hold, self._begin = hold, begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if (held := self._hold()) is not None:
            self._begin(held)
