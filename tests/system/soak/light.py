"""A real aggregator as a process of its own, and signed clients that upload valid updates without training anything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio
import httpx

from shared.method.declaration import Declaration
from shared.protocol.schemas import JoinIn, RunIn
from shared.protocol.signing.enrolment import ensure_key_pair, register_key_file
from shared.protocol.signing.keys import read_private
from shared.protocol.wire import MEDIA_TYPE
from shared.timeouts import ATTEMPTS
from tests.support.gauge import Gauge
from tests.support.process import AggregatorProcess
from tests.support.signing import Signing
from tests.support.small import BEARER

T = TypeVar("T")
CALL_SECONDS = 300.0
WAIT_SECONDS = 20.0
MEBI = 1 << 20


@dataclass(frozen=True)
class Light:
    """One client: it joins, uploads what it is given, and takes what it gets without keeping it."""

    auth: Signing
    http: httpx.AsyncClient
    declaration: Declaration

    async def join(self) -> None:
        message = JoinIn(client=self.auth.name, declaration=self.declaration).model_dump_json()
        headers = {"Content-Type": "application/json"}
        (await self.http.post("/v1/clients", content=message, headers=headers, auth=self.auth)).raise_for_status()

    async def upload(self, number: int, body: bytes) -> None:
        path, headers = f"{self._own(number)}/update", {"Content-Type": MEDIA_TYPE}

        async def put() -> httpx.Response:
            return await self.http.put(path, content=body, headers=headers, auth=self.auth)

        (await repeated(put)).raise_for_status()

    async def fetch(self, number: int) -> int:
        """Wait for the round's end; the size of what is there for this client then."""
        while (size := await repeated(lambda: self._fetched(number))) is None:
            pass
        return size

    async def _fetched(self, number: int) -> int | None:
        path, query, size = f"{self._own(number)}/personalized", {"wait": f"{WAIT_SECONDS:g}"}, 0
        async with self.http.stream("GET", path, params=query, auth=self.auth) as answer:
            answer.raise_for_status()
            async for piece in answer.aiter_raw():
                size += len(piece)
        return None if answer.status_code == httpx.codes.NO_CONTENT else size

    def _own(self, number: int) -> str:
        return f"/v1/runs/run-1/rounds/{number}/clients/{self.auth.name}"


async def repeated(call: Callable[[], Awaitable[T]]) -> T:
    """A call, made again where its connection breaks, as a real client makes it: one may have been closed unused."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await call()
        except httpx.TransportError:
            await anyio.sleep(0.05)
    return await call()


@dataclass(frozen=True)
class Federation:
    """The aggregator's process, and so many clients that have joined."""

    gauge: Gauge
    http: httpx.AsyncClient
    clients: tuple[Light, ...]

    async def start(self, request: RunIn) -> None:
        headers = BEARER | {"Content-Type": "application/json"}
        (await self.http.post("/v1/runs", content=request.model_dump_json(), headers=headers)).raise_for_status()

    async def phase(self) -> str:
        answer = await self.http.get("/v1/runs", headers=BEARER)
        return str(answer.raise_for_status().json()[-1]["phase"])


@asynccontextmanager
async def federation(state: Path, declaration: Declaration, count: int, **settings: Any) -> AsyncIterator[Federation]:
    """`settings`: those of the aggregator's process."""
    keys = {name: ensure_key_pair(name, state / "pairs") for name in (f"client-{n:02d}" for n in range(1, count + 1))}
    for pair in keys.values():
        register_key_file(pair.public, state / "keys")
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    with AggregatorProcess(state, {"log_level": "warning", **settings}).running() as process:
        async with httpx.AsyncClient(
            base_url=process.url, timeout=CALL_SECONDS, limits=limits, trust_env=False
        ) as http:
            signing = (Signing(name, read_private(pair.private)) for name, pair in keys.items())
            clients = tuple(Light(one, http, declaration) for one in signing)
            for client in clients:
                await client.join()
            yield Federation(process.gauge, http, clients)
