"""Probes of the network: other parts and the outside must be out of reach."""

from __future__ import annotations

import asyncio
import fcntl
import secrets
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Interface

from audit.evidence.evidence import ProbeResult, Role, make_result
from audit.probes import reach
from audit.probes.meeting import SystemPart
from audit.probes.reach import BYTES, SECONDS, Reach, exchange_bytes, find_address

GET_ADDRESS, GET_NETMASK = 0x8915, 0x891B  # SIOCGIFADDR, SIOCGIFNETMASK of Linux
LONGEST_NAME = 15  # bytes of an interface's name


def own_interfaces() -> tuple[IPv4Interface, ...]:
    """Lists one address for each interface that has one, without loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        interfaces = [_interface_address(asking, name) for _, name in socket.if_nameindex()]
    return tuple(interface for interface in interfaces if interface is not None and not interface.is_loopback)


def machine_addresses(interfaces: tuple[IPv4Interface, ...]) -> tuple[str, ...]:
    """Lists the first address of each network, which is usually the machine's own."""
    wide = [interface for interface in interfaces if interface.network.num_addresses > 2]
    firsts = [(interface.ip, interface.network.network_address + 1) for interface in wide]
    return tuple(dict.fromkeys(str(first) for ip, first in firsts if first != ip))


def _interface_address(asking: socket.socket, name: str) -> IPv4Interface | None:
    """Returns the address of an interface; None without an IPv4 address."""
    try:
        address, mask = (_query_interface(asking, what, name) for what in (GET_ADDRESS, GET_NETMASK))
    except OSError:
        return None
    return IPv4Interface(f"{address}/{mask}")


def _query_interface(asking: socket.socket, what: int, name: str) -> str:
    request = struct.pack("256s", name.encode()[:LONGEST_NAME])
    return socket.inet_ntoa(fcntl.ioctl(asking.fileno(), what, request)[20:24])


HANDSHAKE_SECONDS = 20.0  # longest handshake of a control: a busy machine answers late
SUCCESS = range(200, 300)


async def http_status(host: str, port: int, request: bytes) -> int | None:
    """Sends a raw HTTP request; returns the status, None without an HTTP answer."""
    if (address := await find_address(host)) is None:
        return None
    try:
        async with asyncio.timeout(SECONDS):
            return _parse_status(await exchange_bytes(address, port, request, socket.SOCK_STREAM))
    except (OSError, TimeoutError):
        return None


async def http_status_by_tls(address: str, port: int, request: bytes, name: str, tls: ssl.SSLContext) -> int | None:
    """Sends a raw request by TLS, to a server with a certificate for `name`."""
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


async def probe_gateway_as_proxy(
    addresses: Sequence[str], port: int, outside: tuple[str, int]
) -> tuple[ProbeResult, ProbeResult]:
    """Probes the own gateway as a proxy: a tunnel, and a foreign page."""
    host, far = outside
    tunnel = f"CONNECT {host}:{far} HTTP/1.1\r\nHost: {host}:{far}\r\n\r\n"
    path = f"/probe-{secrets.token_hex(8)}"  # a path that no service has, so that an answer is not the part's own page
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
    """Checks, as a control, that a gateway reaches its part.

    By TLS where `tls` is given. All addresses at once: those on other networks do not answer, and each is waited for.
    """
    request = b"GET /health/live HTTP/1.1\r\nHost: health\r\nConnection: close\r\n\r\n"
    attempts = (
        http_status(address, port, request) if tls is None else http_status_by_tls(address, port, request, name, tls)
        for address in addresses
    )
    answers = [status for status in await asyncio.gather(*attempts) if status is not None]
    return make_result("control: its own part", name, "200", _join_statuses(answers), held=200 in answers)


SIDE_BY_SIDE = 64
Try = Coroutine[None, None, ProbeResult]


@dataclass(frozen=True)
class OutsideHost:
    """Host, ports and name that stand for the internet."""

    host: str = "1.1.1.1"
    tcp: int = 443
    udp: int = 53
    name: str = "example.com"


@dataclass(frozen=True)
class Surroundings:
    """Network around a part.

    parts: all others. hosts: addresses of the machine itself. published: ports that it may publish there. by_tls: the
    roles whose services answer by TLS, with the context to call them.
    """

    own: SystemPart
    parts: Mapping[str, SystemPart]
    hosts: tuple[str, ...]
    published: tuple[int, ...]
    outside: OutsideHost
    by_tls: Mapping[Role, ssl.SSLContext] = field(default_factory=dict)

    def own_gateway(self) -> SystemPart | None:
        """Returns the gateway that stands before this part, if any."""
        return next((part for part in self.parts.values() if part.behind == self.own.name), None)


