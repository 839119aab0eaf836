"""Runs a trainer that waits for a run, a refresh or a request, without torch.

The trainer replaces itself by this image of the same process, and this one replaces itself by a whole trainer once
there is something to do. Sockets, the lock of the state directory, counters and the number of the last refresh are
passed on. A request waits in the socket's backlog meanwhile. Polls pass the same gate and are in the same ledger.

No import of this module loads torch, polars, scipy or pandas.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import anyio

from client_service.boundary.ledger import LEDGER
from client_service.boundary.ledger_heads import HeadedLedger, LedgerHeads
from client_service.event_log.log_store import LogStore
from client_service.event_log.registry import EVENT_LOGS
from client_service.federation.run_poll import AgentStatus, RunPoll, connect_aggregator, make_transport
from client_service.metrics import ClientMetrics, CountedSeries
from client_service.refresh.scheduler import RefreshScheduler, SchedulerState
from client_service.runtime.logs import LOGGER, describe_failure, describe_place
from client_service.runtime.memory import return_free_memory
from client_service.runtime.trainer_process import FAILED, MISDIRECTED, InheritedFiles, replace_trainer
from client_service.secure_rounds.members import KnownMembers, open_members
from client_service.secure_rounds.round_memory import NAME as ROUNDS
from client_service.secure_rounds.round_memory import RoundMemory
from client_service.settings import ClientSettings
from shared.errors import FederationError, PrivacyError, UnavailableError
from shared.files import use_private_umask
from shared.message import Message
from shared.method.declaration import Counts
from shared.protocol.signing.enrolment import read_own_key
from shared.protocol.signing.keys import PrivateKey
from shared.timeouts import HEAD_SECONDS
from shared.web.health import LiveOut, ReadyOut
from shared.web.listening import duplicate_socket
from shared.web.logs import configure_logging
from shared.web.tls import TlsIdentity, watch_certificates

LONGEST_HEAD = 128 << 10  # bytes of a request's head, more than the server takes
PIECE = 64 << 10  # bytes of a body that are received and dropped at a time


class Budget(Message):
    """Spent part of the silo's privacy budget."""

    epsilon: float
    budget: float


class KeylessAnswers(Message):
    """Answers of a waiting trainer to requests without a key.

    open: path patterns that need no key; requests to them wake the trainer. pages: path patterns at which a browser
    asks its user for the key, by the header `challenge`. refusal: body of the answer at each other path.
    """

    open: tuple[str, ...]
    pages: tuple[str, ...]
    challenge: str
    refusal: str


class Handover(Message):
    """State that one trainer process passes on to the next in memory.

    server: id of the server process. refresh, least_rating: None in a silo without posted events. joined, ended_run:
    see `RunPoll`. agent_status: run, round and problem. counts: sizes of the graph, where the silo's policy gives
    them. model: version of the model that answers. keyless: None in a silo without keys.
    """

    kept: InheritedFiles
    server: int | None
    refresh: SchedulerState | None
    least_rating: float | None
    joined: bool
    ended_run: str | None
    counts: Counts | None
    agent_status: AgentStatus
    model: str | None
    budget: Budget | None
    series: tuple[CountedSeries, ...]
    keyless: KeylessAnswers | None = None


@dataclass
class _ClientState:
    """State of a waiting trainer, for its metrics."""

    model: str | None
    problem: str | None = None
    phase: str = "waiting"


class _WatchedLog:
    """Event log as the refresh scheduler needs it, without the parts that only answers read."""

    def __init__(self, store: LogStore, least_rating: float) -> None:
        self.store, self.least_rating = store, least_rating
        self.on_erasure: Callable[[], None] = lambda: None  # never called: this process erases nobody

    def follow(self) -> None:
        """Does nothing, because a waiting trainer gives no answers from the log."""


