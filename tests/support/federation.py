"""The one builder of a federation: the real aggregator in this process, and real clients whose requests reach it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from aggregator_service.app import create_app as create_aggregator
from aggregator_service.settings import AggregatorSettings
from client_service.app import create_app as create_client
from client_service.settings import ClientSettings
from shared.errors import ConflictError
from shared.protocol.signing.enrolment import ensure_key_pair, register_key_file
from tests.support.questions import finished, read, wait_until
from tests.support.small import AGGREGATOR


class Unreachable(httpx.AsyncBaseTransport):
    """An aggregator that is not there."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody listens", request=request)


class Line(httpx.AsyncBaseTransport):
    """A client's way to the aggregator: cut until there is an app at its end, and again when it is taken away."""

    def __init__(self, app: FastAPI | None) -> None:
        self.app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.app is None:
            raise httpx.ConnectError("the line is cut", request=request)
        return await httpx.ASGITransport(self.app).handle_async_request(request)


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@asynccontextmanager
async def run_app(app: FastAPI, url: str, headers: dict[str, str] | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """An app that has started, and a way to it."""
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=url, headers=headers)
    async with app.router.lifespan_context(app), http:
        yield http


@asynccontextmanager
async def run_client(
    settings: ClientSettings, keys: Path, outside: httpx.AsyncBaseTransport | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A client service, and its operator's way to it. By default no aggregator is there.

    It has a key of its own, which is registered in the folder `keys` unless its name has another one there.
    """
    pair = ensure_key_pair(settings.name, settings.state_directory)
    with suppress(ConflictError):
        register_key_file(pair.public, keys)
    headers = None if settings.operator_key is None else bearer(settings.operator_key.get_secret_value())
    async with run_app(create_client(settings, outside or Unreachable()), "http://silo", headers) as http:
        yield http


@dataclass
class Federation:
    """A running aggregator, the settings of clients that may take part, and those that have entered, by name."""

    app: FastAPI
    operator: httpx.AsyncClient
    settings: AggregatorSettings
    clock: Any
    clients: Sequence[ClientSettings] = ()
    silos: dict[str, httpx.AsyncClient] = field(default_factory=dict)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def line(self) -> Line:
        """A client's way to the aggregator."""
        return Line(self.app)

    async def enter(
        self, *clients: ClientSettings, line: httpx.AsyncBaseTransport | None = None
    ) -> list[httpx.AsyncClient]:
        """These clients run until the federation ends, by default all of it. `line`: their way to the aggregator."""
        for settings in clients or self.clients:
            service = run_client(settings, self.settings.registry, line or self.line())
            self.silos[settings.name] = await self.stack.enter_async_context(service)
        return list(self.silos.values())

    async def complete(self, run: str = "run-1", **request: Any) -> None:
        """A whole run. Its clients are gone again when it has ended."""
        async with AsyncExitStack() as stack:
            services = [run_client(one, self.settings.registry, self.line()) for one in self.clients]
            silos = [await stack.enter_async_context(service) for service in services]
            await self.start(**request)
            await wait_until(finished(*silos, run=run))

    async def start(self, **request: Any) -> None:
        """Begin a run: two rounds, with everybody."""
        method = self.settings.method.model_dump(mode="json")
        content = {"rounds": 2, "clients": len(self.clients), "method": method} | request
        answer = await self.operator.post("/v1/runs", json=content)
        assert answer.status_code == 201, answer.text

    async def history(self, run: str = "run-1") -> dict[str, Any]:
        """What the operator sees of a run."""
        return await read(self.operator, f"runs/{run}")

    async def finished(self) -> bool:
        """Have all clients that entered evaluated the first run?"""
        return bool(await finished(*self.silos.values())())

    async def problems(self) -> list[str]:
        """What keeps each client from going on."""
        return [(await read(http, "status")).get("problem") or "" for http in self.silos.values()]

    def stranger(self) -> httpx.AsyncClient:
        """A way to the aggregator past every gate."""
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=AGGREGATOR)


@asynccontextmanager
async def run_federation(
    settings: AggregatorSettings, clients: Sequence[ClientSettings] = (), clock: Callable[[], float] = time.time
) -> AsyncIterator[Federation]:
    """An aggregator with these settings. None of the clients has entered yet."""
    app = create_aggregator(settings, clock=clock)
    async with run_app(app, "http://operator", bearer(settings.token())) as operator, AsyncExitStack() as stack:
        yield Federation(app, operator, settings, clock, clients, stack=stack)
