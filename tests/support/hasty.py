"""An aggregator that answers at once, or is away, in a time of its own: five minutes of it pass in seconds."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from client_service.boundary.ledger import LEDGER, follow_chain
from client_service.refresh.record_check import verify_records
from shared.protocol.schemas import JoinOut, RunOut
from shared.protocol.signing.keys import read_private

CALL_SECONDS = 0.037  # of one call that is answered at once, as it was measured over loopback
MINUTES_5 = 300.0
LEAST = 1.0  # the setting of its own, poll_seconds


@dataclass
class VirtualTime:
    """Passes while somebody sleeps or calls, and not otherwise."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


Answer = Callable[[int, httpx.Request], httpx.Response]


@dataclass
class Hasty(httpx.AsyncBaseTransport):
    """A client's way to it. `answer`: the number of the call and the call -> what it is told; joins are taken.

    When the time is over it says nothing more.
    """

    time: VirtualTime
    answer: Answer
    calls: Counter[str] = field(default_factory=Counter)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    moments: list[float] = field(default_factory=list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.time.now >= MINUTES_5:
            self.over.set()
            await asyncio.Event().wait()
        await request.aread()
        self.time.now += CALL_SECONDS
        await asyncio.sleep(0)
        self.calls[request.url.path.rpartition("/")[2]] += 1
        self.moments.append(self.time.now)
        return self.answer(self.calls.total(), request)


Attacked = Callable[..., Coroutine[Any, Any, tuple[Hasty, Path]]]


def said(message: JoinOut | RunOut) -> httpx.Response:
    return httpx.Response(200, stream=httpx.ByteStream(message.model_dump_json().encode()))


def joined(request: httpx.Request) -> httpx.Response | None:
    """The answer to a join; None to anything else."""
    if request.url.path != "/v1/clients":
        return None
    return said(JoinOut(client=json.loads(request.content)["client"], clients=1))


def after_the_join(answer: Callable[[int], httpx.Response]) -> Answer:
    """Joins are taken; any other call is told this, by its number."""
    return lambda number, request: joined(request) or answer(number)


def problem(status: int, code: str, **headers: str) -> httpx.Response:
    content = json.dumps({"title": code, "status": status, "code": code, "detail": f"{code}, it says"}).encode()
    return httpx.Response(status, stream=httpx.ByteStream(content), headers=headers)


def entries_of(state: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (state / LEDGER).read_text(encoding="utf-8").splitlines()]


def require_whole(state: Path) -> None:
    """Chain, heads and MACs."""
    (key,) = state.glob("*.key")
    found = verify_records(state, read_private(key))
    assert found.faults == () and found.authentic
    assert follow_chain(entries_of(state))[1] is None
