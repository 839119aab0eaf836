"""What answers is found, what refuses has been reached, and only what is silent or unknown is out of reach."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from ipaddress import IPv4Interface
from typing import Any

import pytest

from audit.evidence import Probe
from audit.probes import addresses, network, proxy, reach
from audit.probes.meeting import Part
from audit.probes.network import Outside, Surroundings
from shared.web.relay import Relay

pytestmark = pytest.mark.anyio
HERE = "127.0.0.1"
Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


def saying(*answers: bytes) -> Handle:
    """A server that gives each caller the next answer, the last one for ever."""
    left = list(answers)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()
        writer.close()

    return handle


@asynccontextmanager
async def listening(handle: Handle = silent) -> AsyncIterator[int]:
    server = await asyncio.start_server(handle, HERE, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def closed_port() -> int:
    with closing(socket.socket()) as one:
        one.bind((HERE, 0))
        return int(one.getsockname()[1])


def failing(number: int) -> Callable[..., Coroutine[Any, Any, bytes]]:
    async def fail(*args: Any) -> bytes:
        del args
        raise OSError(number, "said by the network")

    return fail


async def hanging(*args: Any) -> bytes:
    del args
    await asyncio.Event().wait()
    return b""


async def test_a_listener_is_reached_and_so_is_a_host_that_refuses() -> None:
    async with listening() as port:
        assert await reach.at(HERE, port) == reach.Reach("answered", "connected")
    refused = await reach.at(HERE, closed_port())
    assert (refused.outcome, "reached" in refused.words) == ("refused", True)


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (errno.ENETUNREACH, "nothing"),
        (errno.EHOSTUNREACH, "nothing"),
        (errno.EPERM, "nothing"),
        (errno.ETIMEDOUT, "nothing"),
        (errno.ECONNREFUSED, "refused"),
        (errno.ECONNRESET, "answered"),
    ],
)
async def test_how_a_connection_fails_says_who_was_reached(
    monkeypatch: pytest.MonkeyPatch, number: int, outcome: str
) -> None:
    monkeypatch.setattr(reach, "connect", failing(number))
    assert (await reach.at("192.0.2.1", 443)).outcome == outcome
    monkeypatch.setattr(reach, "exchange", failing(number))
    assert (await reach.udp("192.0.2.1", 53, "example.com")).outcome == outcome


async def test_silence_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "SECONDS", 0.02)
    monkeypatch.setattr(reach, "connect", hanging)
    monkeypatch.setattr(reach, "exchange", hanging)
    for found in (await reach.at("192.0.2.1", 443), await reach.udp("192.0.2.1", 53, "example.com")):
        assert found == reach.Reach("nothing", "no answer within 0.02 s")


async def test_a_datagram_that_comes_back_has_been_outside() -> None:
    asked: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((HERE, 0))

        def answer() -> None:
            content, place = server.recvfrom(reach.BYTES)
            asked.append(content)
            server.sendto(content, place)

        thread = threading.Thread(target=answer)
        thread.start()
        found = await reach.udp(HERE, server.getsockname()[1], "www.example.com")
        thread.join()
    assert found.outcome == "answered"
    [question] = asked
    assert question[2:] == b"\1\0\0\1\0\0\0\0\0\0\3www\7example\3com\0\0\1\0\1"
    assert (await reach.udp(HERE, closed_port(), "example.com")).outcome == "refused"


def here(name: str) -> tuple[str, ...]:
    """Every name is this machine's."""
    del name
    return (HERE,)


async def test_a_name_is_out_of_reach_where_it_is_unknown_or_where_its_addresses_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listening() as port:
        monkeypatch.setattr(reach, "look_up", here)
        assert (await reach.at("client-2", port)).words == "the name is known, connected"
        assert (await reach.at("client-2", closed_port())).outcome == "refused"

    def unknown(name: str) -> tuple[str, ...]:
        raise socket.gaierror(socket.EAI_NONAME, f"{name} is not known")

    monkeypatch.setattr(reach, "look_up", unknown)
    assert await reach.at("client-2", 8801) == reach.Reach("nothing", "the name is unknown")
    assert (await reach.udp("client-2", 53, "example.com")).outcome == "nothing"


async def test_a_resolver_that_does_not_answer_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    released, done = threading.Event(), threading.Event()

    def slow(name: str) -> tuple[str, ...]:
        released.wait(10.0)
        done.set()
        return here(name)

    monkeypatch.setattr(reach, "look_up", slow)
    monkeypatch.setattr(reach, "RESOLVE_SECONDS", 0.02)
    assert await reach.resolve("example.com") == reach.Resolved((), "no answer about the name within 0.02 s")
    released.set()
    assert done.wait(10.0)


def test_names_are_looked_up_by_the_system() -> None:
    assert HERE in reach.look_up("localhost")


def part(name: str, role: Any, port: int, *places: str, behind: str | None = None) -> Part:
    return Part(name=name, role=role, port=port, addresses=places, behind=behind)


