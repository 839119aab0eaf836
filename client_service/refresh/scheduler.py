"""Schedules refreshes: merges the event log into the shard and renews its model.

A refresh is due on request, at an interval, after a number of interactions, and after an erasure; the silo answers
meanwhile. In an open run a refresh waits for the end of the round; the run then continues with the new shard, as
after a restart. A waiting trainer looks at the log by the same rule. No import of this module loads torch, polars,
scipy or pandas.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from pydantic import Field

from client_service.event_log.log_store import LogStore
from client_service.runtime.logs import LOGGER, describe_failure, describe_place
from client_service.settings import ClientSettings
from shared.errors import ConflictError
from shared.message import Message

if TYPE_CHECKING:
    from client_service.federation.client_run import RefreshResult

T = TypeVar("T")
LOG_CHECK_SECONDS = 1.0  # between two checks of what other processes have written to the log
RETRY_SECONDS = 60.0  # after a refresh that has failed, before the next one that nobody asked for


class RefreshOut(Message):
    """State of the refresh of shard and model, and the result of the last one.

    It has no id and no number of users.
    """

    phase: Literal["idle", "waiting", "working"] = Field(description="waiting: for the end of a round at hand")
    number: int = Field(0, ge=0, description="of the refresh asked for last, or begun last; 0 before the first")
    last_ended: int = Field(0, ge=0, description="number of the last one that has ended, done or with a problem")
    asked_at: datetime | None = Field(None, description="when it was last asked for")
    ended_at: datetime | None = Field(None, description="when the last one was done")
    seconds: float | None = Field(None, ge=0, description="that it took, with its waiting")
    changed: bool | None = Field(None, description="is the shard another one since? Without events it is not")
    model: str | None = Field(None, description="version of the model that answered after it")
    erasures: int | None = Field(None, ge=0, description="that were done by it")
    waiting: int | None = Field(
        None,
        ge=0,
        description="positive interactions that stay in the log until the shared catalogue lists their items",
    )
    dropped: int | None = Field(None, ge=0, description="the oldest of these, for which the log had no room")
    problem: str | None = Field(None, description="why the last one failed; it is tried again")


class FollowedLog(Protocol):
    """Event log as the scheduler needs it: see `EventLog`."""

    on_erasure: Callable[[], None]

    @property
    def store(self) -> LogStore: ...
    @property
    def least_rating(self) -> float: ...
    def follow(self) -> None: ...


class SchedulerState(Message):
    """State that a scheduler passes on to the next process.

    due: of `time.monotonic`; None: never.
    """

    status: RefreshOut
    due: float | None


class RefreshScheduler:
    """Scheduler of refreshes, one at a time.

    `work` does a refresh, and reports when it begins; `status` may be read at any time. earlier_state: of an
    earlier scheduler; a refresh that was requested or under way comes first.
    """

    def __init__(
        self,
        settings: ClientSettings,
        feedback: FollowedLog,
        work: Callable[[Callable[[], None]], Awaitable[RefreshResult]],
        earlier_state: SchedulerState | None = None,
    ) -> None:
        self._every, self._after = settings.refresh_seconds, settings.refresh_interactions
        self._feedback, self._store, self._work = feedback, feedback.store, work
        self._asked = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._request_for_erasure)

        feedback.on_erasure = wake
        if earlier_state is None:
            self.status = RefreshOut(phase="idle")
            self._due = self._next_due()
        else:
            self.status, due = earlier_state.status, earlier_state.due
            self._due = float("inf") if due is None else due
        if self.status.phase != "idle":
            self._asked.set()
        self._seen = 0  # the change number of the log up to which it was followed

    @property
    def state(self) -> SchedulerState:
        """State from which a later scheduler continues."""
        return SchedulerState(status=self.status, due=None if self._due == float("inf") else self._due)

    def is_idle(self, seconds: float) -> bool:
        """Tells whether no refresh is under way or due within this many seconds."""
        resting = self.status.phase == "idle" and self.status.problem is None and not self._asked.is_set()
        return resting and self._due - time.monotonic() > seconds

    def ask(self) -> RefreshOut:
        """Requests a refresh, which begins soon under the returned number.

        Raises ConflictError while one is under way.
        """
        if self.status.phase != "idle":
            raise ConflictError(
                f"expected no running refresh, got refresh {self.status.number}: try again when it has ended"
            )
        self._asked.set()
        self._announce(asked_at=datetime.now(UTC))
        return self.status

    def _request_for_erasure(self) -> None:
        """Requests a refresh for an erasure; another one follows if one is under way.

        The one under way may have begun without the erasure.
        """
        self._asked.set()
        if self.status.phase == "idle":
            self._announce()

    def _announce(self, **changes: object) -> None:
        """Gives the next refresh its number, so that callers can wait for its end."""
        self._update_status(phase="waiting", number=self.status.last_ended + 1, **changes)

    async def follow(self) -> None:
        """Runs refreshes until cancelled; those an earlier process left open come first."""
        if await self._query_log(self._store.erasures.has_open, otherwise=True):
            self._request_for_erasure()
        while True:
            await self._wait()
            self._asked.clear()
            await self._refresh()
            self._due = self._next_due()

    def _next_due(self) -> float:
        """Returns the time of the next refresh without a request; soon after a failure."""
        now = time.monotonic()
        due = float("inf") if self._every is None else now + self._every
        return due if self.status.problem is None else min(due, now + RETRY_SECONDS)

    async def _wait(self) -> None:
        """Waits for a request, an erasure, the due time, or enough interactions."""
        failed = self.status.problem is not None
        while not self._asked.is_set():
            if time.monotonic() >= self._due or (not failed and await self._has_enough_events()):
                return
            if await self._find_foreign_events() and not failed:  # after a failure the next try waits until it is due
                self._request_for_erasure()
            with suppress(TimeoutError):  # not `wait_for`: in Python 3.11 it may return although it was cancelled
                async with asyncio.timeout(LOG_CHECK_SECONDS):
                    await self._asked.wait()

    async def _find_foreign_events(self) -> bool:
        """Follows what other processes wrote to the log; returns whether an erasure is open."""
        if (number := await self._query_log(self._store.change_number, otherwise=self._seen)) == self._seen:
            return False
        await self._query_log(self._feedback.follow, otherwise=None)
        self._seen = number
        return await self._query_log(self._store.erasures.has_open, otherwise=True)

    async def _has_enough_events(self) -> bool:
        if self._after is None:
            return False
        return await self._query_log(
            partial(self._store.has_new_events, self._after, self._feedback.least_rating), otherwise=False
        )

    async def _query_log(self, ask: Callable[[], T], *, otherwise: T) -> T:
        """Asks the log in a thread, and returns `otherwise` where it cannot be read.

        A log that cannot be read now is no reason to end the scheduler.
        """
        try:
            return await asyncio.to_thread(ask)
        except Exception as error:
            LOGGER.warning("log_not_read", reason=describe_failure(error), at=describe_place(error))
            return otherwise

    async def _refresh(self) -> None:
        began = time.perf_counter()
        self._announce(problem=None)
        try:
            done = await self._work(lambda: self._update_status(phase="working"))
        except Exception as error:
            LOGGER.warning("refresh_failed", reason=describe_failure(error), at=describe_place(error))
            return self._update_status(phase="idle", problem=describe_failure(error), last_ended=self.status.number)
        seconds = time.perf_counter() - began
        LOGGER.info("refreshed", model=done.model, changed=done.changed, erased=done.erased, seconds=round(seconds, 3))
        self._update_status(
            phase="idle",
            last_ended=self.status.number,
            ended_at=datetime.now(UTC),
            changed=done.changed,
            model=done.model,
            erasures=done.erased,
            waiting=done.waiting,
            dropped=done.dropped,
            seconds=seconds,
        )

    def _update_status(self, **changes: object) -> None:
        self.status = self.status.model_copy(update=changes)
