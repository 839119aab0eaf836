"""A moment of a run -> a process that ends there by SIGKILL, once: patched into a service before it starts.

Each moment is one place in the services' own code, in the plan's round and at `CLIENT`. Who dies there is either the
process that has come to it or another one; a file says that it has happened, so that the next process passes by.
What is patched is imported where it is patched: whoever forks the services has not imported all of it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.system.faults.commits import after_first_commit

ROUND, CLIENT, AGGREGATOR = 2, "client-1", "aggregator"
RECOVERED = "recovered"  # the property under which a cell of the matrix reports its moment, victim, and seconds
GONE_SECONDS = 30.0  # for a killed process to be gone; a bound alone
EARLY_SECONDS = 0.5  # in which an answer that does not wait for its commit would be there


@dataclass(frozen=True)
class Plan:
    """Who dies, in which moment and round. `folder`: where each process says its id, and the death that it has
    happened."""

    moment: str
    victim: str
    folder: Path
    round: int = ROUND

    @property
    def place(self) -> str:
        """The service in which the moment comes."""
        return AGGREGATOR if self._point in AT_THE_AGGREGATOR else CLIENT

    @property
    def marker(self) -> Path:
        return self.folder / "happened"

    @property
    def _point(self) -> Point:
        return MOMENTS[self.moment][self.victim == CLIENT]

    def install(self) -> None:
        """In the process of the service that comes to the moment."""
        if not self.marker.exists():
            self._point(self)

    def strike(self) -> None:
        """Now. The victim is gone when this returns, if it is another process."""
        if self.marker.exists():
            return
        victim = int((self.folder / self.victim).read_text())
        self.marker.touch()
        os.kill(victim, signal.SIGKILL)
        until(lambda: not alive(victim))


Point = Callable[[Plan], None]


def until(holds: Callable[[], bool]) -> None:
    """Look again and again, without letting anything else in this thread go on."""
    end = time.monotonic() + GONE_SECONDS
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def before_upload(plan: Plan) -> None:
    """The update is made and checked, and nothing of it has left."""
    from client_service.boundary.aggregator_api import Aggregator

    real = Aggregator.upload

    async def upload(aggregator: Aggregator, run: str, number: int, body: bytes) -> Any:
        if number == plan.round:
            plan.strike()
        return await real(aggregator, run, number, body)

    Aggregator.upload = upload  # type: ignore[method-assign]


class Halved(httpx.AsyncByteStream):
    """A body of which the second half comes after the strike, if anybody is left to send it."""

    def __init__(self, body: bytes, strike: Callable[[], None]) -> None:
        self._body, self._strike = body, strike

    async def __aiter__(self) -> AsyncIterator[bytes]:
        half = len(self._body) // 2
        yield self._body[:half]
        self._strike()
        yield self._body[half:]


def mid_upload(plan: Plan) -> None:
    """Half of the body has left, and the aggregator has had the time to take it; a small one has no file yet."""
    real = httpx.AsyncHTTPTransport.handle_async_request

    def strike() -> None:
        time.sleep(EARLY_SECONDS)
        plan.strike()

    async def handle(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        if request.method == "PUT" and f"/rounds/{plan.round}/" in request.url.path and not plan.marker.exists():
            request.stream = Halved(await request.aread(), strike)
        return await real(transport, request)

    httpx.AsyncHTTPTransport.handle_async_request = handle  # type: ignore[method-assign]


def before_commit(plan: Plan) -> None:
    """The update is whole on the disk, and no row speaks of it. Whoever is answered too early is answered by now."""
    from aggregator_service.rounds import run as run_document

    real = run_document.save_run

    def save_run(database: Any, run: Any, **what: Any) -> None:
        if run.round == plan.round and CLIENT in run.receipts and not plan.marker.exists():
            time.sleep(EARLY_SECONDS)
            plan.strike()
        real(database, run, **what)

    run_document.save_run = save_run


def update_committed(plan: Plan) -> None:
    """The round's last update, whosever it is, and that it closes the round are durable, and nobody has heard of it."""
    after_first_commit(lambda run: (run.round, run.phase) == (plan.round, "aggregated"), plan.strike)


