"""A gateway, asked to pass a call on to somebody else -> what it answers."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Sequence

from audit.evidence import Probe
from audit.probes.reach import SECONDS, address_of, exchange

SUCCESS = range(200, 300)


async def status(host: str, port: int, request: bytes) -> int | None:
    """The HTTP status of one request as written; None where nobody answers, or with something else."""
    if (address := await address_of(host)) is None:
        return None
    try:
        async with asyncio.timeout(SECONDS):
            answer = await exchange(address, port, request, socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        return None
    protocol, _, rest = answer.partition(b" ")
    return int(rest[:3]) if protocol.startswith(b"HTTP/") and rest[:3].isdigit() else None


async def as_way_out(addresses: Sequence[str], port: int, outside: tuple[str, int]) -> tuple[Probe, Probe]:
    """Ask the own gateway for a tunnel, and for somebody else's page."""
    host, far = outside
    tunnel = f"CONNECT {host}:{far} HTTP/1.1\r\nHost: {host}:{far}\r\n\r\n"
    path = f"/probe-{secrets.token_hex(8)}"  # at a name that nobody has: the gateway's own part has no such page
    page = f"GET http://{host}:{far}{path} HTTP/1.1\r\nHost: {host}:{far}\r\nConnection: close\r\n\r\n"
    return await _refused("CONNECT", addresses, port, tunnel), await _refused("GET", addresses, port, page)


async def _refused(what: str, addresses: Sequence[str], port: int, request: str) -> Probe:
    found = [await status(address, port, request.encode()) for address in addresses]
    answers = [one for one in found if one is not None]
    return Probe(
        kind="out through its own gateway",
        name=what,
        expected="no success",
        observed=" and ".join(map(str, answers)) or "no answer",
        held=not any(one in SUCCESS for one in answers),
    )


async def answering(name: str, addresses: Sequence[str], port: int) -> Probe:
    """The control: what a gateway must reach, it reaches."""
    request = b"GET /health/live HTTP/1.1\r\nHost: health\r\nConnection: close\r\n\r\n"
    found = [await status(address, port, request) for address in addresses]
    answers = [one for one in found if one is not None]
    return Probe(
        kind="control: its own part",
        name=name,
        expected="200",
        observed=" and ".join(map(str, answers)) or "no answer",
        held=200 in answers,
    )
