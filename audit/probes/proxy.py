"""A gateway, asked to pass a call on to somebody else -> what it answers."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import Sequence

from audit.evidence import ProbeResult, make_result
from audit.probes.reach import BYTES, SECONDS, address_of, exchange_bytes

HANDSHAKE_SECONDS = 20.0  # of a control: a busy machine answers late
SUCCESS = range(200, 300)


async def http_status(host: str, port: int, request: bytes) -> int | None:
    """The HTTP status of one request as written; None where nobody answers, or with something else."""
    if (address := await address_of(host)) is None:
        return None
    try:
        async with asyncio.timeout(SECONDS):
            return _parse_status(await exchange_bytes(address, port, request, socket.SOCK_STREAM))
    except (OSError, TimeoutError):
        return None


async def http_status_by_tls(address: str, port: int, request: bytes, name: str, tls: ssl.SSLContext) -> int | None:
    """As `http_status`, by TLS with a server whose certificate names `name`."""
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            reader, writer = await asyncio.open_connection(address, port, ssl=tls, server_hostname=name)
            writer.write(request)
            answer = await reader.read(BYTES)
            writer.close()
            return _parse_status(answer)
    except (OSError, TimeoutError):
        return None


def _parse_status(answer: bytes) -> int | None:
    protocol, _, rest = answer.partition(b" ")
    return int(rest[:3]) if protocol.startswith(b"HTTP/") and rest[:3].isdigit() else None


async def probe_way_out(
    addresses: Sequence[str], port: int, outside: tuple[str, int]
) -> tuple[ProbeResult, ProbeResult]:
    """Ask the own gateway for a tunnel, and for somebody else's page."""
    host, far = outside
    tunnel = f"CONNECT {host}:{far} HTTP/1.1\r\nHost: {host}:{far}\r\n\r\n"
    path = f"/probe-{secrets.token_hex(8)}"  # at a name that nobody has: the gateway's own part has no such page
    page = f"GET http://{host}:{far}{path} HTTP/1.1\r\nHost: {host}:{far}\r\nConnection: close\r\n\r\n"
    return await _refusal_probe("CONNECT", addresses, port, tunnel), await _refusal_probe("GET", addresses, port, page)


async def _refusal_probe(what: str, addresses: Sequence[str], port: int, request: str) -> ProbeResult:
    statuses = [await http_status(address, port, request.encode()) for address in addresses]
    answers = [status for status in statuses if status is not None]
    held = not any(status in SUCCESS for status in answers)
    return make_result("out through its own gateway", what, "no success", _join_statuses(answers), held=held)


def _join_statuses(answers: Sequence[int]) -> str:
    return " and ".join(map(str, answers)) or "no answer"


async def probe_gateway(
    name: str, addresses: Sequence[str], port: int, tls: ssl.SSLContext | None = None
) -> ProbeResult:
    """The control: what a gateway must reach, it reaches; with `tls` where it answers by TLS.

    All addresses at once: those on other networks do not answer, and each is waited for.
    """
    request = b"GET /health/live HTTP/1.1\r\nHost: health\r\nConnection: close\r\n\r\n"
    attempts = (
        http_status(address, port, request) if tls is None else http_status_by_tls(address, port, request, name, tls)
        for address in addresses
    )
    answers = [status for status in await asyncio.gather(*attempts) if status is not None]
    return make_result("control: its own part", name, "200", _join_statuses(answers), held=200 in answers)
