"""Who stands where, and what lies outside -> tries to reach whom this part must not, and whom it must."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field

from audit.evidence import Probe, Role
from audit.probes import reach
from audit.probes.meeting import Part
from audit.probes.proxy import answering, as_way_out
from audit.probes.reach import Reach

SIDE_BY_SIDE = 64
Try = Coroutine[None, None, Probe]


@dataclass(frozen=True)
class Outside:
    """What stands for the internet."""

    host: str = "1.1.1.1"
    tcp: int = 443
    udp: int = 53
    name: str = "example.com"


@dataclass(frozen=True)
class Surroundings:
    """`parts`: all others. `hosts`: where this machine itself may be; `published`: ports that it may publish there.
    `by_tls`: the roles whose services answer by TLS, and whom to believe there."""

    own: Part
    parts: Mapping[str, Part]
    hosts: tuple[str, ...]
    published: tuple[int, ...]
    outside: Outside
    by_tls: Mapping[Role, ssl.SSLContext] = field(default_factory=dict)

    def gateway(self) -> Part | None:
        """The gateway that stands before this part."""
        return next((part for part in self.parts.values() if part.behind == self.own.name), None)


async def probe(here: Surroundings) -> list[Probe]:
    """Every try of this part's role, side by side."""
    tries = [*_away(here), *_outside(here.outside), *_machine(here)]
    found = await _side_by_side(tries)
    if (gateway := here.gateway()) is not None:
        found += await as_way_out(gateway.addresses, gateway.port, (here.outside.host, here.outside.tcp))
    if (part := here.parts.get(here.own.behind or "")) is not None:
        found.append(await answering(part.name, part.addresses, part.port, here.by_tls.get(part.role)))
    return found


def _away(here: Surroundings) -> list[Try]:
    """Every part that this one has no business with, at each of its addresses and by its name."""
    return [
        _tried(here.own, part)(_kind(here.own, part), f"{host}:{part.port}", reach.at(host, part.port))
        for part in here.parts.values()
        if not _near(here.own, part)
        for host in dict.fromkeys((*part.addresses, part.name))
    ]


def _near(own: Part, part: Part) -> bool:
    """A client calls the aggregator; a part and its own gateway belong together."""
    called = (own.role, part.role) == ("client", "aggregator")
    return called or part.behind == own.name or own.behind == part.name


def _tried(own: Part, part: Part) -> Callable[[str, str, Awaitable[Reach]], Try]:
    """A client calls the aggregator, so that they share a network: there it must not listen. All else is apart."""
    return _nobody_listens if (own.role, part.role) == ("aggregator", "client") else _out_of_reach


def _kind(own: Part, part: Part) -> str:
    """Of a client, whether one of many is trying or one of the aggregator's side."""
    silo = own.role == "client" or own.behind not in (None, "aggregator")
    client = "another client" if silo else "a client"
    kinds = {"aggregator": "the aggregator", "client": client, "gateway": f"{client}'s gateway"}
    return "to the aggregator's gateway" if part.behind == "aggregator" else f"to {kinds[part.role]}"


def _outside(outside: Outside) -> list[Try]:
    return [
        _out_of_reach("outside by TCP", f"{outside.host}:{outside.tcp}", reach.at(outside.host, outside.tcp)),
        _out_of_reach(
            "outside by UDP", f"{outside.host}:{outside.udp}", reach.udp(outside.host, outside.udp, outside.name)
        ),
        _unknown(outside.name),
    ]


def _machine(here: Surroundings) -> list[Try]:
    """Ports that are published to the machine's own loopback must not be open on its side of these networks.

    The machine itself is there, as it carries them.
    """
    taken = {address for part in here.parts.values() for address in part.addresses}
    return [
        _nobody_listens("to the machine's published ports", f"{host}:{port}", reach.tcp(host, port))
        for host in here.hosts
        if host not in taken
        for port in here.published
    ]


async def _out_of_reach(kind: str, name: str, tried: Awaitable[Reach]) -> Probe:
    found = await tried
    held = found.outcome == "nothing"
    return Probe(kind=kind, name=name, expected="out of reach", observed=found.words, held=held)


async def _nobody_listens(kind: str, name: str, tried: Awaitable[Reach]) -> Probe:
    """Where two must share a network, a refusal says no more than that they do."""
    found = await tried
    held = found.outcome != "answered"
    return Probe(kind=kind, name=name, expected="nobody listens", observed=found.words, held=held)


async def _unknown(name: str) -> Probe:
    found = await reach.resolve(name)
    held = not found.addresses
    return Probe(kind="outside by DNS", name=name, expected="no address", observed=found.words, held=held)


async def _side_by_side(tries: Sequence[Try]) -> list[Probe]:
    """So many at once, each bounded by itself; in the order given."""
    free = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(tried: Try) -> Probe:
        async with free:
            return await tried

    return list(await asyncio.gather(*(one(tried) for tried in tries)))
