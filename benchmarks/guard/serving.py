"""Time of a silo's answers compared with an empty FastAPI route.

Both are called by the interface between server and application, so that sockets and the server, which are other
projects' code, are not in the time.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI, Response
from starlette.types import Message, Scope

from benchmarks.guard.learning import MATRIX
from benchmarks.guard.measuring import PreparedWork, Preparing, TimedWork, Work
from benchmarks.guard.silo import METHOD, NAME, GeneratedSilo, matrix_mib
from benchmarks.speed.served_process import list_path, measure_memory, measure_start, open_connection, write_request
from benchmarks.speed.wrk import LoadTarget
from client_service.app import create_app
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.http.service import ClientService
from client_service.settings import client_settings
from shared.errors import FederationError
from simulation.experiments.processes import start_client, stop_services
from simulation.ports import HOST, free_ports

KEY = "the-key-of-the-applications-of-the-guard"
ASKED, BASKETS, BATCH, K = 500, 100, 100, 20
REPETITIONS = 12
LOOK_SECONDS = 0.05
ROUTE = "an answer of an empty route"


@dataclass(frozen=True)
class GuardRequest:
    """One request."""

    method: str
    path: str
    query: str = ""
    body: bytes = b""

    def scope(self) -> Scope:
        """Returns the ASGI scope that a server would pass on."""
        headers = {"host": "127.0.0.1", "authorization": f"Bearer {KEY}", "content-type": "application/json"}
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 80),
            "state": {},
        }


async def ask(app: FastAPI, question: GuardRequest) -> bytes:
    """Calls the application and returns the body; raises FederationError unless status is 200."""
    status, parts = 0, []

    async def receive() -> Message:
        return {"type": "http.request", "body": question.body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    await app(question.scope(), receive, send)
    if status != httpx.codes.OK:
        raise FederationError(f"guard: expected status 200 of {question.path}, got {status}: {b''.join(parts)[:200]!r}")
    return b"".join(parts)


class Unreachable(httpx.AsyncBaseTransport):
    """Aggregator that never answers, so that the agent waits while applications are served."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        del request
        await asyncio.Event().wait()
        raise AssertionError("expected no further event")


def _settings(silo: GeneratedSilo) -> dict[str, Any]:
    place = {"name": NAME, "shard": silo.shard, "state_directory": silo.state}
    return {**place, "method": METHOD, "application_key": KEY}


@asynccontextmanager
async def served_client(silo: GeneratedSilo) -> AsyncIterator[FastAPI]:
    """Serves the client's application once its model and all lists are ready."""
    settings = client_settings(**_settings(silo), log_level="warning")
    app = create_app(settings, outside=Unreachable())
    async with app.router.lifespan_context(app):
        service: ClientService = app.state.service
        while service.answers.lists_share < 1.0:
            await asyncio.sleep(LOOK_SECONDS)
        yield app


BARE_PROCESS = "import numpy, pydantic, uvicorn, sys; sys.stdin.read()"


@asynccontextmanager
async def prepare_server(silo: GeneratedSilo, folder: Path) -> Preparing:
    """Measures the private memory of the server's process after answers to ASKED users.

    It is compared with that of a process that only imports libraries.
    """
    (port,) = free_ports(1)
    settings = client_settings(**_settings(silo), port=port, aggregator_url=f"http://{HOST}:9", log_level="warning")
    with subprocess.Popen([sys.executable, "-c", BARE_PROCESS], stdin=subprocess.PIPE) as bare:
        server = start_client(settings, folder / "server.log")
        try:
            target = LoadTarget(NAME, f"http://{HOST}:{port}", KEY, server.pid)
            users = load_shard(silo.shard).user_ids[:ASKED]
            measure_start(lambda: None, target, users[0])
            with open_connection(target.url) as line:
                for user in users:
                    line.ask(write_request("GET", list_path(user), KEY))
            taken, unit = (measure_memory(process.pid).private for process in (server, bare))
            yield PreparedWork((), unit, "a process that imports numpy, pydantic and uvicorn", taken)
        finally:
            stop_services([server])
            bare.communicate()


def empty_app(body: bytes) -> FastAPI:
    """Creates an application with one route that answers with these bytes."""
    app = FastAPI()

    @app.get("/v1/users/{user}/recommendations")
    async def answer(user: str, k: int = K) -> Response:
        del user, k
        return Response(body, media_type="application/json")

    return app


@asynccontextmanager
async def prepare_serving(silo: GeneratedSilo, folder: Path) -> Preparing:
    """Prepares requests for known users, baskets of their items, and batches."""
    del folder
    shard = load_shard(silo.shard)
    users = np.random.default_rng(0).choice(shard.user_ids, ASKED).tolist()
    known = [GuardRequest("GET", f"/v1/users/{user}/recommendations", f"k={K}") for user in users]
    async with served_client(silo) as app:
        empty = empty_app(await ask(app, known[0]))
        kinds = {
            "known user": known,
            "basket": basket_requests(shard, users[:BASKETS]),
            "batch of 100 users": batch_requests(users),
        }
        timed = tuple(
            TimedWork(
                name, request_work(app, one), request_work(empty, known), ROUTE, REPETITIONS, len(one), len(known)
            )
            for name, one in kinds.items()
        )
        yield PreparedWork(timed, matrix_mib(shard), MATRIX)


def request_work(app: FastAPI, questions: Sequence[GuardRequest]) -> Work:
    """Returns work that sends all requests in turn."""

    async def work() -> None:
        for question in questions:
            await ask(app, question)

    return work


def basket_requests(shard: Shard, users: Sequence[str]) -> list[GuardRequest]:
    """Returns each user's training items as the basket of an unknown user."""
    known = [row for row in map(shard.user_row, users) if row is not None]
    items = ([shard.item_ids[item] for item in shard.train[[row]].indices] for row in known)
    return [_post_request({"basket": one, "k": K}) for one in items]


def batch_requests(users: Sequence[str]) -> list[GuardRequest]:
    """Returns batches of a hundred users each."""
    return [_post_request({"users": users[first : first + BATCH], "k": K}) for first in range(0, len(users), BATCH)]


def _post_request(content: dict[str, object]) -> GuardRequest:
    return GuardRequest("POST", "/v1/recommendations", body=json.dumps(content).encode())
