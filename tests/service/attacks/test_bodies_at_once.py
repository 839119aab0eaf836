"""Attack: many large messages that come slowly, or ask for very many lists which nobody takes.

Who: whoever has the application's key. Before, 100 connections with 100,000 ids each took 960 MB and made others wait
for 0.7 s (idle: 0.005 s), 400 half-sent ones 480 MB; 512 connections are allowed, and 4 MiB of each.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import httpx
import pytest
from anyio import CapacityLimiter
from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect
from starlette.types import Message

from client_service.http.answer_service import THREADS, stream_lists
from client_service.serving.messages import RecommendationsOut
from shared.web import middleware
from shared.web.middleware import BodyLimit

pytestmark = pytest.mark.anyio
LARGE, SMALL = b"x" * 100_000, b"x" * 1000


class Bodies:
    """A service whose answers wait until they are taken."""

    def __init__(self) -> None:
        self.taken, self.came = asyncio.Event(), 0
        inner = FastAPI()

        @inner.post("/")
        async def answer(request: Request) -> str:
            await request.body()
            self.came += 1
            await self.taken.wait()
            return "done"

        self.limited = BodyLimit(inner)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.limited), base_url="http://silo")

    async def under_way(self, count: int) -> None:
        while self.came < count:
            await asyncio.sleep(0)


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> Bodies:
    monkeypatch.setattr(middleware, "MOST_HELD", 250_000)
    return Bodies()


async def test_large_bodies_whose_answers_nobody_takes_keep_out_others_like_them_alone(bodies: Bodies) -> None:
    async with bodies.http as http:
        held = [asyncio.create_task(http.post("/", content=LARGE)) for _ in range(2)]
        await bodies.under_way(2)
        refused = await http.post("/", content=LARGE)
        assert (refused.status_code, refused.headers["retry-after"], refused.headers["connection"]) == (
            503,
            "5",
            "close",
        )
        small = [asyncio.create_task(http.post("/", content=SMALL)) for _ in range(20)]
        await bodies.under_way(22)
        bodies.taken.set()
        assert {(await one).status_code for one in (*held, *small)} == {200}
        assert bodies.limited.held.count == 0
        assert (await http.post("/", content=LARGE)).status_code == 200


async def test_a_body_counts_while_it_comes_and_no_more_once_its_caller_has_gone(bodies: Bodies) -> None:
    gone = asyncio.Event()

    async def receive() -> Message:
        if bodies.limited.held.count < 200_000:
            return {"type": "http.request", "body": LARGE, "more_body": True}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None:
        return None

    scope = {"type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "headers": []}
    slow = asyncio.create_task(bodies.limited(scope, receive, send))
    async with bodies.http as http:
        while bodies.limited.held.count < 200_000:
            await asyncio.sleep(0)
        assert (await http.post("/", content=LARGE)).status_code == 503
        gone.set()
        with pytest.raises(ClientDisconnect):
            await slow
        bodies.taken.set()
        assert (await http.post("/", content=LARGE)).status_code == 200


async def test_streams_leave_threads_to_others() -> None:
    busy, most, lock = 0, 0, threading.Lock()

    def compute(users: Sequence[str]) -> list[RecommendationsOut]:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        threading.Event().wait(0.01)  # others begin meanwhile, where they may
        with lock:
            busy -= 1
        return [RecommendationsOut(user=user, unknown_items=0, items=()) for user in users]

    async def stay() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(_: Message) -> None:
        return None

    threads = CapacityLimiter(THREADS)
    answers = [stream_lists(["u"], compute, threads) for _ in range(12)]
    await asyncio.gather(*(one({"type": "http", "asgi": {"spec_version": "2.4"}}, stay, send) for one in answers))
    assert 0 < most <= THREADS
