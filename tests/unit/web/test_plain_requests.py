"""Whatever bytes come, a connection hears and answers the same whether plain requests are read with or without h11."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from uvicorn.server import ServerState

from shared.web import connection
from shared.web.connection import Connection
from shared.web.plain_requests import read_plain
from shared.web.server import build_server

DATE = [(b"date", b"Thu, 26 Nov 2026 06:34:51 GMT")]
GET = b"GET /plain HTTP/1.1\r\nHost: silo\r\n\r\n"
POST = b"POST /plain HTTP/1.1\r\nHost: silo\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
HEAD = GET.replace(b"GET", b"HEAD")
FULL = (
    b"GET /plain/a%2Fb/%C3%A9?k=5&x=%20 HTTP/1.1\r\nhost: silo:80\r\nUser-Agent: x/1 (y; z)\r\nAccept: */*\r\n"
    b"Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nAuthorization:\tBearer abc \r\nX-Empty:\r\n\r\n"
)
BODY = b'{"status":"answered"}'
PLAIN = [(b"content-length", b"21"), (b"content-type", b"application/json")]
KINDS = ("plain", "streamed", "pieces", "empty", "closing", "longer", "shorter", "failing", "twice", "bad", "whole")
SNIPPETS = (
    *(
        b"\r",
        b"\n",
        b"\r\n",
        b"\r\n ",
        b"\n\n",
        b"\0",
        b" ",
        b"\t",
        b":",
        b"\x7f",
        b"\xff",
        b"%",
        b"#",
        b"?",
        b"/",
        b"HTTP/1.0",
    ),
    *(
        b"Host: b\r\n",
        b"Content-Length: 2\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Expect: 100-continue\r\n",
    ),
    *(
        b"Connection: close\r\n",
        b"Connection: keep-alive\r\n",
        b"Upgrade: websocket\r\n",
        b"X-A : b\r\n",
        b"Cookie: a\r\nCookie: b\r\n",
    ),
    *(
        b"0\r\n\r\n",
        b"2\r\n{}\r\n0\r\n\r\n",
        GET,
        POST,
        b"GET http://silo/ HTTP/1.1\r\n",
        b"Content-Length: 99999999999\r\n",
    ),
)


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written, self.closed = b"", ""

    def write(self, data: bytes) -> None:
        self.written += b"" if self.closed else data

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = "aborted"

    def write_eof(self) -> None:
        self.closed = "ended"

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return bool(self.closed)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 50000), "sockname": ("127.0.0.1", 80)}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


async def answer(scope: Any, receive: Any, send: Any, heard: list[Any]) -> None:
    """Tell what was heard, in the form of answer that the path names."""
    came = await receive()
    told = {key: value for key, value in scope.items() if key not in ("state", "app")}
    heard.append((told, scope["state"]["raw_head"], came["type"], came.get("body"), came.get("more_body")))
    kind = scope["path"].strip("/").split("/")[0]
    while kind == "whole" and came.get("more_body"):
        heard.append(came := await receive())
    body, length = BODY, PLAIN
    start = {"type": "http.response.start", "status": 200, "headers": length}
    if kind == "failing":
        raise ValueError(kind)
    if kind == "empty":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})
        return
    changed = {
        "streamed": length[1:],
        "closing": [*length, (b"connection", b"close")],
        "bad": [*length, (b"x-split", b"a\r\nb: c")],
        "twice": [*length, (b"set-cookie", b"a"), (b"set-cookie", b"b")],
        "longer": [(b"content-length", b"30"), *length[1:]],
        "shorter": [(b"content-length", b"3"), *length[1:]],
    }
    await send(start | {"headers": changed.get(kind, length)})
    if kind == "late":
        raise ValueError(kind)
    if kind in ("pieces", "streamed"):
        await send({"type": "http.response.body", "body": body[:5], "more_body": True})
        await asyncio.sleep(0)
        body = body[5:]
    await send({"type": "http.response.body", "body": body})


async def tell(pieces: list[bytes], *, at_once: bool = False) -> tuple[Any, ...]:
    """What an app hears of these bytes, and what is answered. at_once: does it have answers at hand?"""
    heard: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(scope, receive, send, heard)

    if at_once:
        app.answer_at_once = lambda scope: (PLAIN, BODY) if scope["path"] == "/plain" else None  # type: ignore[attr-defined]
    config = build_server(FastAPI(), host="127.0.0.1", port=1, on_shutdown=lambda: None).config
    config.load()
    config.loaded_app = app
    state, wire = ServerState(), Wire()
    state.default_headers = DATE
    speaker = Connection(config, state, {})  # type: ignore[arg-type]
    speaker.connection_made(wire)  # type: ignore[arg-type]
    for piece in pieces:
        if not wire.closed:
            speaker.data_received(piece)
        for _ in range(12):
            await asyncio.sleep(0)
    speaker.connection_lost(None)
    await asyncio.gather(*state.tasks, return_exceptions=True)
    return heard, wire.written, wire.closed


def drawn_bytes(count: int) -> Iterator[list[bytes]]:
    """Requests with pieces of others in them, cut into what comes at a time; always the same."""
    generator = np.random.default_rng(34)
    whole = (GET, POST, HEAD, FULL, POST + GET, GET + GET, FULL + POST)
    for _ in range(count):
        data = whole[int(generator.integers(len(whole)))]
        data = data.replace(b"/plain", f"/{KINDS[int(generator.integers(len(KINDS)))]}".encode())
        for _ in range(int(generator.integers(4))):
            at, left = sorted(int(one) for one in generator.integers(0, len(data) + 1, 2))
            left = at if generator.random() < 0.7 else min(left, at + 3)
            data = data[:at] + SNIPPETS[int(generator.integers(len(SNIPPETS)))] + data[left:]
        cuts = sorted(int(one) for one in generator.integers(0, len(data) + 1, int(generator.integers(3))))
        yield [data[first:last] for first, last in zip([0, *cuts], [*cuts, len(data)], strict=True) if first < last]


async def require_same(monkeypatch: pytest.MonkeyPatch, pieces: list[bytes]) -> None:
    found = await tell(pieces)
    with monkeypatch.context() as without:
        without.setattr(connection, "read_plain", lambda _: None)
        expected = await tell(pieces)
    assert found == expected, pieces


@pytest.mark.anyio
@pytest.mark.parametrize("kind", KINDS)
async def test_each_form_of_answer_is_the_same(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for request in (GET, POST, HEAD, FULL):
        own = request.replace(b"/plain", f"/{kind}".encode())
        for pieces in ([own], [own, own], [own + own], [own, own[:30], own[30:]], [own[:-1], own[-1:]]):
            await require_same(monkeypatch, pieces)


@pytest.mark.anyio
async def test_drawn_requests_are_heard_and_answered_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = 0
    for pieces in drawn_bytes(4000):
        await require_same(monkeypatch, pieces)
        plain += read_plain(pieces[0]) is not None
    assert plain > 200


@pytest.mark.anyio
async def test_a_long_body_is_heard_and_answered_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(35)
    for kind in ("whole", "plain", "closing", "pieces", "failing"):
        for size in (1, 100, 70_000, 200_000):
            put = f"PUT /{kind} HTTP/1.1\r\nHost: silo\r\nContent-Length: {size}\r\n\r\n".encode()
            data = put + generator.bytes(size) + (GET + GET[:-2] if size % 3 else b"")
            for most in (len(put), 999, 65_536, 150_000):
                pieces = [data[: len(put) + most // 2], data[len(put) + most // 2 :]] if size < most else []
                pieces = pieces or [data[begin : begin + most] for begin in range(0, len(data), most)]
                await require_same(monkeypatch, [*pieces[:20], b"".join(pieces[20:])])
                await require_same(monkeypatch, pieces[:1])  # its caller leaves


@pytest.mark.anyio
async def test_what_comes_during_an_answer_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for behind in (GET, POST[:-1], b"\0nothing", GET + GET + POST):
        for kind in (b"/pieces", b"/plain"):
            await require_same(monkeypatch, [GET.replace(b"/plain", kind) + b"", behind, b"}"])


@pytest.mark.anyio
async def test_an_answer_at_hand_is_the_same_as_one_by_a_task() -> None:
    for request in (GET, POST, HEAD, FULL):
        for pieces in ([request], [request, request], [request + request], [request[:-1], request[-1:], request]):
            (heard, *found), (expected, *told) = [await tell(pieces, at_once=which) for which in (True, False)]
            assert found == told and len(heard) <= len(expected)
    assert (await tell([GET], at_once=True))[0] == []


@pytest.mark.anyio
async def test_an_app_that_fails_behind_the_head_of_its_answer_sends_nothing_of_it() -> None:
    assert (await tell([GET.replace(b"/plain", b"/late")]))[1:] == (b"", "closed")


@pytest.mark.anyio
async def test_a_malformed_question_for_a_head_is_refused_without_a_body() -> None:
    """h11 lets no body follow the head of such an answer: the connection failed, and nothing was answered."""
    heard, written, closed = await tell([HEAD.replace(b"Host", b"X: a\nHost")])
    assert (heard, closed) == ([], "ended") and written.startswith(b"HTTP/1.1 400 ") and written.endswith(b"\r\n\r\n")


def test_the_usual_requests_are_plain_and_others_are_not() -> None:
    assert all(read_plain(one) is not None for one in (GET, POST, HEAD, FULL))
    assert (cut := read_plain(POST[:-1])) is not None and (cut.body, cut.left) == (b"{", 1)
    assert read_plain(POST[:-3]) is None and read_plain(GET + b"\r") is None
    long = GET.replace(b"\r\n\r\n", b"\r\nX: " + b"x" * (8 << 10) + b"\r\n\r\n")
    assert read_plain(long) is None
