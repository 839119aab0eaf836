"""A TCP proxy between one client and the aggregator. It spoils the requests that it is aimed at and passes the others.

It knows as much of HTTP as it needs to find where a message ends: a head, and a body of the announced length.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

import anyio

HOST = "127.0.0.1"
RESET = struct.pack("ii", 1, 0)  # SO_LINGER for no time at all: closing sends RST instead of FIN
LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
CHUNKED = b"transfer-encoding: chunked"
GONE = (ConnectionError, asyncio.IncompleteReadError)

Direction = Literal["request", "answer"]
End = Literal["none", "reset", "close", "silence", "vanish"]


@dataclass(frozen=True)
class Fault:
    """What happens to one request.

    `delay`: seconds before the head, and before each `chunk` of the body, in the messages that are `slow`. `end`: what
    becomes of the connection: both sockets are reset or closed, both stay open while nothing passes any more
    (silence), or the client's is reset while the aggregator's stays open (vanish). `way`, `share`: in which message,
    and how much of its body has passed by then; None: nothing, not even its head. `repeat`: the request comes a second
    time, and that answer goes nowhere.
    """

    delay: float = 0.0
    chunk: int = 512
    slow: tuple[Direction, ...] = ("request", "answer")
    end: End = "none"
    way: Direction = "request"
    share: float | None = None
    repeat: Literal["none", "before", "beside", "after"] = "none"

    def breaks(self, way: Direction) -> bool:
        return self.end != "none" and self.way == way


PASSED = Fault()


class BrokenOffError(Exception):
    """The fault ends the connection here, in its way."""

    def __init__(self, end: End) -> None:
        super().__init__(end)
        self.end = end


@dataclass
class Aim:
    """A fault for the next `left` requests whose first line has the pattern in it."""

    pattern: re.Pattern[str]
    fault: Fault
    left: float


@dataclass(frozen=True)
class Line:
    """One connection of the client, and the one to the aggregator that belongs to it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    far_reader: asyncio.StreamReader
    far_writer: asyncio.StreamWriter


@dataclass
class Proxy:
    """Listens while `listening`. `spoilt`: the first lines of the requests that a fault has met."""

    port: int  # of the aggregator
    spoilt: list[str] = field(default_factory=list)
    mistakes: list[BaseException] = field(default_factory=list)  # its own
    _aims: list[Aim] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _kept: list[asyncio.StreamWriter] = field(default_factory=list)  # to the aggregator, for nobody any more

    def aim(self, pattern: str, fault: Fault, times: float = 1) -> None:
        """At the next requests whose first line has the pattern in it. Counted after all earlier aims."""
        self._aims.append(Aim(re.compile(pattern), fault, times))

    def heal(self) -> None:
        """From the next request on everything passes. What hangs already goes on hanging."""
        self._aims.clear()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """The address that a client is to call instead of the aggregator's."""
        server = await asyncio.start_server(self._connected, HOST, 0)
        try:
            yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
        finally:
            with anyio.CancelScope(shield=True):  # a test that runs out of time must still end it
                await self._end(server)
            assert self.mistakes == []

    async def _end(self, server: asyncio.Server) -> None:
        # Closing at once would leave behind the socket of whoever is being let in at this moment.
        asyncio.get_running_loop().remove_reader(server.sockets[0].fileno())
        await asyncio.sleep(0.02)
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._kept:
            writer.close()
        await asyncio.sleep(0)  # a transport closes its socket in the loop's next turn

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (mistake := task.exception()):
            self.mistakes.append(mistake)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the client."""
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self.port)
            self._kept.append(far_writer)
            end = await self._followed(Line(reader, writer, far_reader, far_writer))
            if end == "silence":
                await _hung_up(reader)
            if end in ("reset", "vanish"):
                reset(writer)
            if end == "reset":
                reset(far_writer)
            if end in ("none", "close"):
                far_writer.close()
        finally:
            writer.close()

    async def _followed(self, line: Line) -> End:
        """Request by request, until one side hangs up or a fault ends the connection: in which way?"""
        try:
            while True:
                request = await _message(line.reader)
                await self._exchange(line, request, self._fault(request))
        except GONE:
            return "none"
        except BrokenOffError as broken:
            return broken.end

    async def _exchange(self, line: Line, request: bytes, fault: Fault) -> None:
        if fault.repeat == "before":
            await self._apart(request)
        beside = [self._apart(request)] if fault.repeat == "beside" else []
        await asyncio.gather(_pass(request, line.far_writer, fault, "request"), *beside)
        answer = await _answered(line)
        if fault.repeat == "after":
            await self._apart(request)
        await _pass(answer, line.writer, fault, "answer")
        if CHUNKED in answer.lower():
            await _pass_stream(line)

    def _fault(self, request: bytes) -> Fault:
        first = request.partition(b"\r\n")[0].decode("ascii")
        for aim in self._aims:
            if aim.left > 0 and aim.pattern.search(first):
                aim.left -= 1
                self.spoilt.append(first)
                return aim.fault
        return PASSED

    async def _apart(self, request: bytes) -> None:
        """The same bytes over a connection of their own; whatever is answered goes nowhere."""
        reader, writer = await asyncio.open_connection(HOST, self.port)
        try:
            writer.write(request)
            await _message(reader)
        finally:
            writer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    """One whole message: its head, and as many bytes more as the head announces."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert CHUNKED not in head.lower() or head.startswith(b"HTTP/1.1 "), "no request of this project has chunks"
    length = LENGTH.search(head)
    return head + (await reader.readexactly(int(length[1])) if length else b"")


async def _answered(line: Line) -> bytes:
    """The answer of the aggregator; a client that hangs up meanwhile is heard."""
    answer, gone = asyncio.create_task(_message(line.far_reader)), asyncio.create_task(_hung_up(line.reader))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            gone.result()
            raise ConnectionResetError("the client has hung up")
        return answer.result()
    finally:
        for task in (answer, gone):
            task.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


async def _pass_stream(line: Line) -> None:
    """The events of a held answer as they come, until one side hangs up."""

    async def pass_events() -> None:
        while piece := await line.far_reader.read(1 << 16):
            line.writer.write(piece)
            await line.writer.drain()

    ends = [asyncio.create_task(one) for one in (pass_events(), _hung_up(line.reader))]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        raise ConnectionResetError("one side has hung up")
    finally:
        for task in ends:
            task.cancel()
        await asyncio.gather(*ends, return_exceptions=True)


async def _hung_up(reader: asyncio.StreamReader) -> None:
    """Until the client does. It sends nothing before it has an answer."""
    with suppress(ConnectionError):
        assert await reader.read(1) == b""


async def _pass(message: bytes, writer: asyncio.StreamWriter, fault: Fault, way: Direction) -> None:
    """Piece by piece; BrokenOffError where the fault says so."""
    breaks = fault.breaks(way)
    for piece in _pieces(message, fault, fault.share if breaks else 1.0):
        await asyncio.sleep(fault.delay if way in fault.slow else 0.0)
        writer.write(piece)
        await writer.drain()
    if breaks:
        raise BrokenOffError(fault.end)


def _pieces(message: bytes, fault: Fault, share: float | None) -> Iterator[bytes]:
    """The head, and the chunks of so much of the body; nothing at all where the share is None."""
    if share is not None:
        head, end, body = message.partition(b"\r\n\r\n")
        yield head + end
        for start in range(0, passing := int(share * len(body)), fault.chunk):
            yield body[start : min(start + fault.chunk, passing)]


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
