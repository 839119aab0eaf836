"""Passes operators' requests from a silo's port to the trainer's socket, and answers back.

The socket is a unix socket. Each request has a connection of its own. Bodies pass piece by piece. Headers of one
connection alone (RFC 9110, 7.6.1) are dropped. The trainer knows its routes: it decides who may call,
and names the route for the server's log. A request without a key, to a silo that has keys, comes by the socket that
wakes no trainer that waits; it goes by the other one where the trainer says that it would answer it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from client_service.http.authentication import CallerKeys
from client_service.runtime.trainer_process import MISDIRECTED, find_health_socket, find_socket
from shared.errors import AuthenticationError, UnavailableError
from shared.timeouts import SILENCE_SECONDS
from shared.web.connection_limits import mark_trusted
from shared.web.credentials import read_operator_secret
from shared.web.middleware import AccessLog
from shared.web.problems import problem_response

SERVER_PATHS = frozenset(("/health/live", "/health/ready", "/metrics"))  # that a server asks its trainer, if any
ROUTE = "X-LPSFed-Route"  # of a trainer's answer, to its server alone: methods and template of the route
HOP_BY_HOP_HEADERS = frozenset(
    (
        *("connection", "date", "expect", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    )
)
BODY_HEADERS = frozenset((b"content-length", b"content-type", b"transfer-encoding"))
START_SECONDS = 10.0  # for which a request waits for a trainer that is being started
CONNECT_SECONDS = 0.05  # between two attempts to reach the trainer
ANSWER_SECONDS = 60.0  # for the first and each next piece of an answer: a trainer that computes may be slow
PIECE = 64 << 10  # bytes
REFUSED = frozenset((401, 404, 405))  # statuses of requests without a key, which do not count as activity
TRAINER_AWAY = "the trainer is starting: try again"
TRAINER_SILENT = f"expected an answer of the trainer within {ANSWER_SECONDS:g} seconds, got none: try again"
TRAINER_CUT_OFF = "the trainer has ended and starts again: try again"
SOON = {"Retry-After": "1"}


@dataclass(frozen=True)
class ProxiedRoute:
    """A route of the trainer, as the server's log names it."""

    path: str = "(trainer)"
    methods: frozenset[str] = frozenset()

    @classmethod
    def read(cls, text: str) -> ProxiedRoute:
        methods, _, path = text.partition(" ")
        return cls(path, frozenset(methods.split(","))) if path else cls()


@dataclass
class RequestActivity:
    """Number of open requests, and the time at which the last admitted one ended."""

    open: int = 0
    ended: float = field(default_factory=time.monotonic)

    @contextmanager
    def request(self, was_refused: Callable[[], bool]) -> Iterator[None]:
        """Counts an open request. was_refused: called at its end; a refused one is no activity."""
        self.open += 1
        try:
            yield
        finally:
            self.open, self.ended = self.open - 1, self.ended if was_refused() else time.monotonic()


