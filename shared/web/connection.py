"""HTTP connection that closes when the caller sends or reads too slowly.

uvicorn limits only the time between two requests. It waits without end for the rest of a request's head, for the rest
of a refused body, and for a caller that does not read its answer. Bodies that are read have their own limit:
`shared.web.middleware.BodyTimeout`. uvicorn also counts connections only after the TLS handshake.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from asyncio import sslproto
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from shared.errors import UnavailableError
from shared.timeouts import ANSWER_SECONDS, HANDSHAKE_SECONDS, HEAD_SECONDS, UNREAD_SECONDS
from shared.web.connection_limits import MARK_TRUSTED, ConnectionLimiter, LimitedConnection
from shared.web.held_streams import HOLD, MAY_HOLD, HeldConnection
from shared.web.plain_requests import AnswerAtOnce, PlainCycle, describe_request, read_plain, write_plain
from shared.web.problems import CODES, SOON, problem_response
from shared.web.raw_heads import STATE, MeasuredConnection, RawHead
from shared.web.request_bodies import CLOSE

LONGEST_HEAD = 32 << 10  # bytes of a request's first line and headers
NO_ROOM = "expected a free connection, got a full port: try again later, or see most_connections"
NO_HTTP = "expected an HTTP/1.1 request, got other data"
TOO_LONG = f"expected a head of at most {LONGEST_HEAD} bytes, got a longer one"
MOST_WAITING = 64 << 10  # bytes written that wait for the end of the turn of the event loop
CLOCK_TOLERANCE = 0.01  # seconds by which a timer may fire early
MOST_UNREAD = 2 << 20  # bytes of a refused body that are discarded before the connection closes
# asyncio sets so many bytes aside for each connection by TLS; by itself 256 KiB, a gigabyte for four thousand callers
# who say nothing. A record of TLS has at most 16.
sslproto.SSLProtocol.max_size = 32 << 10


class BufferedTransport:
    """Transport that sends small writes together, at the end of the event loop's turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._waiting: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Buffers data until the end of the turn; sends at once beyond MOST_WAITING bytes.

        Beyond that size a slow reader slows the writer down, as with the transport itself.
        """
        if not data:
            return
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)
        self._size += len(data)
        if self._size > MOST_WAITING:
            self._flush()

    def write_now(self, data: bytes) -> None:
        """Writes data at once, after everything buffered before."""
        if self._waiting:
            self._flush()
        if not self._transport.is_closing():
            self._transport.write(data)

    def detach(self) -> asyncio.Transport:
        """Sends the buffered data, and returns the transport itself."""
        self._flush()
        return self._transport

    def is_closing(self) -> bool:
        """Tells whether the connection is about to end."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Sends the buffered data and closes the connection."""
        self._flush()
        self._transport.close()

    def write_eof(self) -> None:
        """Sends the buffered data and closes the writing side; reading continues."""
        self._flush()
        self._transport.write_eof()

    def abort(self) -> None:
        """Drops the buffered data and closes the connection."""
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


class ServerConfig(Config):
    """Configuration of uvicorn with a connection limiter and a TLS context."""

    limiter: ConnectionLimiter
    context: ssl.SSLContext | None = None


