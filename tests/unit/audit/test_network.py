"""Each part tries to reach all that it has no business with, and whoever is reached is told."""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from audit.probes import network, reach
from audit.probes.meeting import SystemPart
from audit.probes.network import OutsideHost, Surroundings

pytestmark = pytest.mark.anyio


def failing(number: int) -> Callable[..., Coroutine[Any, Any, bytes]]:
    async def fail(*args: Any) -> bytes:
        del args
        raise OSError(number, "said by the network")

    return fail


def part(name: str, role: Any, port: int, *places: str, behind: str | None = None) -> SystemPart:
    return SystemPart(name=name, role=role, port=port, addresses=places, behind=behind)


def around(own: str, *parts: SystemPart, hosts: tuple[str, ...] = (), published: tuple[int, ...] = ()) -> Surroundings:
    everybody = {one.name: one for one in parts}
    mine = everybody.pop(own)
    return Surroundings(mine, everybody, hosts, published, OutsideHost("192.0.2.9", 443, 53, "example.com"))


PARTS = (
    part("aggregator", "aggregator", 8800, "10.0.1.2", "10.0.2.2"),
    part("gateway", "gateway", 8800, "10.0.9.2", behind="aggregator"),
    part("client-1", "client", 8801, "10.0.1.3"),
    part("client-2", "client", 8801, "10.0.2.3"),
    part("gateway-1", "gateway", 8800, "10.0.3.2", behind="client-1"),
    part("gateway-2", "gateway", 8800, "10.0.4.2", behind="client-2"),
)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, int]]:
    """Nobody is reached; what was tried is remembered."""
    made: set[tuple[str, int]] = set()

    async def connect(address: str, port: int) -> None:
        made.add((address, port))
        raise OSError(errno.EHOSTUNREACH, "no route")

    async def status(address: str, port: int, request: bytes) -> int:
        del address, port
        return 200 if b"/health/live" in request else 404

    def unknown(name: str) -> tuple[str, ...]:
        made.add((name, 0))
        raise OSError("unknown")

    monkeypatch.setattr(reach, "open_and_close", connect)
    monkeypatch.setattr(reach, "exchange_bytes", failing(errno.ENETUNREACH))
    monkeypatch.setattr(reach, "look_up_addresses", unknown)
    monkeypatch.setattr(network, "http_status", status)
    return made


OUTSIDE = {("192.0.2.9", 443), ("example.com", 0)}


@pytest.mark.parametrize(
    ("own", "others"),
    [
        ("client-1", {"client-2": ("10.0.2.3", 8801), "gateway-2": ("10.0.4.2", 8800), "gateway": ("10.0.9.2", 8800)}),
        (
            "aggregator",
            {
                "client-1": ("10.0.1.3", 8801),
                "client-2": ("10.0.2.3", 8801),
                "gateway-1": ("10.0.3.2", 8800),
                "gateway-2": ("10.0.4.2", 8800),
            },
        ),
        (
            "gateway-1",
            {
                "aggregator": ("10.0.1.2", 8800),
                "gateway": ("10.0.9.2", 8800),
                "client-2": ("10.0.2.3", 8801),
                "gateway-2": ("10.0.4.2", 8800),
            },
        ),
    ],
)
async def test_each_part_tries_all_that_it_has_no_business_with(
    tried: set[tuple[str, int]], own: str, others: dict[str, tuple[str, int]]
) -> None:
    found = await network.probe_network(around(own, *PARTS))
    second = {("10.0.2.2", 8800)} if "aggregator" in others else set()
    assert tried == OUTSIDE | set(others.values()) | {(name, 0) for name in others} | second
    assert all(one.held for one in found)
    kinds = {one.kind for one in found}
    assert kinds >= {"outside by TCP", "outside by UDP", "outside by DNS"}
    assert ("out through its own gateway" in kinds) == (own != "gateway-1")
    assert ("control: its own part" in kinds) == (own == "gateway-1")


async def test_whoever_is_reached_is_told_with_place_and_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(address: str, port: int) -> None:
        if (address, port) != ("10.0.2.3", 8801):
            raise OSError(errno.ECONNREFUSED, "refused")

    monkeypatch.setattr(reach, "open_and_close", connect)
    monkeypatch.setattr(
        reach, "look_up_addresses", lambda name: ("10.0.2.3",) if name == "client-2" else ("192.0.2.8",)
    )
    monkeypatch.setattr(reach, "exchange_bytes", failing(errno.ENETUNREACH))
    found = await network.probe_network(around("client-1", *PARTS[2:4]))
    told = {(one.kind, one.name): (one.held, one.observed) for one in found}
    assert told["to another client", "10.0.2.3:8801"] == (False, "connected")
    assert told["to another client", "client-2:8801"] == (False, "the name is known, connected")
    assert told["outside by TCP", "192.0.2.9:443"] == (False, "refused, so the host was reached")
    assert told["outside by DNS", "example.com"] == (False, "the name is known")
    assert told["outside by UDP", "192.0.2.9:53"] == (True, "no route")


@pytest.mark.usefixtures("tried")
@pytest.mark.parametrize(
    ("own", "number", "held"),
    [
        ("aggregator", errno.ECONNREFUSED, True),  # the client calls it, so that both are on one network
        ("aggregator", errno.ECONNRESET, False),
        ("client-1", errno.ECONNREFUSED, False),
        ("gateway-1", errno.ECONNREFUSED, False),
        ("gateway", errno.ECONNREFUSED, False),
    ],
)
async def test_a_refusal_is_enough_only_where_two_must_share_a_network(
    monkeypatch: pytest.MonkeyPatch, own: str, number: int, held: bool
) -> None:
    monkeypatch.setattr(reach, "open_and_close", failing(number))
    found = {one.name: one.held for one in await network.probe_network(around(own, *PARTS))}
    assert found["10.0.2.3:8801"] == held
    assert not found["10.0.4.2:8800"]  # a gateway shares nothing but with its own part


@pytest.mark.usefixtures("tried")
async def test_on_the_machine_s_own_side_nobody_may_listen_but_it_may_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(address: str, port: int) -> None:
        if (address, port) != ("10.0.1.1", 8801):
            raise OSError(errno.ECONNREFUSED, "refused")

    monkeypatch.setattr(reach, "open_and_close", connect)
    hosts = ("10.0.1.1", "10.0.1.2")  # the second one is a part's own, and tried as such
    surroundings = around("client-1", *PARTS[:3], hosts=hosts, published=(8801, 8802))
    found = [one for one in await network.probe_network(surroundings) if one.kind == "to the machine's published ports"]
    assert [(one.name, one.held) for one in found] == [("10.0.1.1:8801", False), ("10.0.1.1:8802", True)]