@dataclass(frozen=True)
class TrainerAccessLog(AccessLog):
    """Access log of the trainer, which leaves lines and samples to its server.

    Each answer carries the name of its route, for the server's line and sample. activity: counts requests, without the
    server's own questions and refused requests.
    """

    activity: RequestActivity = field(default_factory=RequestActivity)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in SERVER_PATHS:
            return await self._name_answer(scope, receive, send)
        status = 0

        async def note(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        with self.activity.request(lambda: status in REFUSED):
            await self._name_answer(scope, receive, note)

    async def _name_answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def name_route(message: Message) -> None:
            route = scope.get("route")
            if message["type"] == "http.response.start" and getattr(route, "path", None) is not None:
                methods = ",".join(sorted(getattr(route, "methods", None) or ()))
                MutableHeaders(scope=message)[ROUTE] = f"{methods} {route.path}"  # type: ignore[union-attr]
            await send(message)

        await super().__call__(scope, receive, name_route)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        """Records nothing, because the server records the request."""


class CallerGoneError(Exception):
    """Error: the caller closed the connection, or stopped reading the answer."""


class MisdirectedError(Exception):
    """A trainer that waits answers this request only at the socket that wakes it."""


@dataclass
class TrainerProxy:
    """An ASGI app that passes each request on to the trainer.

    starting: tells whether a trainer is being started; a request then waits for it, for start_seconds at most.
    """

    state: Path
    keys: CallerKeys
    starting: Callable[[], bool] = lambda: True
    start_seconds: float = START_SECONDS
    answer_seconds: float = ANSWER_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = ProxiedRoute()
        if self._trust_key_holder(scope) or not self.keys.asks("operator"):
            return await self._pass_on(scope, receive, send, find_socket(self.state))
        try:
            await self._pass_on(scope, receive, send, find_health_socket(self.state))
        except MisdirectedError:
            scope["headers"] = [one for one in scope["headers"] if one[0] not in BODY_HEADERS]
            await self._pass_on(scope, _without_body(receive), send, find_socket(self.state))

    async def _pass_on(
        self, scope: Scope, receive: Receive, send: Send, place: Path, *, may_repeat: bool = True
    ) -> None:
        try:
            reader, writer = await self._connect(place)
        except OSError:
            return await _refuse(TRAINER_AWAY, scope, receive, send)
        exchange = _Exchange(scope, reader, writer, self.answer_seconds)
        try:
            await exchange.run(receive, send)
        except CallerGoneError:
            return
        except (OSError, h11.RemoteProtocolError) as error:  # a TimeoutError is an OSError
            # A trainer that becomes another image closes connections whose requests it has not read yet.
            if may_repeat and not (exchange.has_begun or isinstance(error, TimeoutError)) and _is_repeatable(scope):
                writer.close()
                return await self._pass_on(scope, _without_body(receive), send, place, may_repeat=False)
            if exchange.has_begun:  # no refusal fits behind half an answer: the caller sees the connection end
                raise UnavailableError(TRAINER_CUT_OFF) from None
            await _refuse(TRAINER_SILENT if isinstance(error, TimeoutError) else TRAINER_CUT_OFF, scope, receive, send)
        finally:
            writer.close()

    async def fetch(self, path: str, seconds: float) -> bytes | None:
        """Fetches a page of the trainer that needs no key.

        It asks at the health socket, which wakes no trainer that waits. None: no answer with status 200 in `seconds`.
        """
        found: list[bytes] = []
        status = 0

        async def keep(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            found.append(message.get("body", b""))

        async def wait_forever() -> Message:
            return await asyncio.Future()  # here no caller can hang up

        scope = {"method": "GET", "raw_path": path.encode(), "query_string": b"", "headers": [(b"host", b"trainer")]}
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await self._open(find_health_socket(self.state))
                try:
                    await _Exchange(scope, reader, writer, seconds).run(wait_forever, keep)
                finally:
                    writer.close()
        except (OSError, h11.RemoteProtocolError):
            return None
        return b"".join(found) if status == 200 else None

    async def _connect(self, place: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to a socket of the trainer, and waits for one that is being started.

        OSError: no process listens at the socket.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self.start_seconds
        while True:
            try:
                return await self._open(place)
            except OSError:
                if loop.time() >= until or not self.starting():
                    raise
            await asyncio.sleep(CONNECT_SECONDS)

    async def _open(self, place: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(str(place), limit=PIECE)

    def _trust_key_holder(self, scope: Scope) -> bool:
        """Marks a request's connection as trusted if the request has a key of the silo."""
        try:
            secret = read_operator_secret(Headers(scope=scope).get("authorization"))
        except AuthenticationError:
            return False
        if self.keys.holder(secret) is None:
            return False
        mark_trusted(scope)
        return True


@dataclass
class _Exchange:
    """One request to the trainer, and its answer."""

    scope: Scope
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    seconds: float
    has_begun: bool = False  # has any of the answer gone to the caller?
    _wire: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))

    async def run(self, receive: Receive, send: Send) -> None:
        """Passes the request and its body on, and the answer back.

        Raises CallerGoneError, MisdirectedError, OSError, h11.RemoteProtocolError, or an error of reading the
        caller's body.
        """
        self._write(h11.Request(method=self.scope["method"], target=_target(self.scope), headers=self._headers()))
        sending = asyncio.create_task(self._send_body(receive))
        answering = asyncio.create_task(self._pass_answer(send))
        try:
            await asyncio.wait((sending, answering), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
            else:
                sending.result()  # it ends by an error alone
        finally:
            for task in (sending, answering):
                task.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        given = self.scope["headers"]
        kept = _drop_hop_headers(given)
        if any(name == b"transfer-encoding" for name, _ in given):
            kept.append((b"transfer-encoding", b"chunked"))
        return [*kept, (b"connection", b"close")]

    async def _send_body(self, receive: Receive) -> None:
        """Passes the body on, then waits until the caller hangs up.

        A trainer that takes no more of the body may still answer: that is no error here. Always ends with an error:
        CallerGoneError, OSError, or an error of reading the body.
        """
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise CallerGoneError
            more = message.get("more_body", False)
            try:
                if body := message.get("body", b""):
                    self._write(h11.Data(data=body))
                    async with asyncio.timeout(self.seconds):
                        await self.writer.drain()
                if not more:
                    self._write(h11.EndOfMessage())
            except (ConnectionError, h11.LocalProtocolError):
                break  # the trainer has answered already, and closed
        while (await receive())["type"] != "http.disconnect":
            pass
        raise CallerGoneError

    async def _pass_answer(self, send: Send) -> None:
        while True:
            event: Any = self._wire.next_event()
            if event is h11.NEED_DATA:
                async with asyncio.timeout(self.seconds):
                    self._wire.receive_data(await self.reader.read(PIECE))
            elif isinstance(event, h11.Response):
                await self._begin(event, send)
            elif isinstance(event, h11.Data):
                await _send_in_time(send({"type": "http.response.body", "body": bytes(event.data), "more_body": True}))
            elif isinstance(event, h11.EndOfMessage):
                return await send({"type": "http.response.body", "body": b"", "more_body": False})
            elif not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("expected a whole answer")

    async def _begin(self, response: h11.Response, send: Send) -> None:
        if response.status_code == MISDIRECTED:
            raise MisdirectedError
        headers = _drop_hop_headers(response.headers)
        named = dict(headers).get(ROUTE.lower().encode(), b"")
        self.scope["route"] = ProxiedRoute.read(named.decode("latin-1"))
        kept = [one for one in headers if one[0] != ROUTE.lower().encode()]
        self.has_begun = True
        await send({"type": "http.response.start", "status": response.status_code, "headers": kept})

    def _write(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        self.writer.write(self._wire.send(event) or b"")


async def _send_in_time(sending: Any) -> None:
    """Sends a piece of an answer; CallerGoneError after SILENCE_SECONDS without progress.

    This bounds the wait, and the bytes that wait to be sent.
    """
    try:
        async with asyncio.timeout(SILENCE_SECONDS):
            await sending
    except TimeoutError:
        raise CallerGoneError from None


def _without_body(receive: Receive) -> Receive:
    """Makes a request readable again without its body, which has been read."""
    rest: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def read() -> Message:
        return rest.pop() if rest else await receive()

    return read


def _is_repeatable(scope: Scope) -> bool:
    """Tells whether a request has no body and is safe (RFC 9110, 9.2.1)."""
    return scope["method"] in ("GET", "HEAD") and not any(name in BODY_HEADERS for name, _ in scope["headers"])


def _target(scope: Scope) -> bytes:
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"]
    return path + b"?" + query if query else path


def _drop_hop_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Drops the headers of one connection alone.

    These are the hop-by-hop headers, and those that a Connection header names.
    """
    found = [(name.lower(), value) for name, value in headers]
    connection = ",".join(value.decode("latin-1") for name, value in found if name == b"connection")
    named = {one.strip().lower() for one in connection.split(",")}
    return [one for one in found if (text := one[0].decode("latin-1")) not in HOP_BY_HOP_HEADERS and text not in named]


async def _refuse(detail: str, scope: Scope, receive: Receive, send: Send) -> None:
    await problem_response(503, code=UnavailableError.code, detail=detail, headers=SOON)(scope, receive, send)
