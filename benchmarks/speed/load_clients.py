"""Clients of the load model: they join, wait, and send an update in each round.

Each client has a key of its own and signs each request with it. By streams it holds one connection for the changes of
the federation, and opens another for a visit; by polls it waits in calls. A visit is what a silo calls without work of
its own in between, as it does by a connection that it keeps: a round's answer with the start of the next round, and,
after its training, its update. A process has many clients, of which only some are on a visit at once: the others wait
for their turn, as silos that are not all equally fast.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import numpy as np

from client_service.boundary.aggregator_api import CURRENT
from shared.method.declaration import Declaration
from shared.protocol.request_heads import RequestHead
from shared.protocol.signing.enrolment import public_file
from shared.protocol.signing.events import CHANGES
from shared.protocol.signing.keys import new_key, public_pem
from shared.protocol.signing.requests import RequestTarget, Signatory, sign_request
from shared.protocol.wire import MEDIA_TYPE
from simulation.ports import HOST

WAIT_SECONDS = 20
PAUSE_SECONDS = 1.0  # after a call that failed
REPORT_SECONDS = 0.25
JSON = "application/json"
SCALARS = {"margin": 0.1, "rho": 0.1}
ENDED = ("finished", "failed", "cancelled")
EVENT_END = b"\n\n\r\n"  # of an event in its chunk
CHANGE = re.compile(rb'data: (\{"kind":"change".*\})\n')
LENGTH = re.compile(rb"content-length: ([0-9]+)", re.IGNORECASE)
LAST = re.compile(rb"connection: close", re.IGNORECASE)  # in the head of a connection's last answer
MOST_UNREAD = 1 << 17  # bytes of an event or head
Way = Literal["streams", "polls"]


@dataclass(frozen=True)
class CrowdPlan:
    """Clients of one process, by number, and what they do.

    declaration: the federation's, as JSON. update: body of each update. at_once: calls under way at a time.
    """

    numbers: range
    port: int
    registry: Path
    declaration: Mapping[str, Any]
    update: bytes
    way: Way
    at_once: int


@dataclass
class LoadProgress:
    """Progress of all clients; `marks`: times at which the n-th of a kind finished.

    sent, received: bytes of calls and answers, with their heads.
    """

    calls: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    received: int = 0
    processor: float = 0.0
    marks: dict[str, list[float]] = field(default_factory=dict)

    def mark(self, what: str) -> None:
        """Records that one client finished."""
        self.marks.setdefault(what, []).append(time.monotonic())

    def add(self, other: LoadProgress) -> None:
        """Adds what another process has done since it last reported."""
        self.calls += other.calls
        self.errors += other.errors
        self.sent, self.received = self.sent + other.sent, self.received + other.received
        self.processor += other.processor
        for what, times in other.marks.items():
            self.marks[what] = sorted(self.marks.get(what, []) + times)

    def take(self) -> LoadProgress:
        """Returns what has been done since the last call, and begins anew."""
        taken = LoadProgress(self.calls, self.errors, self.sent, self.received, 0.0, self.marks)
        self.calls, self.errors, self.marks = Counter(), Counter(), {}
        self.sent = self.received = 0
        return taken


@dataclass(frozen=True)
class Answer:
    """Answer to a call."""

    status: int
    body: bytes


@dataclass
class LoadClient:
    """Client that joins, follows the run, and sends the same update in each round."""

    signatory: Signatory
    plan: CrowdPlan
    progress: LoadProgress
    turns: asyncio.Semaphore
    _visiting: bool = False
    _line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None  # connection of a visit
    _events: asyncio.StreamReader | None = None
    _held: asyncio.StreamWriter | None = None
    _known: Mapping[str, Any] = field(default_factory=dict)

    async def join(self) -> None:
        """Joins, and by streams holds one from then on."""
        message = json.dumps({"client": self.signatory.name, "declaration": self.plan.declaration})
        async with self._visit():
            await self._call("join", "POST", "/v1/clients", message.encode(), JSON)
            if self.plan.way == "streams":
                self._known = await self._ask_state(None)
                await self._open_stream(self._known["sequence"])
        self.progress.mark("join")

    async def follow(self) -> None:
        """Takes part until the run is over."""
        state, done = await (self._next_state(self._known) if self._known else self._ask_state(None)), 0
        while state["phase"] not in ENDED:
            if state["phase"] == "open" and state["round"] > done:
                done = state["round"]
                state = await self._take_part(state, done)
            else:
                state = await self._next_state(state)
        if state["phase"] != "finished":
            raise RuntimeError(f"expected a run that finishes, the aggregator ended it as {state['phase']}")
        if self._held is not None:
            self._held.close()

    async def _take_part(self, state: Mapping[str, Any], number: int) -> Mapping[str, Any]:
        """Takes part in a round, and in those that follow; returns the state after them."""
        async with self._visit():
            await self._fetch_start(state["run"], number)
        while True:
            own = f"/v1/runs/{state['run']}/rounds/{number}/clients/{self.signatory.name}"
            await self._call("update", "PUT", f"{own}/update", self.plan.update, MEDIA_TYPE)
            self.progress.mark(f"update {number}")
            if self.plan.way == "streams":
                while state["round"] == number and state["phase"] not in ENDED:
                    state = await self._next_state(state)
            async with self._visit():
                while (
                    await self._call("personalized", "GET", f"{own}/personalized?wait={WAIT_SECONDS}")
                ).status == 204:
                    pass
                self.progress.mark(f"answer {number}")
                if self.plan.way == "polls":
                    state = await self._next_state(state)
                if state["phase"] != "open" or state["round"] == number:
                    return state
                number = state["round"]
                await self._fetch_start(state["run"], number)

    async def _fetch_start(self, run: str, number: int) -> None:
        """Fetches the anchor of a round, and before the first one the model."""
        if number == 1:
            await self._call("model", "GET", f"/v1/runs/{run}/model")
        await self._call("anchor", "GET", f"/v1/runs/{run}/rounds/{number}/anchor")

    async def _next_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Waits for another state than this one."""
        if self.plan.way == "polls":
            return await self._ask_state(state["sequence"])
        while True:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                assert self._events is not None
                event = await self._events.readuntil(EVENT_END)
                self.progress.received += len(event)
                if (found := CHANGE.search(event)) is None:
                    continue
                self.progress.calls["change"] += 1
                told: Mapping[str, Any] = json.loads(found[1]).get("state") or await self._ask_state(None)
                return told
            self.progress.errors["stream: ended"] += 1
            await asyncio.sleep(PAUSE_SECONDS)
            async with self._visit():
                await self._open_stream(state["sequence"])

    async def _ask_state(self, sequence: int | None) -> Mapping[str, Any]:
        known = "" if sequence is None else f"&after={sequence}"
        answer = await self._call("current", "GET", f"{CURRENT}?wait={WAIT_SECONDS}{known}")
        found: Mapping[str, Any] = json.loads(answer.body)
        return found

    async def _open_stream(self, sequence: int) -> None:
        """Opens the stream of changes; an attempt that fails is counted and repeated."""
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(HOST, self.plan.port, limit=MOST_UNREAD)
                await self._send(writer, "GET", f"{CHANGES}?after={sequence}")
                head = await reader.readuntil(b"\r\n\r\n")
                self.progress.received += len(head)
                if b" 200 " in head[:16]:
                    self._events, self._held = reader, writer
                    self.progress.calls["stream"] += 1
                    return
                writer.close()
            self.progress.errors["stream: refused"] += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async def _call(self, name: str, method: str, target: str, body: bytes = b"", media: str | None = None) -> Answer:
        """Repeats a call until it succeeds; failures are counted."""
        while True:
            waits = self.plan.way == "polls" and "wait=" in target
            try:
                async with self._visit(), self._turn_of_poller(waits):
                    answer = await self._try_call(method, target, body, media)
                problem = "" if 200 <= answer.status < 300 else f"{name}: {answer.status}"
            except (OSError, asyncio.IncompleteReadError) as error:
                self._hang_up()
                problem = f"{name}: {type(error).__name__}"
            if not problem:
                self.progress.calls[name] += 1
                return answer
            self.progress.errors[problem] += 1
            await asyncio.sleep(PAUSE_SECONDS)

    @asynccontextmanager
    async def _visit(self) -> AsyncIterator[None]:
        """Keeps one connection for all calls inside; by streams they have one turn, too."""
        if self._visiting:
            yield
            return
        self._visiting = True
        try:
            if self.plan.way == "streams":
                async with self.turns:
                    yield
            else:
                yield
        finally:
            self._visiting = False
            self._hang_up()

    @asynccontextmanager
    async def _turn_of_poller(self, waits: bool) -> AsyncIterator[None]:
        """Takes a turn by polls, unless the call waits at the aggregator."""
        if self.plan.way == "polls" and not waits:
            async with self.turns:
                yield
        else:
            yield

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line[1].close()

    async def _try_call(self, method: str, target: str, body: bytes, media: str | None) -> Answer:
        if self._line is None:
            self._line = await asyncio.open_connection(HOST, self.plan.port, limit=MOST_UNREAD)
        reader, writer = self._line
        await self._send(writer, method, target, body, media)
        head = await reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(head)
        content = await reader.readexactly(0 if length is None else int(length[1]))
        self.progress.received += len(head) + len(content)
        if LAST.search(head):
            self._hang_up()
        return Answer(int(head[9:12]), content)

    async def _send(
        self, writer: asyncio.StreamWriter, method: str, target: str, body: bytes = b"", media: str | None = None
    ) -> None:
        request = signed_request(self.signatory, f"{HOST}:{self.plan.port}", target, method, body, media)
        self.progress.sent += len(request)
        writer.write(request)
        await writer.drain()


