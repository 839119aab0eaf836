"""The parts of the system and the outside -> attempts to reach the parts that this one must not reach, and those that
it must."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field

from audit.evidence import ProbeResult, Role, make_result
from audit.probes import reach
from audit.probes.meeting import SystemPart
from audit.probes.proxy import probe_gateway, probe_way_out
from audit.probes.reach import Reach

SIDE_BY_SIDE = 64
Try = Coroutine[None, None, ProbeResult]


@dataclass(frozen=True)
class OutsideHost:
    """The host, its ports and the name that stand for the internet."""

    host: str = "1.1.1.1"
    tcp: int = 443
    udp: int = 53
    name: str = "example.com"


@dataclass(frozen=True)
class Surroundings:
    """`parts`: all others. `hosts`: where this machine itself may be; `published`: ports that it may publish there.
    `by_tls`: the roles whose services answer by TLS, and whom to believe there."""

    own: SystemPart
    parts: Mapping[str, SystemPart]
    hosts: tuple[str, ...]
    published: tuple[int, ...]
    outside: OutsideHost
    by_tls: Mapping[Role, ssl.SSLContext] = field(default_factory=dict)

    def own_gateway(self) -> SystemPart | None:
        """The gateway that stands before this part."""
        return next((part for part in self.parts.values() if part.behind == self.own.name), None)


async def probe_network(here: Surroundings) -> list[ProbeResult]:
    """Every try of this part's role, side by side."""
    tries = [*_separated_tries(here), *_outside_tries(here.outside), *_machine_tries(here)]
    results = await _run_side_by_side(tries)
    if (gateway := here.own_gateway()) is not None:
        results += await probe_way_out(gateway.addresses, gateway.port, (here.outside.host, here.outside.tcp))
    if (part := here.parts.get(here.own.behind or "")) is not None:
        results.append(await probe_gateway(part.name, part.addresses, part.port, here.by_tls.get(part.role)))
    return results


def _separated_tries(here: Surroundings) -> list[Try]:
    """Every part that this one has no business with, at each of its addresses and by its name."""
    return [
        _separation_test(here.own, part)(
            _separation_kind(here.own, part), f"{host}:{part.port}", reach.reach_host(host, part.port)
        )
        for part in here.parts.values()
        if not _belong_together(here.own, part)
        for host in dict.fromkeys((*part.addresses, part.name))
    ]


def _belong_together(own: SystemPart, part: SystemPart) -> bool:
    """A client calls the aggregator; a part and its own gateway belong together."""
    called = (own.role, part.role) == ("client", "aggregator")
    return called or part.behind == own.name or own.behind == part.name


def _separation_test(own: SystemPart, part: SystemPart) -> Callable[[str, str, Awaitable[Reach]], Try]:
    """A client calls the aggregator, so that they share a network: there it must not listen. All else is apart."""
    return _test_nobody_listens if (own.role, part.role) == ("aggregator", "client") else _test_out_of_reach


def _separation_kind(own: SystemPart, part: SystemPart) -> str:
    """Of a client, whether one of many is trying or one of the aggregator's side."""
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
    """Ports that are published to the machine's own loopback must not be open on its side of these networks.

    The machine itself is there, as it carries them.
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
    """Where two must share a network, a refusal says no more than that they do."""
    reached = await tried
    held = reached.outcome != "answered"
    return make_result(kind, name, "nobody listens", reached.words, held=held)


async def _test_unknown_name(name: str) -> ProbeResult:
    resolved = await reach.resolve_name(name)
    held = not resolved.addresses
    return make_result("outside by DNS", name, "no address", resolved.words, held=held)


async def _run_side_by_side(tries: Sequence[Try]) -> list[ProbeResult]:
    """So many at once, each bounded by itself; in the order given."""
    free = asyncio.Semaphore(SIDE_BY_SIDE)

    async def run_bounded(tried: Try) -> ProbeResult:
        async with free:
            return await tried

    return list(await asyncio.gather(*(run_bounded(tried) for tried in tries)))
