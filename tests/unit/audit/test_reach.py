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

from audit.evidence.evidence import ProbeResult
from audit.probes import network, reach
from shared.web.relay import Relay
from tests.support.questions import LONGEST_SECONDS

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
        assert await reach.reach_host(HERE, port) == reach.Reach("answered", "connected")
    refused = await reach.reach_host(HERE, closed_port())
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
    monkeypatch.setattr(reach, "open_and_close", failing(number))
    assert (await reach.reach_host("192.0.2.1", 443)).outcome == outcome
    monkeypatch.setattr(reach, "exchange_bytes", failing(number))
    assert (await reach.reach_udp("192.0.2.1", 53, "example.com")).outcome == outcome


async def test_silence_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "SECONDS", 0.02)
    monkeypatch.setattr(reach, "open_and_close", hanging)
    monkeypatch.setattr(reach, "exchange_bytes", hanging)
    for found in (await reach.reach_host("192.0.2.1", 443), await reach.reach_udp("192.0.2.1", 53, "example.com")):
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
        found = await reach.reach_udp(HERE, server.getsockname()[1], "www.example.com")
        thread.join()
    assert found.outcome == "answered"
    [question] = asked
    assert question[2:] == b"\1\0\0\1\0\0\0\0\0\0\3www\7example\3com\0\0\1\0\1"
    assert (await reach.reach_udp(HERE, closed_port(), "example.com")).outcome == "refused"


def here(name: str) -> tuple[str, ...]:
    """Every name is this machine's."""
    del name
    return (HERE,)


async def test_a_name_is_out_of_reach_where_it_is_unknown_or_where_its_addresses_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listening() as port:
        monkeypatch.setattr(reach, "look_up_addresses", here)
        assert (await reach.reach_host("client-2", port)).words == "the name is known, connected"
        assert (await reach.reach_host("client-2", closed_port())).outcome == "refused"

    def unknown(name: str) -> tuple[str, ...]:
        raise socket.gaierror(socket.EAI_NONAME, f"{name} is not known")

    monkeypatch.setattr(reach, "look_up_addresses", unknown)
    assert await reach.reach_host("client-2", 8801) == reach.Reach("nothing", "the name is unknown")
    assert (await reach.reach_udp("client-2", 53, "example.com")).outcome == "nothing"


async def test_a_resolver_that_does_not_answer_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    released, done = threading.Event(), threading.Event()

    def slow(name: str) -> tuple[str, ...]:
        released.wait(LONGEST_SECONDS)
        done.set()
        return here(name)

    monkeypatch.setattr(reach, "look_up_addresses", slow)
    monkeypatch.setattr(reach, "RESOLVE_SECONDS", 0.02)
    assert await reach.resolve_name("example.com") == reach.ResolvedName((), "no answer about the name within 0.02 s")
    released.set()
    assert done.wait(LONGEST_SECONDS)


def test_names_are_looked_up_by_the_system() -> None:
    assert HERE in reach.look_up_addresses("localhost")


def only(probes: tuple[ProbeResult, ...]) -> list[tuple[str, str, bool]]:
    return [(one.name, one.observed, one.held) for one in probes]


async def test_a_gateway_that_passes_calls_on_to_anybody_is_found_out() -> None:
    open_to_all = saying(b"HTTP/1.1 200 Connection established\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n")
    async with listening(open_to_all) as port:
        found = await network.probe_gateway_as_proxy((HERE,), port, ("192.0.2.9", 443))
    assert only(found) == [("CONNECT", "200", False), ("GET", "204", False)]
    async with listening(saying(b"HTTP/1.1 404 Not Found\r\n\r\n")) as port:
        found = await network.probe_gateway_as_proxy((HERE, HERE), port, ("192.0.2.9", 443))
    assert only(found) == [("CONNECT", "404 and 404", True), ("GET", "404 and 404", True)]
    found = await network.probe_gateway_as_proxy((HERE,), closed_port(), ("192.0.2.9", 443))
    assert only(found) == [("CONNECT", "no answer", True), ("GET", "no answer", True)]


async def test_the_project_s_own_relay_hands_such_calls_to_its_own_part() -> None:
    asked: list[bytes] = []

    async def behind(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" if b"/health/live" in asked[-1] else b"HTTP/1.1 404 Not Found\r\n\r\n")
        await writer.drain()
        writer.close()

    async with listening(behind) as own, listening(Relay(HERE, own).handle) as gateway:
        found = await network.probe_gateway_as_proxy((HERE,), gateway, ("192.0.2.9", 443))
        control = await network.probe_gateway("client-1", (HERE,), gateway)
    assert [one.held for one in found] == [True, True] and control.held
    assert asked[0] == b"CONNECT 192.0.2.9:443 HTTP/1.1\r\n" and asked[1].startswith(b"GET http://192.0.2.9:443/probe-")


async def test_a_part_that_does_not_answer_its_own_gateway_is_no_control() -> None:
    async with listening(saying(b"SSH-2.0\r\n")) as port:
        found = await network.probe_gateway("client-1", (HERE,), port)
    assert only((found,)) == [("client-1", "no answer", False)]


def test_own_addresses_are_read_from_the_interfaces() -> None:
    found = network.own_interfaces()
    assert not any(one.is_loopback for one in found)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        assert network._interface_address(asking, "lo") == IPv4Interface("127.0.0.1/8")
        assert network._interface_address(asking, "no-such-one") is None


def test_the_machine_is_at_the_first_address_of_each_network_wide_enough() -> None:
    found = [IPv4Interface(text) for text in ("172.20.0.5/16", "10.1.2.3/32", "10.1.2.4/31", "172.21.0.1/24")]
    assert network.machine_addresses(tuple(found)) == ("172.20.0.1",)
