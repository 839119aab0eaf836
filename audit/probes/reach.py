"""Attempts to reach an address by TCP, UDP or name, each within a few seconds."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import secrets
import socket
import struct
import threading
from collections.abc import Awaitable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

SECONDS = 2.0  # longest wait for a connection, or for an answer
RESOLVE_SECONDS = 3.0
MOST_ADDRESSES = 4  # addresses of one name that are tried
BYTES = 4096

Outcome = Literal["answered", "refused", "nothing"]
FAILURES = {  # errors that show that no host was reached; any other error came from a host
    errno.ENETUNREACH: "no route",
    errno.EHOSTUNREACH: "no route",
    errno.ENETDOWN: "no network",
    errno.EAFNOSUPPORT: "no such network",
    errno.EADDRNOTAVAIL: "no address to call from",
    errno.EPERM: "forbidden here",
    errno.EACCES: "forbidden here",
    errno.ETIMEDOUT: "no answer",
}


@dataclass(frozen=True)
class Reach:
    """Outcome of an attempt.

    refused: the host was reached, no service listens there. words: for the report.
    """

    outcome: Outcome
    words: str


@dataclass(frozen=True)
class ResolvedName:
    """Addresses of a name, empty if none was found, with words for the report."""

    addresses: tuple[str, ...]
    words: str


async def reach_host(host: str, port: int) -> Reach:
    """Tries to reach an address or a name by TCP."""
    if _is_address(host):
        return await reach_tcp(host, port)
    resolved = await resolve_name(host)
    if not resolved.addresses:
        return Reach("nothing", resolved.words)
    reached = _furthest_reach([await reach_tcp(address, port) for address in resolved.addresses[:MOST_ADDRESSES]])
    return Reach(reached.outcome, f"the name is known, {reached.words}")


async def reach_tcp(address: str, port: int) -> Reach:
    """Tries to open a TCP connection."""
    return await _bound_attempt(open_and_close(address, port), "connected")


async def open_and_close(address: str, port: int) -> None:
    """Opens a connection and closes it; raises OSError if that fails."""
    with _open_socket(address, socket.SOCK_STREAM) as connection:
        await asyncio.get_running_loop().sock_connect(connection, (address, port))


async def reach_udp(host: str, port: int, name: str) -> Reach:
    """Tries to reach a host by a DNS question; any answer shows that it did."""
    if (address := await find_address(host)) is None:
        return Reach("nothing", "the name is unknown")
    return await _bound_attempt(exchange_bytes(address, port, dns_query(name), socket.SOCK_DGRAM), "an answer came")


async def _bound_attempt(attempt: Awaitable[object], success: str) -> Reach:
    """Awaits an attempt for a few seconds.

    success: describes one that raised nothing.
    """
    try:
        async with asyncio.timeout(SECONDS):
            await attempt
    except TimeoutError:
        return Reach("nothing", f"no answer within {SECONDS:g} s")
    except OSError as error:
        return _failed_reach(error)
    return Reach("answered", success)


async def exchange_bytes(address: str, port: int, content: bytes, kind: socket.SocketKind) -> bytes:
    """Sends `content` and returns the first bytes of the answer."""
    loop = asyncio.get_running_loop()
    with _open_socket(address, kind) as connection:
        await loop.sock_connect(connection, (address, port))
        await loop.sock_sendall(connection, content)
        return await loop.sock_recv(connection, BYTES)


def dns_query(name: str) -> bytes:
    """Makes a DNS question for the IPv4 addresses of a name."""
    labels = b"".join(bytes([len(label)]) + label for label in name.encode("idna").split(b".") if label)
    return struct.pack(">HHHHHH", secrets.randbits(16), 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)


async def find_address(host: str) -> str | None:
    """Returns the host if it is an address, else the name's first address."""
    return host if _is_address(host) else next(iter((await resolve_name(host)).addresses), None)


async def resolve_name(name: str) -> ResolvedName:
    """Resolves a name in a thread, which is abandoned where it takes too long."""
    answer: Future[tuple[str, ...]] = Future()
    threading.Thread(target=_answer_look_up, args=(name, answer), daemon=True).start()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            return ResolvedName(await asyncio.wrap_future(answer), "the name is known")
    except TimeoutError:
        return ResolvedName((), f"no answer about the name within {RESOLVE_SECONDS:g} s")
    except OSError:
        return ResolvedName((), "the name is unknown")


def _answer_look_up(name: str, answer: Future[tuple[str, ...]]) -> None:
    answer.set_running_or_notify_cancel()
    try:
        answer.set_result(look_up_addresses(name))
    except OSError as error:
        answer.set_exception(error)


def look_up_addresses(name: str) -> tuple[str, ...]:
    """Returns the addresses of a name; raises OSError if it is unknown."""
    answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(place[0]) for *_, place in answers))


def _furthest_reach(reaches: Iterable[Reach]) -> Reach:
    order: tuple[Outcome, ...] = ("answered", "refused", "nothing")
    return min(reaches, key=lambda reach: order.index(reach.outcome))


def _failed_reach(error: OSError) -> Reach:
    if error.errno == errno.ECONNREFUSED:
        return Reach("refused", "refused, so the host was reached")
    if error.errno in FAILURES:
        return Reach("nothing", FAILURES[error.errno])
    return Reach("answered", f"an answer: {error.strerror}")


def _open_socket(address: str, kind: socket.SocketKind) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connection = socket.socket(family, kind)
    connection.setblocking(False)
    return connection


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