def serve_waiting(settings: ClientSettings, handover: Handover) -> int:
    """Waits for work, then replaces this process by a full trainer.

    Returns the exit code when the trainer is asked to end. Raises DataError or SettingsError if the records or the
    event log cannot be used.
    """
    configure_logging("client_service", settings.log_level)
    with use_private_umask():
        waiting = WaitingTrainer(settings, handover)
        anyio.run(waiting.wait)
        if waiting.failed:
            return FAILED
        replace_trainer((), handover.kept, waiting.make_handover(), lambda: waiting.stopped)
    return 0


class WaitingTrainer:
    """Idle trainer that waits for work without a loaded shard."""

    def __init__(self, settings: ClientSettings, handover: Handover) -> None:
        self._settings, self._handover = settings, handover
        self._state, self._metrics = _ClientState(handover.model, handover.agent_status.problem), ClientMetrics()
        self._metrics.restore_counts(handover.series)
        self._metrics.watch_state(settings.state_directory, lambda: self._state)
        if (budget := handover.budget) is not None:
            self._metrics.watch_privacy(lambda: budget)
        self._poll: RunPoll | None = None
        self._scheduler: RefreshScheduler | None = None
        self.stopped = self.failed = False  # by a signal; by an unexpected error
        self._wake = asyncio.Event()

    def make_handover(self) -> Handover:
        """Makes the handover to the next image, a whole trainer."""
        status = replace(self._handover.agent_status, problem=self._state.problem)
        found: dict[str, Any] = {"series": tuple(self._metrics.read_counts()), "agent_status": status}
        if self._scheduler is not None:
            found["refresh"] = self._scheduler.state
        return self._handover.model_copy(update=found)

    async def wait(self) -> None:
        """Waits until there is something to do, or until a signal comes."""
        settings, handover = self._settings, self._handover
        self._handle_signals()
        key = read_own_key(settings.name, settings.state_directory, settings.signing_key_file)
        heads = LedgerHeads(settings.state_directory, key, settings.records_directory)
        jobs: list[Coroutine[Any, Any, None]] = []
        store = None
        if handover.refresh is not None and handover.least_rating is not None:
            store = EVENT_LOGS[settings.task].open_store(settings)
            log = _WatchedLog(store, handover.least_rating)
            self._scheduler = RefreshScheduler(settings, log, self._begin_refresh, handover.refresh)
            jobs.append(self._scheduler.follow())
        jobs += [self._wait_for_run(key, heads), self._wait_for_request()]
        LOGGER.info("trainer_idle", client=settings.name)
        return_free_memory(frozen=True)
        tasks = [asyncio.create_task(self._watch(job)) for job in jobs]
        try:
            async with self._answering():
                await self._wake.wait()
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
            if store is not None:
                store.close()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def stop(number: int, frame: object) -> None:
            del number, frame
            self.stopped = True
            loop.call_soon_threadsafe(self._wake.set)

        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, stop)

    def _end_wait(self, reason: str) -> None:
        if not self._wake.is_set():
            LOGGER.info("trainer_resumed", reason=reason)
        self._wake.set()

    async def _watch(self, job: Coroutine[Any, Any, None]) -> None:
        """Ends this process on an unexpected error; the server then starts a whole trainer."""
        try:
            await job
        except Exception as error:
            LOGGER.error("trainer_failed", reason=describe_failure(error), at=describe_place(error))
            self.failed = True
            self._wake.set()

    async def _begin_refresh(self, begins: Callable[[], None]) -> NoReturn:
        del begins  # the whole trainer begins it
        self._end_wait("a refresh is due")
        await asyncio.Future()
        raise AssertionError("nothing ends this wait")

    async def _wait_for_request(self) -> None:
        """Waits for a connection, and leaves it for the whole trainer to accept."""
        loop, come = asyncio.get_running_loop(), asyncio.Event()
        listener = self._handover.kept.listener
        loop.add_reader(listener, come.set)
        try:
            await come.wait()
        finally:
            loop.remove_reader(listener)
        self._end_wait("a request has come")

    async def _wait_for_run(self, key: PrivateKey, heads: LedgerHeads) -> None:
        """Polls the aggregator until a run is open that this silo may take part in."""
        settings, identities = self._settings, dict[str, TlsIdentity]()
        outside = make_transport(settings, identities)
        self._metrics.watch(identities)
        ledger = HeadedLedger(heads, LEDGER)
        members: KnownMembers | None = None
        if settings.members is not None or settings.trust_on_first_use:
            members = open_members(settings, RoundMemory(HeadedLedger(heads, ROUNDS)))
        renewing = asyncio.create_task(watch_certificates(identities.values(), LOGGER)) if identities else None
        linked = connect_aggregator(
            settings, ledger, key, members, outside, permit=_refuse_update, permit_basis=_refuse_update
        )
        try:
            async with _sealed(ledger), linked as link:
                joined, ended_run = self._handover.joined, self._handover.ended_run
                poll = RunPoll(link, settings, self._metrics, joined=joined, ended_run=ended_run)
                while not await self._poll_once(poll):
                    pass
                self._end_wait("a run is open")
        finally:
            if renewing is not None:
                renewing.cancel()

    async def _poll_once(self, poll: RunPoll) -> bool:
        """Polls the aggregator once; returns whether the run needs this silo's work."""
        try:
            if not poll.joined:
                await poll.join(self._handover.counts)
            state = await poll.fetch()
            if not poll.is_idle(state):
                return True
            poll.record_done(state)
            self._state.problem = None
        except FederationError as error:
            self._record_problem(poll, error)
        except OSError as error:  # of the disk: the aggregator's are FederationErrors
            self._record_problem(poll, UnavailableError(describe_failure(error)))
        return False

    def _record_problem(self, poll: RunPoll, error: FederationError) -> None:
        self._state.problem = str(error)
        poll.record_failure(error)

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        """Answers the server's questions about health and metrics, and requests without a key."""
        health = duplicate_socket(self._handover.kept.health)
        server = await asyncio.start_server(self._answer, sock=health, limit=LONGEST_HEAD)
        try:
            yield
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer_path(head.split(b" ", 2)[1]))
                await writer.drain()
                while await reader.read(PIECE):  # until the server has the answer: a body is not read
                    pass
        except (OSError, IndexError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # only the silo's own server calls here: it has its answer, or asks again
        finally:
            writer.close()

    def _answer_path(self, path: bytes) -> bytes:
        kind, status, body = "application/json", "200 OK", b""
        if path == b"/metrics":
            kind, body = "text/plain; version=0.0.4; charset=utf-8", self._metrics.text()
        elif path == b"/health/live":
            body = LiveOut().model_dump_json().encode()
        elif path == b"/health/ready":
            body = ReadyOut(model="none yet" if self._state.model is None else "serving").model_dump_json().encode()
        else:
            return self._answer_keyless(path.partition(b"?")[0].decode("latin-1"))
        return _write_answer(status, kind, body)

    def _answer_keyless(self, path: str) -> bytes:
        """Refuses a request without a key, or points it to the other socket."""
        known = self._handover.keyless
        if known is None or any(re.match(one, path) for one in known.open):
            return _write_answer(f"{MISDIRECTED} Misdirected Request", "text/plain", b"")
        challenge = known.challenge if any(re.match(one, path) for one in known.pages) else ""
        return _write_answer("401 Unauthorized", "application/problem+json", known.refusal.encode(), challenge)


def _write_answer(status: str, kind: str, body: bytes, challenge: str = "") -> bytes:
    """Writes an HTTP answer that no cache stores. challenge: value of WWW-Authenticate, if any."""
    asks = f"www-authenticate: {challenge}\r\n" if challenge else ""
    lines = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\ncache-control: no-store"
    return f"{lines}\r\n{asks}connection: close\r\n\r\n".encode() + body


@asynccontextmanager
async def _sealed(ledger: HeadedLedger) -> AsyncIterator[None]:
    try:
        yield
    finally:
        try:
            ledger.save_head()
        except OSError as error:
            LOGGER.error("ledger_head_not_saved", reason=error.strerror)


def _refuse_update(*_: object) -> NoReturn:
    raise PrivacyError("expected no update of a trainer that waits, got one")
