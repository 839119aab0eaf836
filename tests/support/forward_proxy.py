"""A forward proxy on loopback: CONNECT, and plain http by whole URLs; it alone knows where names lead."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from anyio.from_thread import start_blocking_portal

from shared.web.server import finish_accepting
from tests.support.serving import HOST

LONGEST_PIECE = 1 << 16


@dataclass
class ForwardProxy:
    """names: "host:port" -> port of loopback. login: "user:password" that it asks for. asked: the first lines that
    came. carried: all bytes that callers sent after a CONNECT."""

    names: Mapping[str, int]
    login: str | None = None
    port: int = 0
    asked: list[str] = field(default_factory=list)
    carried: bytearray = field(default_factory=bytearray)
    open: dict[asyncio.Future[None], asyncio.StreamWriter] = field(default_factory=dict, repr=False)

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection has come."""
        task = asyncio.ensure_future(self._answer(reader, writer))
        self.open[task] = writer
        task.add_done_callback(self.open.pop)

    async def end(self, server: asyncio.Server) -> None:
        """No more of them, also none that is about to come."""
        await finish_accepting()
        server.close()
        for task, writer in list(self.open.items()):
            task.cancel(), writer.transport.abort()
        await asyncio.gather(*self.open, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Its first head decides where it leads."""
        with suppress(OSError, EOFError):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
            self.asked.append(lines[0])
            method, target, _ = lines[0].split(" ")
            if not self._admits(lines[1:]):
                writer.write(b"HTTP/1.1 407 who-is-it\r\nContent-Length: 0\r\n\r\n")
            elif (port := self.names.get(_place(method, target))) is None:
                writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            elif method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await self._tunnel(reader, writer, port)
            else:
                await _forward(reader, writer, port, lines)
        with suppress(OSError):
            await writer.drain()
        writer.close()

    def _admits(self, headers: list[str]) -> bool:
        expected = None if self.login is None else base64.b64encode(self.login.encode()).decode()
        return expected is None or f"proxy-authorization: basic {expected}".lower() in map(str.lower, headers)

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        """Bytes both ways until one side is done."""
        there, onward = await asyncio.open_connection(HOST, port)
        up, down = (asyncio.ensure_future(one) for one in (self._carry(reader, onward), _pass(there, writer)))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel(), down.cancel(), onward.close()

    async def _carry(self, reader: asyncio.StreamReader, onward: asyncio.StreamWriter) -> None:
        while piece := await reader.read(LONGEST_PIECE):
            self.carried += piece
            onward.write(piece)
            await onward.drain()


async def _pass(there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await there.read(LONGEST_PIECE):
        writer.write(piece)
        await writer.drain()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, lines: list[str]) -> None:
    """One request by its path, with what proxies add to a head and without what was meant for this one."""
    method, target, _ = lines[0].split(" ")
    url = urlsplit(target)
    path = url.path + (f"?{url.query}" if url.query else "")
    kept = [line for line in lines[1:] if not line.lower().startswith("proxy-")]
    head = [f"{method} {path} HTTP/1.1", *kept, "Via: 1.1 proxy", f"X-Forwarded-For: {HOST}", "", ""]
    there, onward = await asyncio.open_connection(HOST, port)
    try:
        onward.write("\r\n".join(head).encode("latin-1") + await reader.readexactly(_length(lines)))
        answered = (await there.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        told = "\r\n".join([*answered, "Connection: close", "", ""]).encode("latin-1")
        writer.write(told + await there.readexactly(_length(answered)))
    finally:
        onward.close()


def _length(lines: list[str]) -> int:
    found = [line.partition(":")[2] for line in lines if line.lower().startswith("content-length:")]
    return int(found[0]) if found else 0


@contextmanager
def run_proxy(proxy: ForwardProxy, tls: ssl.SSLContext | None = None) -> Iterator[ForwardProxy]:
    """The proxy in a thread of its own, at `port`, which is chosen where it is 0."""
    with start_blocking_portal() as portal:
        server = portal.call(lambda: asyncio.start_server(proxy.begin, HOST, proxy.port, ssl=tls))
        proxy.port = server.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            portal.call(proxy.end, server)


def _place(method: str, target: str) -> str:
    if method == "CONNECT":
        return target
    url = urlsplit(target)
    return f"{url.hostname}:{url.port or 80}"
