"""Each request -> one log line and one latency sample, by route template: never a path, a query, a body or a secret.

A request that is too long, that takes too long, or that was meant for another host, ends here.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

import structlog
from prometheus_client import Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.timeouts import LONGEST_BODY_SECONDS, SILENCE_SECONDS
from shared.web import problems, request_ids
from shared.web.request_bodies import CLOSE, too_long

LONGEST_MESSAGE = 4 << 20  # bytes of a JSON body
SMALL_MESSAGE, MOST_HELD = 64 << 10, 64 << 20  # bytes of one body; of all together, beyond which only small ones come
FULL = f"expected at most {MOST_HELD} bytes of bodies under way at once, got more: ask again, or with smaller ones"
UNMATCHED = "(unmatched)"
HOST_NAME = r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?"  # or an IPv4 address
HOST = re.compile(rf"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>{HOST_NAME}))(?::[0-9]*)?")
INSIDE = (".localhost", ".svc", ".svc.cluster.local")  # nobody outside can be given a name that ends so
EXPECTED = "an IP address, a name without a dot, a name that ends in " + ", ".join(INSIDE) + ", or an allowed host"


@dataclass(frozen=True)
class AccessLog:
    """Measures and logs what it wraps, under an id of its own for each request.

    `requests` has the labels method, route, status. `callers_ids`: may a caller say which id?
    """

    app: ASGIApp
    requests: Histogram
    logger: structlog.stdlib.BoundLogger
    callers_ids: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        identity = request_ids.choose_request_id(scope, callers_own=self.callers_ids)
        with request_ids.bind_request_id(identity):
            await self._observed(scope, receive, send, identity)

    async def _observed(self, scope: Scope, receive: Receive, send: Send, identity: str) -> None:
        status, began, answered = 500, time.perf_counter(), False

        async def watch(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status, answered = message["status"], True
                MutableHeaders(scope=message)[request_ids.HEADER] = identity
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except Exception:  # our own mistake; the server's words about it could hold anything, so it is told here
            self.logger.exception("request_failed")
            if answered:
                raise
            await problems.mistake()(scope, receive, watch)
        finally:
            self._record(scope, status, time.perf_counter() - began)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        found = scope.get("route")
        route, known = getattr(found, "path", UNMATCHED), label_method(scope["method"], found)
        self.requests.labels(known, route, status).observe(seconds)
        client = scope.get("state", {}).get("client")
        self.logger.info("request", method=known, route=route, status=status, client=client, seconds=round(seconds, 6))


def label_method(method: str, route: object) -> str:
    """A label of a fixed set, since the method is the caller's own text: one that the route answers, or `other`; of a
    path without a route `any`."""
    if route is None:
        return "any"
    answered: set[str] = getattr(route, "methods", None) or set()
    return method if method in answered or (method == "HEAD" and "GET" in answered) else "other"


@dataclass
class HeldBytes:
    """Of all bodies whose requests are under way."""

    count: int = 0


@dataclass(frozen=True)
class BodyLimit:
    """Ends the reading of a JSON message that is too long, or packed: a small body could unpack to a huge one.

    It is cut where the limit is passed, announced or not. The aggregator's routes have limits of their own. All bodies
    together are bounded too, for as long as their requests are under way: what a body asks for is in memory while its
    caller takes the answer, or sends the rest, slowly. A small one always has room.
    """

    app: ASGIApp
    held: HeldBytes = field(default_factory=HeldBytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        came, packed = 0, "content-encoding" in Headers(scope=scope)

        async def count() -> Message:
            nonlocal came
            if packed:
                raise HTTPException(415, "expected a body without content encoding, got an encoded one", CLOSE)
            message = await receive()
            size = len(message.get("body", b""))
            came += size
            if came > LONGEST_MESSAGE:
                came -= size
                raise too_long(LONGEST_MESSAGE)
            if came > SMALL_MESSAGE and self.held.count + size > MOST_HELD:
                came -= size
                raise HTTPException(503, FULL, CLOSE | {"Retry-After": "5"})
            self.held.count += size
            return message

        try:
            await self.app(scope, count, send)
        finally:
            self.held.count -= came


@dataclass(frozen=True)
class BodyTimeout:
    """Ends the reading of a body that is not whole in time, however its bytes trickle in."""

    app: ASGIApp
    seconds: float = LONGEST_BODY_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        loop, whole = asyncio.get_running_loop(), False
        until = loop.time() + self.seconds

        async def in_time() -> Message:
            nonlocal whole
            try:
                async with asyncio.timeout_at(None if whole else min(until, loop.time() + SILENCE_SECONDS)):
                    message = await receive()
            except TimeoutError:
                silent = loop.time() < until
                expected = (
                    f"a piece of it within {SILENCE_SECONDS:g}" if silent else f"it whole within {self.seconds:g}"
                )
                raise HTTPException(408, f"the body: expected {expected} seconds", CLOSE) from None
            whole = not message.get("more_body", False)
            return message

        await self.app(scope, in_time, send)


@dataclass(frozen=True)
class HostCheck:
    """Refuses what was sent to a name that is not this service's own.

    A page elsewhere can point its own name at this service's address and read, through somebody's browser, whatever
    needs no secret. The browser's Host header still says that name.
    """

    app: ASGIApp
    allowed: Sequence[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._expected(Headers(scope=scope).getlist("host")):
            refusal = problems.problem(421, code="host", detail=f"Host: expected {EXPECTED}, got none of these")
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _expected(self, hosts: Sequence[str]) -> bool:
        return len(hosts) == 1 and _is_own(hosts[0], tuple(self.allowed))


@lru_cache(maxsize=256)  # nearly every request names the same host; parsing it costs more than all else here
def _is_own(host: str, allowed: tuple[str, ...]) -> bool:
    found = HOST.fullmatch(host)
    if found is None:
        return False
    if found["v6"]:
        return _is_address(IPv6Address, found["v6"])
    name = _plain(found["name"])
    own = "." not in name or name.endswith(INSIDE) or name in map(_plain, allowed)
    return own or _is_address(IPv4Address, name)


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(kind: type[IPv4Address] | type[IPv6Address], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
