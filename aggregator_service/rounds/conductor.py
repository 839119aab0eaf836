"""Commits and deadlines -> the run moves on: rounds close, are aggregated and open again, each step durable first.

One lock serialises the transitions; whoever only looks reads the current immutable `Run`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Protocol

import anyio

from aggregator_service.logs import LOGGER
from aggregator_service.rounds import run_document, transitions
from aggregator_service.rounds.metrics import AggregatorMetrics
from aggregator_service.rounds.run import Run
from aggregator_service.storage import runs, updates
from aggregator_service.storage.archive import Archive
from aggregator_service.storage.clients import impose_quarantines
from aggregator_service.storage.rows import Quarantine, StoredState, StoredUpdate
from aggregator_service.storage.runs import Write
from aggregator_service.threads import off_loop
from shared.errors import DamagedError, FederationError, NotFoundError, UnavailableError
from shared.timeouts import DISK_RETRY_SECONDS, LOOK_SECONDS

Clock = Callable[[], float]


class Computation(Protocol):
    """What computes with the tensors of a run. It reads and writes files, and knows neither clock nor lock."""

    def damaged(self, archive: Archive, run: Run) -> list[StoredUpdate]: ...

    def far(self, archive: Archive, run: Run) -> dict[str, float]: ...

    def aggregate(self, archive: Archive, run: Run) -> StoredState: ...

    def digest_after(self, archive: Archive, state: StoredState) -> str: ...


class Changes:
    """A count of changes and a way to wait for the next. Who read the count before looking cannot miss one."""

    def __init__(self) -> None:
        self.count = 0
        self.closing = False
        self._event: anyio.Event | None = None

    def announce(self) -> None:
        self.count += 1
        if self._event is not None:
            self._event.set()
            self._event = None

    def close(self) -> None:
        """Wake everybody, now and from now on: nobody may hold up the shutdown."""
        self.closing = True
        self.announce()

    async def after(self, count: int) -> None:
        """Until the count is above `count`."""
        if self.count == count and not self.closing:
            self._event = self._event or anyio.Event()
            await self._event.wait()


class Conductor:
    """Holds the current run and carries it through its rounds."""

    def __init__(self, archive: Archive, metrics: AggregatorMetrics, computation: Computation, *, clock: Clock) -> None:
        self.archive = archive
        self._computation = computation
        self.lock = anyio.Lock()
        self.changes = Changes()
        self.sequence = runs.stored_sequence(archive.database)
        with archive.database.reading() as connection:
            self.run = run_document.load_run(connection)
        self._stuck: str | None = "the aggregator is starting"
        self._metrics = metrics
        self._clock = clock
        self._show()

    @property
    def hindrance(self) -> str | None:
        """What keeps the rounds from going on, in words; None where nothing does."""
        return self._stuck or self.archive.database.disk.refusal

    async def find(self, name: str) -> Run:
        """The current run, or an earlier one from the database."""
        if self.run is not None and self.run.name == name:
            return self.run
        run = await off_loop(self._load, name)
        if run is None:
            raise NotFoundError(f"there is no run {name!r}")
        return run

    def _load(self, name: str) -> Run | None:
        with self.archive.database.reading() as connection:
            return run_document.load_run(connection, name)

    async def commit(self, run: Run, *writes: Write) -> None:
        """Make a transition durable together with what came with it, then known. The caller holds the lock."""
        if run is self.run:
            return
        sequence = self.sequence + _is_visible(self.run, run)
        await off_loop(run_document.save_run, self.archive.database, run, sequence=sequence, writes=writes)
        self.run, self.sequence = run, sequence
        self._show()
        if run.phase == "failed":
            self._metrics.rounds.labels("failed").inc()
            LOGGER.warning("run_failed", run=run.name, reason=run.reason)
        self.changes.announce()

    async def fail(self, name: str, reason: str) -> None:
        """End that run, if it is the current one and has not ended."""
        async with self.lock:
            if self.run is not None and self.run.name == name and self.run.active:
                await self.commit(transitions.fail(self.run, reason, now=self._clock()))

    async def quarantine(self, entries: Collection[Quarantine]) -> None:
        """Shut clients out, durably, with all that follows for the run at hand. The caller holds the lock."""
        writes: list[Write] = [partial(impose_quarantines, entries=entries)]
        before, after = self.run, None
        if before is not None:
            after = transitions.shut_out(before, {entry.client: entry.cause for entry in entries}, now=self._clock())
            unused = before.receipts.keys() - after.receipts.keys()
            writes.append(partial(updates.delete_updates, run=before.name, number=before.round, clients=unused))
        await self.decide(after, *writes)
        for entry in entries:
            LOGGER.warning("client_quarantined", client=entry.client, cause=entry.cause)

    async def decide(self, run: Run | None, *writes: Write) -> None:
        """Make a decision about a client durable, and what follows from it for the run, if there is one."""
        if run is None:
            await off_loop(runs.commit, self.archive.database, writes)
        else:
            await self.commit(run, *writes)

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
                self._stuck, patience = None, self._patience()
            except Exception as error:
                self._note(error)
                patience = DISK_RETRY_SECONDS
            with anyio.move_on_after(patience):
                await self.changes.after(seen)

    def _note(self, error: Exception) -> None:
        """Say why it does not go on, once: a disk that has no room for an update may have none for a log either."""
        words = str(error) if isinstance(error, FederationError) else f"a step failed: {type(error).__name__}"
        if words != self._stuck:
            LOGGER.exception("step_failed")
        self._stuck = words

    def _patience(self) -> float:
        if self.run is None or self.run.phase not in ("waiting", "open"):
            return LOOK_SECONDS
        return min(LOOK_SECONDS, max(0.0, self.run.deadline - self._clock()))

    async def _step(self) -> None:
        if self.archive.database.disk.refusal is not None:
            await off_loop(self.archive.probe)
            LOGGER.info("disk_takes_again")
        aggregated = None
        async with self.lock:
            if self.run is not None:
                await self.commit(transitions.advance(self.run, self._clock()))
            if self.run is not None and self.run.phase == "aggregated":
                aggregated = await self._close(self.run)
        if aggregated is not None:
            await off_loop(self._prune, aggregated)

    async def _close(self, run: Run) -> Run | None:
        """Aggregate the closed round, or ask again for what is damaged in it. The same run where it is aggregated."""
        if lost := await off_loop(self._computation.damaged, self.archive, run):
            await self._lose(run, lost)
            return None
        try:
            if beyond := await self.archive.tensors.off_loop(self._computation.far, self.archive, run):
                # Then again without them, until nobody is: whenever the process ends meanwhile, it comes to the same.
                await self.quarantine(transitions.distance_quarantines(run, beyond, now=self._clock()))
                return None
            state = await self.archive.tensors.off_loop(self._computation.aggregate, self.archive, run)
        except (OSError, UnavailableError):
            raise  # the disk's failure, not the run's: `conduct` tries again
        except Exception as error:
            LOGGER.exception("aggregation_failed", run=run.name, round=run.round)
            words = str(error) if isinstance(error, DamagedError) else f"{type(error).__name__}: {error}"
            reason = f"round {run.round} could not be aggregated: {words}"
            await self.commit(transitions.fail(run, reason, now=self._clock()))
            return None
        await self._proceed(run, state)
        return run

    async def _lose(self, run: Run, lost: list[StoredUpdate]) -> None:
        """The files stay for whoever looks into it, until the next start."""
        for update in lost:
            client, digest = update.receipt.client, update.receipt.digest
            LOGGER.error(
                "update_damaged", run=run.name, round=run.round, client=client, digest=digest, blob=update.blob
            )
        self._metrics.damaged.inc(len(lost))
        clients = [update.receipt.client for update in lost]
        after = transitions.lose(run, clients, now=self._clock())
        await self.commit(after, partial(updates.delete_updates, run=run.name, number=run.round, clients=clients))

    async def _proceed(self, run: Run, state: StoredState) -> None:
        after = transitions.proceed(run, self._clock(), **await self._beginning(run, state))
        await self.commit(after, partial(updates.add_state, state=state))
        self._metrics.close_round(run, now=self._clock())
        LOGGER.info("round_aggregated", run=run.name, round=run.round, updates=len(run.receipts), digest=state.digest)

    async def _beginning(self, run: Run, state: StoredState) -> dict[str, Any]:
        """What the next round of a secure run begins with, and whose sum began there before."""
        if run.pledge is None:
            return {}
        start = await self.archive.tensors.off_loop(self._computation.digest_after, self.archive, state)
        return {"start": start, "earlier": await self.members_summed(run.name, start)}

    async def members_summed(self, run: str, start: str) -> tuple[str, ...] | None:
        """The members of the sum that another secure run has uncovered from this start."""
        return await off_loop(partial(runs.members_summed, start=start), self.archive.database, run)

    def _prune(self, run: Run) -> None:
        if run.exchange is not None:
            self.archive.blobs.remove(updates.drop_masked(self.archive.database, run.name, last=run.round))
        oldest = run.round - self.archive.retention_rounds + 1
        self.archive.blobs.remove(updates.drop_before(self.archive.database, run.name, oldest=oldest))

    def _show(self) -> None:
        if self.run is not None:
            self._metrics.stand(self.run)
            self._metrics.quarantined.set(len(self.run.quarantined))


def _is_visible(before: Run | None, after: Run) -> bool:
    """Does a waiting client have to know? Not of others' uploads, nor of a round that is about to be aggregated:
    with many clients, each of them waking all the others would cost more than the round."""
    if before is None:
        return True
    moved = _place(before) != _place(after)
    return (moved and after.phase != "aggregated") or before.quarantined != after.quarantined


def _place(run: Run) -> tuple[object, ...]:
    return run.name, run.round, run.phase, run.exchange.phase if run.exchange else None
