"""A held answer on a real socket, by TLS or not: its pieces, its end, and callers that are cut off."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from fastapi import FastAPI, Request

from shared.web.held_streams import LAST_CHUNK, HeldConnection, HeldResponse, encode_chunk, find_hold
from shared.web.listening import ListenSettings
from tests.support.questions import LONGEST_SECONDS
from tests.support.serving import HOST, serve

if TYPE_CHECKING:
    from conftest import Papers

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("secure", [False, True])]
REQUEST = b"GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n"
Act = Callable[..., Awaitable[None]]


@asynccontextmanager
async def held(
    papers: Papers, *, secure: bool
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, Act]]:
    """The caller's side of a held answer, whose head has come, and `act`: calls a method of the server's side."""
    app, opened = FastAPI(), asyncio.Queue[HeldConnection]()
    loop, servers = asyncio.get_running_loop(), list[asyncio.AbstractEventLoop]()

    def begin(connection: HeldConnection) -> None:
        servers.append(asyncio.get_running_loop())
        loop.call_soon_threadsafe(opened.put_nowait, connection)

    @app.get("/held")
    async def hold(request: Request) -> HeldResponse:
        found = find_hold(request.scope)
        assert found is not None
        return HeldResponse("text/event-stream", found, begin)

    trust = ssl.create_default_context(cafile=str(papers.crt("authority"))) if secure else None
    with serve(app, ListenSettings(**(papers.port() if secure else {}))) as url:
        name = "localhost" if secure else None
        port = url.rpartition(":")[2]
        reader, writer = await asyncio.open_connection(HOST, port, ssl=trust, server_hostname=name)
        writer.write(REQUEST)
        assert b"transfer-encoding: chunked" in await reader.readuntil(b"\r\n\r\n")
        connection = await opened.get()
        lost = asyncio.Event()
        connection.on_lost = lambda: loop.call_soon_threadsafe(lost.set)  # type: ignore[assignment]

        async def act(method: str, *given: bytes) -> None:
            if method == "lose":
                await lost.wait()
            else:
                servers[0].call_soon_threadsafe(getattr(connection, method), *given)
                await asyncio.sleep(0)

        async with asyncio.timeout(LONGEST_SECONDS):
            yield reader, writer, act
        writer.transport.abort()
        await act("lose")


async def test_pieces_and_the_end_come_as_they_were_written(papers: Papers, secure: bool) -> None:
    async with held(papers, secure=secure) as (reader, _, act):
        await act("write", encode_chunk(b"one"))
        assert await reader.readexactly(8) == b"3\r\none\r\n"
        await act("write", encode_chunk(b"two"))
        await act("end")
        assert await reader.read() == b"3\r\ntwo\r\n" + LAST_CHUNK


async def test_a_caller_that_sends_more_is_cut_off(papers: Papers, secure: bool) -> None:
    async with held(papers, secure=secure) as (_, writer, act):
        writer.write(REQUEST)
        await act("lose")


async def test_a_caller_that_does_not_read_is_cut_off(papers: Papers, secure: bool) -> None:
    """Far below what a patient server would buffer for it."""
    async with held(papers, secure=secure) as (_, writer, act):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(2000):
            await act("write", encode_chunk(b"x" * 10_000))
        await act("lose")


async def test_a_caller_that_does_not_answer_the_end_keeps_no_connection(papers: Papers, secure: bool) -> None:
    """Otherwise a client could hold as many as it opens within the half minute that asyncio waits."""
    async with held(papers, secure=secure) as (_, writer, act):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await act("end")
        async with asyncio.timeout(10.0):
            await act("lose")
