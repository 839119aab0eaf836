"""Commits and deadlines -> the run moves on: rounds close, are aggregated and open again, each step durable first.

One lock serialises the transitions; whoever only looks reads the current immutable `Run`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import anyio

from aggregator_service import aggregation, rounds
from aggregator_service.aggregation import Archive
from aggregator_service.changes import Changes
from aggregator_service.logs import LOGGER
from aggregator_service.metrics import Metrics
from aggregator_service.rounds import Run
from aggregator_service.storage import records, store
from aggregator_service.storage.database import Database
from aggregator_service.threads import off_loop
from shared.errors import NotFoundError, UnavailableError

RETRY_SECONDS = 1.0  # after the disk refused, before the next attempt
LOOK_SECONDS = 1.0  # a deadline is on the clock of the wall, which may leap: a sleep would not notice

Clock = Callable[[], float]


class Write(Protocol):
    """One transaction that makes a run, and what came with it, durable."""

    def __call__(self, database: Database, run: Run, *, sequence: int) -> None: ...


class Conductor:
    """Holds the current run and carries it through its rounds."""

    def __init__(self, archive: Archive, metrics: Metrics, *, clock: Clock) -> None:
        self.archive = archive
        self.lock = anyio.Lock()
        self.changes = Changes()
        self.sequence = records.sequence(archive.database)
        self.run = records.run(archive.database)
        self.healthy = False
        self._metrics = metrics
        self._clock = clock
        self._show()

    async def find(self, name: str) -> Run:
        """The current run, or an earlier one from the database."""
        if self.run is not None and self.run.name == name:
            return self.run
        found = await off_loop(records.run, self.archive.database, name)
        if found is None:
            raise NotFoundError(f"there is no run {name!r}")
        return found

    async def commit(self, run: Run, write: Write) -> None:
        """Make a transition durable, then known. The caller holds the lock."""
        if run is self.run:
            return
        sequence = self.sequence + _visible(self.run, run)
        await off_loop(partial(write, sequence=sequence), self.archive.database, run)
        self.run, self.sequence = run, sequence
        self._show()
        if run.phase == "failed":
            self._metrics.rounds.labels("failed").inc()
            LOGGER.warning("run_failed", run=run.name, reason=run.reason)
        self.changes.announce()

    async def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Does the condition hold within so many seconds? It is looked at after every change; a shutdown ends it."""
        with anyio.move_on_after(seconds):
            while not (condition() or self.changes.closing):
                await self.changes.after(self.changes.count)
        return condition()

    async def conduct(self) -> None:
        """Do what is due, then sleep until the next deadline or change. The disk's failures are waited out."""
        while not self.changes.closing:
            seen = self.changes.count
            try:
                await self._step()
                self.healthy, patience = True, self._patience()
            except Exception:
                LOGGER.exception("step_failed")
                self.healthy, patience = False, RETRY_SECONDS
            with anyio.move_on_after(patience):
                await self.changes.after(seen)

    def _patience(self) -> float:
        if self.run is None or self.run.phase not in ("waiting", "open"):
            return math.inf
        return min(LOOK_SECONDS, max(0.0, self.run.deadline - self._clock()))

    async def _step(self) -> None:
        closed = None
        async with self.lock:
            if self.run is not None:
                await self.commit(rounds.advance(self.run, self._clock()), store.save_run)
            if self.run is not None and self.run.phase == "aggregated":
                closed = self.run
                await self._aggregate(closed)
        if closed is not None:
            await off_loop(self._prune, closed)

    async def _aggregate(self, run: Run) -> None:
        try:
            state = await off_loop(aggregation.aggregate, self.archive, run)
        except (OSError, UnavailableError):
            raise  # the disk's failure, not the run's: `conduct` tries again
        except Exception as error:
            LOGGER.exception("aggregation_failed", run=run.name, round=run.round)
            reason = f"round {run.round} could not be aggregated: {type(error).__name__}: {error}"
            await self.commit(rounds.fail(run, reason, now=self._clock()), store.save_run)
            return
        after = rounds.proceed(run, self._clock())
        await self.commit(after, partial(store.add_state, state=state))
        self._metrics.close_round(run, now=self._clock())
        LOGGER.info("round_aggregated", run=run.name, round=run.round, updates=len(run.receipts), digest=state.digest)

    def _prune(self, run: Run) -> None:
        oldest = run.round - self.archive.settings.retention_rounds + 1
        self.archive.blobs.remove(store.drop_before(self.archive.database, run.name, oldest=oldest))

    def _show(self) -> None:
        if self.run is not None:
            self._metrics.stand(self.run.phase, self.run.round)


def _visible(before: Run | None, after: Run) -> bool:
    """Does a waiting client have to know? Not of others' uploads, nor of a round that is about to be aggregated:
    with many clients, each of them waking all the others would cost more than the round."""
    if before is None:
        return True
    moved = (before.name, before.round, before.phase) != (after.name, after.round, after.phase)
    return moved and after.phase != "aggregated"
