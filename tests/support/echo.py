"""A server on loopback that answers with what came, and a caller of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from tests.support.questions import LONGEST_SECONDS


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with what came, once all has come."""
    writer.write(b"echo " + await reader.read())
    await writer.drain()
    writer.close()


@asynccontextmanager
async def listening(handle: object) -> AsyncIterator[int]:
    server = await asyncio.start_server(handle, "127.0.0.1", 0)  # type: ignore[arg-type]
    async with server:
        yield server.sockets[0].getsockname()[1]


async def asked(port: int, content: bytes) -> bytes:
    with anyio.fail_after(LONGEST_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(content)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        return answer