async def probe_network(here: Surroundings) -> list[ProbeResult]:
    """Runs every network probe of this part's role, side by side."""
    tries = [*_separated_tries(here), *_outside_tries(here.outside), *_machine_tries(here)]
    results = await _run_side_by_side(tries)
    if (gateway := here.own_gateway()) is not None:
        results += await probe_gateway_as_proxy(gateway.addresses, gateway.port, (here.outside.host, here.outside.tcp))
    if (part := here.parts.get(here.own.behind or "")) is not None:
        results.append(await probe_gateway(part.name, part.addresses, part.port, here.by_tls.get(part.role)))
    return results


def _separated_tries(here: Surroundings) -> list[Try]:
    """Lists tries of every part that must be out of reach, by addresses and name."""
    return [
        _separation_test(here.own, part)(
            _separation_kind(here.own, part), f"{host}:{part.port}", reach.reach_host(host, part.port)
        )
        for part in here.parts.values()
        if not _belong_together(here.own, part)
        for host in dict.fromkeys((*part.addresses, part.name))
    ]


def _belong_together(own: SystemPart, part: SystemPart) -> bool:
    """Tells whether a part may call the other.

    A client calls the aggregator; a part and its own gateway call each other.
    """
    called = (own.role, part.role) == ("client", "aggregator")
    return called or part.behind == own.name or own.behind == part.name


def _separation_test(own: SystemPart, part: SystemPart) -> Callable[[str, str, Awaitable[Reach]], Try]:
    """Returns the test of two parts that must be apart.

    A client and the aggregator share a network: there the client must not listen. All others must be out of reach.
    """
    return _test_nobody_listens if (own.role, part.role) == ("aggregator", "client") else _test_out_of_reach


def _separation_kind(own: SystemPart, part: SystemPart) -> str:
    """Returns the kind of a try, by the roles of both parts."""
    silo = own.role == "client" or own.behind not in (None, "aggregator")
    client = "another client" if silo else "a client"
    kinds = {"aggregator": "the aggregator", "client": client, "gateway": f"{client}'s gateway"}
    return "to the aggregator's gateway" if part.behind == "aggregator" else f"to {kinds[part.role]}"


def _outside_tries(outside: OutsideHost) -> list[Try]:
    return [
        _test_out_of_reach(
            "outside by TCP", f"{outside.host}:{outside.tcp}", reach.reach_host(outside.host, outside.tcp)
        ),
        _test_out_of_reach(
            "outside by UDP", f"{outside.host}:{outside.udp}", reach.reach_udp(outside.host, outside.udp, outside.name)
        ),
        _test_unknown_name(outside.name),
    ]


def _machine_tries(here: Surroundings) -> list[Try]:
    """Lists tries of ports published on the machine's loopback, which must be closed here.

    The machine carries these networks and so has an address in them.
    """
    taken = {address for part in here.parts.values() for address in part.addresses}
    return [
        _test_nobody_listens("to the machine's published ports", f"{host}:{port}", reach.reach_tcp(host, port))
        for host in here.hosts
        if host not in taken
        for port in here.published
    ]


async def _test_out_of_reach(kind: str, name: str, tried: Awaitable[Reach]) -> ProbeResult:
    reached = await tried
    held = reached.outcome == "nothing"
    return make_result(kind, name, "out of reach", reached.words, held=held)


async def _test_nobody_listens(kind: str, name: str, tried: Awaitable[Reach]) -> ProbeResult:
    """Tests that no service listens; a refusal on a shared network is allowed."""
    reached = await tried
    held = reached.outcome != "answered"
    return make_result(kind, name, "nobody listens", reached.words, held=held)


async def _test_unknown_name(name: str) -> ProbeResult:
    resolved = await reach.resolve_name(name)
    held = not resolved.addresses
    return make_result("outside by DNS", name, "no address", resolved.words, held=held)


async def _run_side_by_side(tries: Sequence[Try]) -> list[ProbeResult]:
    """Runs tries concurrently, at most SIDE_BY_SIDE at once; returns results in order."""
    free = asyncio.Semaphore(SIDE_BY_SIDE)

    async def run_bounded(tried: Try) -> ProbeResult:
        async with free:
            return await tried

    return list(await asyncio.gather(*(run_bounded(tried) for tried in tries)))