def signed_request(
    who: Signatory, host: str, target: str, method: str = "GET", body: bytes = b"", media: str | None = None
) -> bytes:
    """Writes a client's request with its signature."""
    made = sign_request(
        RequestTarget.of(method, target.encode()), body, who, created=int(time.time()), nonce=secrets.token_hex(16)
    )
    said = RequestHead(method, target, host, media, len(body) if media else None)
    lines = [f"{name}: {value}\r\n" for name, value in (*said.headers(), *made.items())]
    return f"{method} {target} HTTP/1.1\r\n{''.join(lines)}\r\n".encode() + body


def register_clients(registry: Path, numbers: range) -> list[Signatory]:
    """Creates a key pair per client and registers its public half."""
    registry.mkdir(parents=True, exist_ok=True)
    found = [Signatory(f"client-{number}", new_key()) for number in numbers]
    for one in found:
        public_file(one.name, registry).write_bytes(public_pem(one.key.public_key()))
    return found


def run_crowd(plan: CrowdPlan, parent: Connection) -> None:
    """Joins the clients of one process; they follow the run when the parent says so."""
    signatories = register_clients(plan.registry, plan.numbers)
    asyncio.run(_run_clients(plan, signatories, parent))


async def _run_clients(plan: CrowdPlan, signatories: list[Signatory], parent: Connection) -> None:
    progress, turns = LoadProgress(), asyncio.Semaphore(plan.at_once)
    crowd = [LoadClient(who, plan, progress, turns) for who in signatories]
    await _report(progress, parent, asyncio.gather(*(one.join() for one in crowd)))
    await asyncio.to_thread(parent.recv)
    await _report(progress, parent, asyncio.gather(*(one.follow() for one in crowd)))
    parent.send(None)


async def _report(progress: LoadProgress, parent: Connection, work: asyncio.Future[list[None]]) -> None:
    """Reports progress to the parent a few times a second, until the work is done."""
    spent = time.process_time()
    while True:
        done = (await asyncio.wait([work], timeout=REPORT_SECONDS))[0]
        taken = progress.take()
        taken.processor, spent = time.process_time() - spent, time.process_time()
        parent.send(taken)
        if done:
            await work
            return


def random_tensors(declaration: Declaration) -> dict[str, np.ndarray]:
    """Draws one update's tensors once; the values do not affect times."""
    draw = np.random.default_rng(0)
    return {one.name: draw.standard_normal(one.shape, dtype=np.float32) for one in declaration.tensors}
