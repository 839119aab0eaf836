"""ASGI middleware of both services: access log, rate and size limits, timeouts, Host check.

Each request gives one log line and one latency sample by route template: never a path, a query, a body or a secret.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import os
import re
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from urllib.parse import unquote_to_bytes

import structlog
from fastapi import FastAPI
from prometheus_client import Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.timeouts import LONGEST_BODY_SECONDS, SILENCE_SECONDS
from shared.web import problems
from shared.web.address import HOST_NAME, SUBNET, caller_address
from shared.web.plain_requests import AnswerAtOnce
from shared.web.request_bodies import CLOSE, too_long_error

MOST_CALLERS = 10_000  # callers with a token bucket; the one that has been silent longest is forgotten first
BURST_SECONDS = 2.0  # capacity of a token bucket, in seconds of its rate
HEALTH = "/health/"
HEALTH_AT_LEAST = 20.0  # health requests a second of one address; a monitor asks every few seconds

LOOPBACK_NETWORK = f"::/{SUBNET}"  # network that stands for the address ::1

Clock = Callable[[], float]
CallerKey = Callable[[Scope], str]


class TokenBuckets:
    """Token bucket of each caller, filled with `rate` tokens a second; rate 0: no limit."""

    def __init__(self, rate: float, *, clock: Clock = time.monotonic) -> None:
        self.rate, self._size, self._clock = rate, max(1.0, rate * BURST_SECONDS), clock
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str) -> float:
        """Takes a token; returns 0, or the seconds until the next request may come."""
        if self.rate == 0.0:
            return 0.0
        now = self._clock()
        tokens, since = self._held.pop(who, (self._size, now))
        tokens = min(self._size, tokens + (now - since) * self.rate)
        allowed = tokens >= 1.0
        self._held[who] = (tokens - allowed, now)
        if len(self._held) > MOST_CALLERS:
            self._held.popitem(last=False)
        return 0.0 if allowed else (1.0 - tokens) / self.rate

    def refund(self, who: str) -> None:
        """Gives back the token of a request that will be counted once more."""
        if (held := self._held.get(who)) is not None:
            self._held[who] = (held[0] + 1.0, held[1])


UNLIMITED = TokenBuckets(0.0)


def address_key(scope: Scope) -> str:
    """Returns the caller's address, or the network of an IPv6 address."""
    return caller_address((scope.get("client") or ("",))[0])


class RateLimit:
    """Middleware that answers 429 to requests beyond the rate limit, unread.

    `/health` has its own buckets, by address, of HEALTH_AT_LEAST requests a second or more: other calls from the same
    address must not make the service look dead to its monitor. On loopback it has none.
    """

    def __init__(
        self, app: ASGIApp, buckets: TokenBuckets, who: CallerKey = address_key, health: TokenBuckets | None = None
    ) -> None:
        self.app, self.buckets, self.who = app, buckets, who
        rate = buckets.rate and max(buckets.rate, HEALTH_AT_LEAST)
        self.health = TokenBuckets(rate) if health is None else health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        buckets, who = self._bucket_of(scope)
        if wait := buckets.take(who):
            detail = (
                f"expected at most {buckets.rate:g} requests a second of one caller, got more: wait as Retry-After says"
            )
            headers = {"Retry-After": str(math.ceil(wait))}
            await problems.problem_response(429, code="too-many", detail=detail, headers=headers)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _bucket_of(self, scope: Scope) -> tuple[TokenBuckets, str]:
        """Returns the buckets that count a request, and its caller's key."""
        if not scope["path"].startswith(HEALTH):
            return self.buckets, self.who(scope)
        address = address_key(scope)
        return (UNLIMITED, "") if _is_loopback(address) else (self.health, address)


def _is_loopback(address: str) -> bool:
    """Tells whether an address, or an IPv6 address as its network, is loopback."""
    try:
        return ipaddress.ip_network(address).network_address.is_loopback or address == LOOPBACK_NETWORK
    except ValueError:
        return False


LONGEST_MESSAGE = 4 << 20  # bytes of a JSON body
SMALL_MESSAGE = 64 << 10  # bytes of a body that is read even when memory is short
MOST_HELD = 64 << 20  # bytes of all bodies in progress, beyond which only small ones are read
NO_MEMORY = f"expected at most {MOST_HELD} bytes of bodies under way at once, got more: ask again, or with smaller ones"
UNMATCHED = "(unmatched)"
HOST = re.compile(rf"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>{HOST_NAME}))(?::[0-9]*)?")
INTERNAL_SUFFIXES = (".localhost", ".svc", ".svc.cluster.local")  # no public name ends like this
EXPECTED = (
    "an IP address, a name without a dot, a name that ends in " + ", ".join(INTERNAL_SUFFIXES) + ", or an allowed host"
)