def around(own: str, *parts: Part, hosts: tuple[str, ...] = (), published: tuple[int, ...] = ()) -> Surroundings:
    everybody = {one.name: one for one in parts}
    mine = everybody.pop(own)
    return Surroundings(mine, everybody, hosts, published, Outside("192.0.2.9", 443, 53, "example.com"))


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

    monkeypatch.setattr(reach, "connect", connect)
    monkeypatch.setattr(reach, "exchange", failing(errno.ENETUNREACH))
    monkeypatch.setattr(reach, "look_up", unknown)
    monkeypatch.setattr(proxy, "status", status)
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
    found = await network.probe(around(own, *PARTS))
    second = {("10.0.2.2", 8800)} if "aggregator" in others else set()
    assert tried == OUTSIDE | set(others.values()) | {(name, 0) for name in others} | second
    assert all(one.held for one in found)
    kinds = {one.kind for one in found}
    assert kinds >= {"outside by TCP", "outside by UDP", "outside by DNS"}
    assert ("out through its own gateway" in kinds) == (own != "gateway-1")
    assert ("control: its own part" in kinds) == (own == "gateway-1")


async def test_whoever_is_reached_is_told_with_place_and_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as port:
        near = part("client-2", "client", port, HERE)
        monkeypatch.setattr(reach, "look_up", here)
        monkeypatch.setattr(reach, "exchange", failing(errno.ENETUNREACH))
        surroundings = around("client-1", PARTS[2], near)
        outside = Outside(HERE, closed_port(), 53, "example.com")
        found = await network.probe(Surroundings(surroundings.own, surroundings.parts, (), (), outside))
    told = {(one.kind, one.name): (one.held, one.observed) for one in found}
    assert told["to another client", f"{HERE}:{port}"] == (False, "connected")
    assert told["to another client", f"client-2:{port}"] == (False, "the name is known, connected")
    assert told["outside by TCP", f"{HERE}:{outside.tcp}"] == (False, "refused, so the host was reached")
    assert told["outside by DNS", "example.com"] == (False, "the name is known")
    assert told["outside by UDP", f"{HERE}:53"] == (True, "no route")


@pytest.mark.usefixtures("tried")
async def test_on_the_machine_s_own_side_nobody_may_listen_but_it_may_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(address: str, port: int) -> None:
        if (address, port) != ("10.0.1.1", 8801):
            raise OSError(errno.ECONNREFUSED, "refused")

    monkeypatch.setattr(reach, "connect", connect)
    hosts = ("10.0.1.1", "10.0.1.2")  # the second one is a part's own, and tried as such
    surroundings = around("client-1", *PARTS[:3], hosts=hosts, published=(8801, 8802))
    found = [one for one in await network.probe(surroundings) if one.kind == "to the machine's published ports"]
    assert [(one.name, one.held) for one in found] == [("10.0.1.1:8801", False), ("10.0.1.1:8802", True)]


def only(probes: tuple[Probe, ...]) -> list[tuple[str, str, bool]]:
    return [(one.name, one.observed, one.held) for one in probes]


async def test_a_gateway_that_passes_calls_on_to_anybody_is_found_out() -> None:
    open_to_all = saying(b"HTTP/1.1 200 Connection established\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n")
    async with listening(open_to_all) as port:
        found = await proxy.as_way_out((HERE,), port, ("192.0.2.9", 443))
    assert only(found) == [("CONNECT", "200", False), ("GET", "204", False)]
    async with listening(saying(b"HTTP/1.1 404 Not Found\r\n\r\n")) as port:
        found = await proxy.as_way_out((HERE, HERE), port, ("192.0.2.9", 443))
    assert only(found) == [("CONNECT", "404 and 404", True), ("GET", "404 and 404", True)]
    found = await proxy.as_way_out((HERE,), closed_port(), ("192.0.2.9", 443))
    assert only(found) == [("CONNECT", "no answer", True), ("GET", "no answer", True)]


async def test_the_project_s_own_relay_hands_such_calls_to_its_own_part() -> None:
    asked: list[bytes] = []

    async def behind(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" if b"/health/live" in asked[-1] else b"HTTP/1.1 404 Not Found\r\n\r\n")
        await writer.drain()
        writer.close()

    async with listening(behind) as own, listening(Relay(HERE, own).handle) as gateway:
        found = await proxy.as_way_out((HERE,), gateway, ("192.0.2.9", 443))
        control = await proxy.answering("client-1", (HERE,), gateway)
    assert [one.held for one in found] == [True, True] and control.held
    assert asked[0] == b"CONNECT 192.0.2.9:443 HTTP/1.1\r\n" and asked[1].startswith(b"GET http://192.0.2.9:443/probe-")


async def test_a_part_that_does_not_answer_its_own_gateway_is_no_control() -> None:
    async with listening(saying(b"SSH-2.0\r\n")) as port:
        found = await proxy.answering("client-1", (HERE,), port)
    assert only((found,)) == [("client-1", "no answer", False)]


def test_own_addresses_are_read_from_the_interfaces() -> None:
    found = addresses.own()
    assert not any(one.is_loopback for one in found)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        assert addresses._of(asking, "lo") == IPv4Interface("127.0.0.1/8")
        assert addresses._of(asking, "no-such-one") is None


def test_the_machine_is_at_the_first_address_of_each_network_wide_enough() -> None:
    found = [IPv4Interface(text) for text in ("172.20.0.5/16", "10.1.2.3/32", "10.1.2.4/31", "172.21.0.1/24")]
    assert addresses.hosts(tuple(found)) == ("172.20.0.1",)
