"""Whoever sends a body that is refused unread learns why: the rest is taken in for a moment, though nobody reads it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from typing import TYPE_CHECKING

import h11
import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from shared.errors import ForbiddenError
from shared.web import connection, problems
from shared.web.connection import LONGEST_HEAD
from shared.web.listening import ListenSettings
from shared.web.problems import error_response
from tests.support.questions import LONGEST_SECONDS

if TYPE_CHECKING:
    from conftest import Papers, Served

BODY = bytes(300_000)  # more than fits into what the system buffers by itself
CALLERS, CALLS = 8, 5
TOO_LONG = [LONGEST_HEAD + 1, 60_000, 200_000, 1_000_000]  # at once, in one piece for the system, in several, for long


async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
    """No part of a body is read."""
    await error_response(ForbiddenError("not yours"))(scope, receive, send)


@pytest.mark.parametrize("by_tls", [True, False])
def test_a_refusal_reaches_a_caller_who_is_still_sending(served: Served, papers: Papers, by_tls: bool) -> None:
    app = FastAPI()
    app.mount("/", refusing)
    settings = ListenSettings(**papers.port()) if by_tls else ListenSettings()
    believed = ssl.create_default_context(cafile=papers.crt("authority"))

    async def call(url: str) -> list[int]:
        async with httpx.AsyncClient(verify=believed, trust_env=False, timeout=LONGEST_SECONDS) as http:
            return [(await http.put(url, content=BODY)).status_code for _ in range(CALLS)]

    async def all_of_them(url: str) -> list[list[int]]:
        return await asyncio.gather(*(call(url) for _ in range(CALLERS)))

    with served(app, settings) as url:
        assert asyncio.run(all_of_them(url)) == [[403] * CALLS] * CALLERS


@pytest.mark.parametrize("by_tls", [True, False])
@pytest.mark.parametrize("length", TOO_LONG)
def test_a_head_that_is_too_long_is_refused_in_words(served: Served, papers: Papers, by_tls: bool, length: int) -> None:
    app = FastAPI()
    problems.install_error_handlers(app)
    settings = ListenSettings(**papers.port()) if by_tls else ListenSettings()
    believed = ssl.create_default_context(cafile=papers.crt("authority"))
    with served(app, settings) as url, httpx.Client(verify=believed, trust_env=False, timeout=LONGEST_SECONDS) as http:
        for _ in range(CALLS):
            refused = http.get(url, headers={"X-Long": "x" * length})
            assert refused.status_code == 431 and refused.headers["content-type"] == problems.MEDIA_TYPE
            assert refused.json()["code"] == "head-too-large" and f"at most {LONGEST_HEAD} bytes" in refused.text
            assert refused.headers["connection"] == "close" and "xxx" not in refused.text
            assert http.get(url).status_code == 404


def test_a_refused_body_that_has_come_whole_leaves_its_connection_the_time_of_any_other(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short time for the rest of a body once went on, and cut off whoever needed a moment for the next request."""
    monkeypatch.setattr(connection, "UNREAD_SECONDS", 60.0)
    monkeypatch.setattr(connection, "HEAD_SECONDS", 6000.0)
    lines, made, app = list[connection.Connection](), connection.Connection.connection_made, FastAPI()
    app.mount("/", refusing)
    monkeypatch.setattr(
        connection.Connection, "connection_made", lambda self, transport: (lines.append(self), made(self, transport))[1]
    )
    with served(app) as url:
        place = httpx.URL(url)
        with socket.create_connection((place.host, place.port), timeout=LONGEST_SECONDS) as wire:
            wire.sendall(b"PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")
            assert wire.recv(65536).startswith(b"HTTP/1.1 403")
            wire.sendall(b"abc")
            (line,), until = lines, time.monotonic() + LONGEST_SECONDS
            while line.conn.their_state is not h11.IDLE:
                assert time.monotonic() < until
            assert line._late is not None and line._late.when() - line.loop.time() > 600.0


def test_a_head_of_the_greatest_length_is_read(served: Served) -> None:
    with served(FastAPI()) as url:
        line = b"GET /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Long: "
        head = line + b"x" * (LONGEST_HEAD - len(line) - 4) + b"\r\n\r\n"
        with socket.create_connection((httpx.URL(url).host, httpx.URL(url).port), timeout=LONGEST_SECONDS) as wire:
            wire.sendall(head)
            assert wire.recv(65536).startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize("by_tls", [True, False])
def test_who_never_ends_a_head_is_not_listened_to_for_ever(
    served: Served, papers: Papers, monkeypatch: pytest.MonkeyPatch, by_tls: bool
) -> None:
    monkeypatch.setattr(connection, "UNREAD_SECONDS", 0.2)
    settings = ListenSettings(**papers.port()) if by_tls else ListenSettings()
    believed = ssl.create_default_context(cafile=papers.crt("authority"))
    with served(FastAPI(), settings) as url:
        place = httpx.URL(url)
        plain = socket.create_connection((place.host, place.port), timeout=LONGEST_SECONDS)
        line = believed.wrap_socket(plain, server_hostname="localhost") if by_tls else plain
        with line as wire, pytest.raises(OSError):
            for _ in range(100_000):
                wire.sendall(b"x" * 65_536)