class Connection(H11Protocol):
    """HTTP connection with a timer that runs while no request is being answered.

    A byte does not reset the timer. The connection closes when it ends.
    """

    config: ServerConfig
    conn: MeasuredConnection
    _late: asyncio.TimerHandle | None = None
    _handshake: asyncio.Task[None] | None = None
    _idle_since = -math.inf  # the end of the last answer, by the loop's clock
    _unread = 0  # bytes that may still come of what was refused
    _refused = False  # what came is no request, or one whose head is too long

    def __init__(self, config: ServerConfig, server_state: ServerState, app_state: dict[str, Any], **more: Any) -> None:
        own = {MARK_TRUSTED: self._mark_trusted, HOLD: self._hold, MAY_HOLD: self._may_hold}
        super().__init__(config, server_state, {**app_state, **own}, **more)
        self.conn = MeasuredConnection(config.h11_max_incomplete_event_size or LONGEST_HEAD, self._note_head)
        self._early: bytearray | None = bytearray()  # bytes that came before the connection was set up; None after that

    def _note_head(self, size: int, names: tuple[str, ...]) -> None:
        """Stores the head's size and names in the state that the next request gets."""
        self.app_state = {**self.app_state, STATE: self._describe_head(size, names)}

    def _describe_head(self, size: int, names: tuple[str, ...]) -> RawHead:
        return RawHead(size, names, self.client[0] if self.client else None)

    def _begin_plain(self, data: bytes) -> bool:
        """Starts answering a plain request; returns False if h11 must read the data.

        Also False while h11 has not finished the request before it.
        """
        conn = self.conn
        if not (conn.our_state is conn.their_state is h11.IDLE) or conn.trailing_data[0] or self.limit_concurrency:
            return False
        if (request := read_plain(data)) is None:
            return False
        self._unwatch()
        self.headers = request.headers
        self.scope = describe_request(request, self.root_path) | {  # type: ignore[assignment]
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "state": {**self.app_state, STATE: self._describe_head(request.size, request.names)},
        }
        at_once = self._answer_at_once is not None and not (request.left or self.flow.write_paused)
        if at_once and self._answers_at_once(request.method):
            return True
        self.cycle = PlainCycle(
            data[: request.size],
            request.body,
            request.left,
            self._buffered.write_now,
            scope=self.scope,
            conn=conn,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            on_response=self.on_response_complete,
        )
        task = self.loop.create_task(self.cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)
        return True

    def _answers_at_once(self, method: str) -> bool:
        """Answers a request without a task, where the app has a prepared answer."""
        assert self._answer_at_once is not None
        if (found := self._answer_at_once(self.scope)) is None:
            return False
        headers, body = found
        answer = write_plain(200, [*self.server_state.default_headers, *headers], body, head=method == "HEAD")
        assert answer is not None, "expected a length and one body of an app that answers at once, got another form"
        self._buffered.write_now(answer)
        self._idle_since = self.loop.time()
        self._end_plain()
        return True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        address = get_remote_addr(transport)
        self._limited = LimitedConnection(address[0] if address else "", self._is_evictable, transport.abort)
        admission = self.config.limiter.admit(self._limited)
        if admission == "refused":
            transport.abort()
            return
        if admission != "admitted":  # the port is full, for any request
            self.app = problem_response(503, code=UnavailableError.code, detail=NO_ROOM, headers=CLOSE | SOON)
        if self.config.context is None:
            self._begin(transport)
        else:
            self._handshake = self.loop.create_task(self._shake_hands(transport, self.config.context))

    async def _shake_hands(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        """Makes the TLS handshake here, so that unfinished handshakes count as connections."""
        try:
            secured = await self.loop.start_tls(
                transport, self, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError:  # an ssl.SSLError is one, and the end of its time
            secured = None
        if secured is None or secured.is_closing():
            self.config.limiter.release(self._limited)
        else:
            self._begin(secured)

    def _begin(self, transport: asyncio.Transport) -> None:
        self._buffered = BufferedTransport(transport, self.loop)
        self._answer_at_once: AnswerAtOnce | None = getattr(self.app, "answer_at_once", None)
        super().connection_made(self._buffered)  # type: ignore[arg-type]
        early, self._early = self._early, None
        self._watch(HEAD_SECONDS)
        if early:
            self.data_received(bytes(early))

    def data_received(self, data: bytes) -> None:
        if self._early is not None:  # a caller may speak in the moment in which hands are shaken
            self._early += data
            return
        if self._is_under_way():
            if isinstance(self.cycle, PlainCycle) and self.cycle.is_plain:
                self.cycle.receive_data(data)
                return
        elif not self._refused and self._begin_plain(data):
            return
        unread = self._is_refused_unread()
        if not self._refused:
            super().data_received(data)
        if self._is_refused_unread():
            self._unread -= len(data)
            if self._unread < 0:
                self.transport.close()
        elif unread:  # all of it has come: the connection is as good as any, and its next request has its own time
            self._unwatch()
        self._watch(HEAD_SECONDS)

    def send_400_response(self, msg: str) -> None:
        """Refuses data that is no HTTP request, or whose head is too long."""
        del msg  # the server's, which says nothing of what came
        if self._is_under_way():  # the running answer would be mixed with this refusal
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer has begun: nothing fits behind it
            self.transport.close()
            return
        too_long = self.conn.too_long
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if too_long else HTTPStatus.BAD_REQUEST
        refusal = problem_response(status, code=CODES[status], detail=TOO_LONG if too_long else NO_HTTP, headers=CLOSE)
        for event in (
            h11.Response(status_code=status, headers=refusal.raw_headers, reason=status.phrase.encode()),
            h11.Data(data=b"" if self.conn.asks_for_head else bytes(refusal.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self._refused, self._unread = True, MOST_UNREAD
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._watch(UNREAD_SECONDS)

    def on_response_complete(self) -> None:
        self._idle_since, cycle = self.loop.time(), self.cycle
        if isinstance(cycle, PlainCycle) and cycle.is_plain:
            self._end_plain(cycle.take_pipelined())
            return
        super().on_response_complete()
        self._unread = MOST_UNREAD
        self._watch(UNREAD_SECONDS if self._is_refused_unread() else ANSWER_SECONDS)

    def _end_plain(self, pipelined: bytes = b"") -> None:
        """Ends the answer to a plain request, and starts on the next one.

        pipelined: bytes of the next request that are already here. Nothing of a plain request is left to read: a
        timer starts only where the caller has still to read the answer.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.timeout_keep_alive_task is None:
            self._wait_for_next(self.timeout_keep_alive)
        self.flow.resume_reading()
        if pipelined:
            self.data_received(pipelined)
        elif self.transport.get_write_buffer_size():
            self._watch(ANSWER_SECONDS)

    def _wait_for_next(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Closes a connection without a request for `timeout_keep_alive` seconds.

        Between plain requests the timer keeps running: a second check at its end costs less than a new timer after
        each answer.
        """
        self.timeout_keep_alive_task = None
        if self._is_under_way():
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > CLOCK_TOLERANCE:
            self._wait_for_next(left)
        else:
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self.config.limiter.release(self._limited)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        # Each call may have a connection of its own: one that refers to itself would wait for a garbage collection.
        self.app_state, self.scope, self.cycle = {}, None, None  # type: ignore[assignment]
        self._limited.is_evictable = bool
        del self.conn

    def _may_hold(self) -> bool:
        return self.config.limiter.may_hold(self._limited)

    def _hold(self) -> HeldConnection | None:
        """Takes the connection out of the server, its answer begun: see `HeldConnection`.

        None if it is lost, or if its caller has sent more than the request.
        """
        cycle = self.cycle
        if isinstance(cycle, PlainCycle):
            cycle.write_head()
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        transport = self._buffered.detach()
        more = self.conn.trailing_data[0] or (isinstance(cycle, PlainCycle) and (cycle.pipelined or cycle.more_body))
        if cycle.disconnected or transport.is_closing() or more:
            transport.abort()
            return None
        self._unwatch()
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        self.server_state.total_requests += 1
        self.config.limiter.hold(self._limited)
        held = HeldConnection(transport, self._limited, self.config.limiter.release)
        self.flow.resume_reading()
        transport.set_protocol(held)
        return held

    def _is_refused_unread(self) -> bool:
        """Tells whether the rest of a refused body is still arriving.

        A caller that is cut off at once would not read the refusal: the connection stays open for UNREAD_SECONDS and
        MOST_UNREAD bytes.
        """
        if self._refused:
            return True
        answered = self.cycle is not None and self.cycle.response_complete
        return answered and self.conn.their_state is h11.SEND_BODY

    def _mark_trusted(self) -> None:
        self.config.limiter.mark_trusted(self._limited)

    def _is_evictable(self) -> bool:
        return not self._is_under_way() or self.cycle.more_body

    def _is_under_way(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self, seconds: float) -> None:
        if self._is_under_way():
            self._unwatch()
        elif self._late is None or self._late.when() > self.loop.time() + seconds:
            self._unwatch()
            self._late = self.loop.call_later(seconds, self.transport.abort)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
