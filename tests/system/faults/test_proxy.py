"""The proxy does to a connection what a fault says, as both of its sides see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from tests.support.questions import LONGEST_SECONDS
from tests.system.faults.proxy import HOST, PASSED, Fault, Proxy

pytestmark = pytest.mark.anyio
HEAD = b"PUT /update HTTP/1.1\r\nContent-Length: 10\r\n\r\n"
REQUEST = HEAD + b"0123456789"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nDone"
RESET = b"<reset>"


@dataclass
class Behind:
    """Answers every whole request, and notes for each connection what came and how it ended."""

    came: list[bytes] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.came)
        self.came.append(b"")
        try:
            while piece := await reader.read(100):
                self.came[number] += piece
                if self.came[number].endswith(REQUEST):
                    writer.write(ANSWER)
        except ConnectionResetError:
            self.came[number] += RESET
        finally:
            writer.close()
        self.ended.append(number)


@dataclass
class Line:
    """A proxy before somebody who answers, and a connection to it."""

    behind: Behind
    proxy: Proxy
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def asked(self, length: int = len(ANSWER)) -> bytes:
        """What comes after a request: so many bytes, or fewer and how it ended."""
        self.writer.write(REQUEST)
        try:
            return await self.reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            return error.partial
        except ConnectionResetError:
            return RESET

    async def behind_ended(self, connections: int = 1) -> list[bytes]:
        while len(self.behind.ended) < connections:
            await anyio.sleep(0.01)
        return self.behind.came


@asynccontextmanager
async def line(fault: Fault, times: float = 1) -> AsyncIterator[Line]:
    behind = Behind()
    server = await asyncio.start_server(behind.handle, HOST, 0)
    proxy = Proxy(server.sockets[0].getsockname()[1])
    proxy.aim("^PUT /update ", fault, times)
    with anyio.fail_after(LONGEST_SECONDS):
        async with server, proxy.listening() as url:
            reader, writer = await asyncio.open_connection(HOST, int(url.rpartition(":")[2]))
            try:
                yield Line(behind, proxy, reader, writer)
            finally:
                writer.close()


@pytest.mark.parametrize("fault", [PASSED, Fault(delay=0.01, chunk=7)])
async def test_what_passes_passes_whole_as_often_as_asked(fault: Fault) -> None:
    async with line(fault, times=2) as found:
        assert [await found.asked() for _ in range(3)] == [ANSWER] * 3
        assert found.behind.came == [REQUEST * 3]
        assert found.proxy.spoilt == ["PUT /update HTTP/1.1"] * 2


async def test_a_fault_meets_only_what_it_is_aimed_at_until_the_proxy_is_healed() -> None:
    async with line(PASSED) as found:
        found.proxy.aim("^GET ", Fault(end="close"))
        assert [await found.asked(), await found.asked()] == [ANSWER] * 2
        found.proxy.aim("^PUT ", Fault(end="close"))
        found.proxy.heal()
        assert await found.asked() == ANSWER


HALF = HEAD + b"01234"


@pytest.mark.parametrize(
    ("fault", "heard", "came"),
    [
        (Fault(end="reset", share=0.5), {RESET}, {HALF + RESET, RESET}),
        (Fault(end="reset", way="answer", share=0.5), {ANSWER[:-2], RESET}, {REQUEST + RESET}),
        (Fault(end="close", share=0.5), {b""}, {HALF}),
        (Fault(end="close", way="answer", share=0.5), {ANSWER[:-2]}, {REQUEST}),
    ],
)
async def test_what_is_reset_or_cut_short_ends_so_for_both(fault: Fault, heard: set[bytes], came: set[bytes]) -> None:
    async with line(fault) as found:
        assert await found.asked() in heard
        [one] = await found.behind_ended()
        assert one in came


@pytest.mark.parametrize(("fault", "came"), [(Fault(end="silence"), b""), (Fault(end="silence", share=0.5), HALF)])
async def test_silence_is_heard_by_both_even_after_the_client_has_hung_up(fault: Fault, came: bytes) -> None:
    async with line(fault) as found:
        with anyio.move_on_after(0.1) as patience:
            await found.asked()
        assert patience.cancelled_caught
        found.writer.close()
        await anyio.sleep(0.1)
        assert (found.behind.came, found.behind.ended) == ([came], [])


async def test_of_a_client_that_has_vanished_the_other_side_hears_nothing() -> None:
    async with line(Fault(end="vanish", way="answer")) as found:
        assert await found.asked() == RESET
        await anyio.sleep(0.1)
        assert (found.behind.came, found.behind.ended) == ([REQUEST], [])


@pytest.mark.parametrize("when", ["before", "beside", "after"])
async def test_a_request_that_is_repeated_comes_twice_and_is_answered_once(when: str) -> None:
    async with line(Fault(repeat=when)) as found:  # type: ignore[arg-type]
        assert await found.asked() == ANSWER
        assert found.behind.came == [REQUEST, REQUEST]
        assert await found.asked() == ANSWER
        assert found.behind.came == [REQUEST * 2, REQUEST]