class FrontedApp(FastAPI):
    """FastAPI app with middleware in front of the framework.

    The framework's own way to its first middleware takes as long as an answer.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.front: ASGIApp = super().__call__

    def put_in_front(self, layer: Callable[..., ASGIApp], **options: Any) -> None:
        """Adds middleware in front of all present middleware."""
        self.front = layer(self.front, **options)

    def answer_at_once(self, scope: Scope) -> tuple[list[tuple[bytes, bytes]], bytes] | None:
        """Returns the prepared answer of the foremost middleware: see `shared.web.plain_requests.AnswerAtOnce`."""
        at_once: AnswerAtOnce | None = getattr(self.front, "answer_at_once", None)
        return None if at_once is None else at_once(scope)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # as the framework does, which the foremost middleware may pass by
        await self.front(scope, receive, send)


WELL_FORMED = re.compile("[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def choose_request_id(scope: Scope, *, callers_own: bool) -> str:
    """Returns the id of a request, 32 hexadecimal digits.

    With `callers_own` it is the caller's where the caller gave one UUID; otherwise it is new: any other text of the
    caller's would get into the log. The id is in each log line of the request, in its answer, and in a problem
    document.
    """
    given = Headers(scope=scope).getlist(problems.REQUEST_ID_HEADER) if callers_own else []
    return adopt_or_create(given[0] if len(given) == 1 else None)


def adopt_or_create(given: str | None) -> str:
    """Returns the digits of the given id if it is a UUID, else new ones."""
    if given is not None and WELL_FORMED.fullmatch(given):
        return uuid.UUID(given).hex
    return os.urandom(16).hex()


def bind_request_id(identity: str) -> AbstractContextManager[object]:
    """Adds the id to each log line inside a `with` block.

    These are lines of this task, and of the threads that the task calls.
    """
    return structlog.contextvars.bound_contextvars(**{problems.REQUEST_ID_FIELD: identity})


@dataclass(frozen=True)
class AccessLog:
    """Middleware that gives each request an id, measures and logs it.

    `requests` has the labels method, route, status. `callers_ids`: whether a caller may give the id.
    """

    app: ASGIApp
    requests: Histogram
    logger: structlog.stdlib.BoundLogger
    callers_ids: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        identity = choose_request_id(scope, callers_own=self.callers_ids)
        with bind_request_id(identity):
            await self._observed(scope, receive, send, identity)

    async def _observed(self, scope: Scope, receive: Receive, send: Send, identity: str) -> None:
        status, began, answered = 500, time.perf_counter(), False

        async def watch(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status, answered = message["status"], True
                MutableHeaders(scope=message)[problems.REQUEST_ID_HEADER] = identity
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except Exception:  # a bug of ours; the server's own log line could repeat data, so it is logged here
            self.logger.exception("request_failed")
            if answered:
                raise
            await problems.internal_error()(scope, receive, watch)
        finally:
            self._record(scope, status, time.perf_counter() - began)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        found = scope.get("route")
        route, known = getattr(found, "path", UNMATCHED), label_method(scope["method"], found)
        self.requests.labels(known, route, status).observe(seconds)
        client = scope.get("state", {}).get("client")
        self.logger.info("request", method=known, route=route, status=status, client=client, seconds=round(seconds, 6))


def label_method(method: str, route: object) -> str:
    """Returns the method as a metric label: the route's, `other`, or `any` without route.

    The method is the caller's own text and would make any number of labels.
    """
    if route is None:
        return "any"
    answered: set[str] = getattr(route, "methods", None) or set()
    return method if method in answered or (method == "HEAD" and "GET" in answered) else "other"


@dataclass
class HeldBytes:
    """Count of the bytes of all bodies in progress."""

    count: int = 0


@dataclass(frozen=True)
class BodyLimit:
    """Middleware that limits JSON bodies, each and all together, and refuses compressed ones.

    A small compressed body could unpack to a huge one. A body is cut where it passes the limit, announced or not; the
    aggregator's routes have their own limits. All bodies together are limited for as long as their requests last,
    because a slow caller keeps its body's result in memory. A small body always has room.
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
                raise too_long_error(LONGEST_MESSAGE)
            if came > SMALL_MESSAGE and self.held.count + size > MOST_HELD:
                came -= size
                raise HTTPException(503, NO_MEMORY, CLOSE | {"Retry-After": "5"})
            self.held.count += size
            return message

        try:
            await self.app(scope, count, send)
        finally:
            self.held.count -= came


@dataclass(frozen=True)
class BodyTimeout:
    """Middleware that answers 408 where a body does not arrive in time."""

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
    """Middleware that answers 421 where the Host header is not this service's name.

    A foreign page can point its own name at this service's address and read, through a visitor's browser, what needs
    no secret. The browser's Host header still holds that name.
    """

    app: ASGIApp
    allowed: Sequence[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._expected(Headers(scope=scope).getlist("host")):
            refusal = problems.problem_response(
                421, code="host", detail=f"Host: expected {EXPECTED}, got none of these"
            )
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _expected(self, hosts: Sequence[str]) -> bool:
        return len(hosts) == 1 and is_own_host(hosts[0], tuple(self.allowed))


@lru_cache(maxsize=256)  # nearly every request names the same host; parsing it costs more than all else here
def is_own_host(host: str, allowed: tuple[str, ...]) -> bool:
    """Tells whether a Host header names this service."""
    found = HOST.fullmatch(host)
    if found is None:
        return False
    if found["v6"]:
        return _is_address(IPv6Address, found["v6"])
    name = _plain(found["name"])
    own = "." not in name or name.endswith(INTERNAL_SUFFIXES) or name in map(_plain, allowed)
    return own or _is_address(IPv4Address, name)


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(kind: type[IPv4Address] | type[IPv6Address], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class DecodedTargets:
    """Middleware that answers 400 for percent-encoded bytes that are not UTF-8.

    A route would get them as other characters.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_utf8(scope):
            refusal = problems.problem_response(
                400, code="bad-request", detail="path and query: expected UTF-8, got other bytes"
            )
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _is_utf8(scope: Scope) -> bool:
    target: bytes = scope.get("raw_path", b"") + b"?" + scope.get("query_string", b"")
    return (
        b"%" not in target or decode_percent(target) is not None
    )  # without %: the server lets nothing but ASCII through


def decode_percent(target: bytes) -> str | None:
    """Decodes percent-encoded bytes to text; None if they are not UTF-8."""
    try:
        return (unquote_to_bytes(target) if b"%" in target else target).decode("utf-8")
    except UnicodeDecodeError:
        return None
