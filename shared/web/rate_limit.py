"""A caller -> so many requests a second and no more, counted in memory."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from shared.web import problems

MOST_CALLERS = 10_000  # that are remembered; the one who has not called for longest is forgotten first
BURST_SECONDS = 2.0  # how long a caller may have saved up
HEALTH = "/health/"
HEALTH_AT_LEAST = 20.0  # requests a second of one address; whoever watches a service asks every few seconds
SUBNET = 64  # bits of an IPv6 address that a caller cannot choose

LOOPBACK_NETWORK = f"::/{SUBNET}"  # what the address ::1 counts as

Clock = Callable[[], float]
Who = Callable[[Scope], str]


class Buckets:
    """A token bucket a caller: it fills at `rate` tokens a second, and each request takes one. Rate 0: no limit."""

    def __init__(self, rate: float, *, clock: Clock = time.monotonic) -> None:
        self.rate, self._size, self._clock = rate, max(1.0, rate * BURST_SECONDS), clock
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str) -> float:
        """0 where a request may come, and it is counted; else the seconds until the next one may."""
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


UNLIMITED = Buckets(0.0)


def address_key(scope: Scope) -> str:
    """The caller's address; of IPv6 the network, in which a caller may take any address."""
    return address_of((scope.get("client") or ("",))[0])


def address_of(host: str) -> str:
    """What callers are told apart by."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return str(host)
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:  # at a port that listens for both
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, SUBNET), strict=False))


class RateLimit:
    """Refuses with 429 what comes too fast; nothing of it is read.

    `/health` has buckets of its own, by address, of HEALTH_AT_LEAST a second or more: what a caller asks otherwise
    must not make a service look dead to whoever watches it from the same address. On loopback it has none.
    """

    def __init__(self, app: ASGIApp, buckets: Buckets, who: Who = address_key, health: Buckets | None = None) -> None:
        self.app, self.buckets, self.who = app, buckets, who
        rate = buckets.rate and max(buckets.rate, HEALTH_AT_LEAST)
        self.health = Buckets(rate) if health is None else health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        buckets, who = self._bucket_of(scope)
        if wait := buckets.take(who):
            detail = f"expected at most {buckets.rate:g} requests a second of one caller"
            headers = {"Retry-After": str(math.ceil(wait))}
            await problems.problem(429, code="too-many", detail=detail, headers=headers)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _bucket_of(self, scope: Scope) -> tuple[Buckets, str]:
        """Where a request counts, and as whose."""
        if not scope["path"].startswith(HEALTH):
            return self.buckets, self.who(scope)
        address = address_key(scope)
        return (UNLIMITED, "") if _is_loopback(address) else (self.health, address)


def _is_loopback(address: str) -> bool:
    """An address of this machine, IPv6 as its network."""
    try:
        return ipaddress.ip_network(address).network_address.is_loopback or address == LOOPBACK_NETWORK
    except ValueError:
        return False