def state_committed(plan: Plan) -> None:
    """The new state and the round that it opens, or the run's end, are durable, and nobody has heard of it."""
    after_first_commit(
        lambda run: (run.round, run.phase) in ((plan.round + 1, "open"), (plan.round, "finished")), plan.strike
    )


def aggregating(plan: Plan) -> None:
    """The new state is computed, and nothing of it is written."""
    from aggregator_service.aggregation import computation

    real, packed = computation.aggregate_round, computation.pack_state

    def struck(state: Any) -> Any:
        plan.strike()
        return packed(state)

    def aggregate(archive: Any, run: Any) -> Any:
        computation.pack_state = struck if run.round == plan.round else packed
        return real(archive, run)

    computation.aggregate_round = aggregate


def writing_a_state(plan: Plan) -> None:
    """Half of the new state is in its file."""
    from aggregator_service.aggregation import computation
    from aggregator_service.storage.disk import Spool

    real, write = computation.aggregate_round, Spool.write

    def half(spool: Spool, piece: bytes) -> None:
        if plan.marker.exists():
            write(spool, piece)
            return
        write(spool, piece[: len(piece) // 2])
        assert spool._file is not None
        spool._file.flush()
        plan.strike()

    def aggregate(archive: Any, run: Any) -> Any:
        if run.round == plan.round:
            Spool.write = half  # type: ignore[method-assign]
        return real(archive, run)

    computation.aggregate_round = aggregate


def writing_a_checkpoint(plan: Plan) -> None:
    """Half of the checkpoint after the round is in its file."""
    from client_service.federation.checkpoint import NAME
    from shared import files

    real = files.write_arrays

    def write_arrays(path: Path, arrays: Any, metadata: dict[str, str] | None = None) -> None:
        real(path, arrays, metadata)
        if not path.name.startswith(f".{NAME}.") or metadata is None:
            return
        if json.loads(metadata["head"])["round"] == plan.round and not plan.marker.exists():
            os.truncate(path, path.stat().st_size // 2)
            plan.strike()

    files.write_arrays = write_arrays


@dataclass(frozen=True)
class Cutting:
    """Sends half of the first successful answer to a path, strikes, and sends the rest."""

    app: ASGIApp
    path: str
    plan: Plan

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        succeeds = False

        async def cut(message: Message) -> None:
            nonlocal succeeds
            if message["type"] == "http.response.start":
                succeeds = message["status"] == httpx.codes.OK
            elif succeeds and (body := message.get("body", b"")):
                await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
                self.plan.strike()
                message = message | {"body": body[len(body) // 2 :]}
            await send(message)

        await self.app(scope, receive, cut if scope.get("path", "").endswith(self.path) else send)


def distributing(plan: Plan) -> None:
    """Half of the client's parameters after the round has left."""
    from aggregator_service import __main__ as service

    real = service.create_app

    def create_app(settings: Any) -> FastAPI:
        app = real(settings)
        app.add_middleware(Cutting, path=f"/rounds/{plan.round}/clients/{CLIENT}/personalized", plan=plan)
        return app

    service.create_app = create_app


def training(plan: Plan) -> None:
    """One batch of the round's first epoch is done."""
    from client_service.federation.training_run import TrainingRun
    from client_service.runtime.interruption import Interrupt

    fit, check, looks = TrainingRun.fit, Interrupt.check, 0

    def looked(interrupt: Interrupt) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            plan.strike()
        check(interrupt)

    def fitted(part: TrainingRun, strategy: Any, moment: Any, received: Any) -> Any:
        if moment.round == plan.round:
            Interrupt.check = looked  # type: ignore[method-assign]
        return fit(part, strategy, moment, received)

    TrainingRun.fit = fitted  # type: ignore[method-assign]


AT_THE_AGGREGATOR = (before_commit, update_committed, aggregating, writing_a_state, state_committed, distributing)
MOMENTS: dict[str, tuple[Point, Point]] = {  # where the aggregator dies, and where the client does
    "before upload": (before_upload, before_upload),
    "mid-upload": (mid_upload, mid_upload),
    "after upload, before commit": (before_commit, before_commit),
    "after commit, before answer": (update_committed, update_committed),
    "while aggregating": (aggregating, aggregating),
    "while writing a blob": (writing_a_state, writing_a_checkpoint),
    "after a state's commit": (state_committed, state_committed),
    "while distributing": (distributing, distributing),
    "while training": (training, training),
}
