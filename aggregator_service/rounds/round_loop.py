"""Loop that advances the current run: closes, aggregates and opens rounds, each step durable first.

One lock serialises the transitions; readers use the current immutable `Run`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import anyio

from aggregator_service.process import LOGGER, Clock, run_in_worker
from aggregator_service.rounds import run as run_document
from aggregator_service.rounds import transitions
from aggregator_service.rounds.basis_runs import kept_sums
from aggregator_service.rounds.metrics import AggregatorMetrics
from aggregator_service.rounds.run import Run
from aggregator_service.storage import run_store
from aggregator_service.storage.body_parts import DamagedUpdatesError
from aggregator_service.storage.clients import impose_quarantines
from aggregator_service.storage.database import Database
from aggregator_service.storage.engines.shared_postgresql import RECEIPTS, SharedPostgreSQL
from aggregator_service.storage.locations import Archive
from aggregator_service.storage.records import Quarantine, StoredState, StoredUpdate
from aggregator_service.storage.run_store import Write
from shared.errors import DamagedError, FederationError, NotFoundError, UnavailableError
from shared.method.declaration import TRAINING
from shared.sums import find_sum
from shared.timeouts import DISK_RETRY_SECONDS, LONGEST_WAIT_SECONDS, ROUND_CHECK_SECONDS, WORKER_BEAT_SECONDS

UNKNOWN = -1  # number of a state that is not shared, or has to be loaded
ORPHAN_SECONDS = 7200.0  # age of a body without a row that no upload can still wait for
GATHER_SECONDS = 0.05  # for which the other workers' changes are gathered
LEAD_SECONDS = 0.5  # between two tries to lead


class RoundComputation(Protocol):
    """Computations with the tensors of a run; they know neither clock nor lock."""

    def damaged_updates(self, archive: Archive, run: Run) -> list[StoredUpdate]: ...

    def distant_clients(self, archive: Archive, run: Run) -> dict[str, float]: ...

    def aggregate_round(self, archive: Archive, run: Run) -> StoredState: ...

    def join_shared_sum(self, archive: Archive) -> Callable[[], bool] | None: ...

    def state_digest(self, archive: Archive, run: Run, state: StoredState) -> str: ...


@dataclass(frozen=True)
class RoundOutcome:
    """Outcome of a closed round: its state, or the reason why there is none.

    damaged: updates to send again. distant: clients to quarantine, with their distance as a multiple of the median.
    failure: reason why the run ends.
    """

    state: StoredState | None = None
    damaged: Collection[StoredUpdate] = ()
    distant: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""


class ChangeCounter:
    """Counter of changes on which callers can wait.

    A caller that reads the count before it looks at the state misses no change.
    """

    def __init__(self) -> None:
        self.count = 0
        self.closing = False
        self._event: anyio.Event | None = None

    def announce_change(self) -> None:
        self.count += 1
        if self._event is not None:
            self._event.set()
            self._event = None

    def close(self) -> None:
        """Wakes all waiting callers, now and from now on, for the shutdown."""
        self.closing = True
        self.announce_change()

    async def wait_for_change(self, count: int) -> None:
        """Waits until the count is above `count`."""
        if self.count == count and not self.closing:
            self._event = self._event or anyio.Event()
            await self._event.wait()


class TransitionLock:
    """Lock of all transitions: of this process, and of all workers of a shared database.

    Whoever has it knows the newest run, with all its receipts.
    """

    def __init__(self, round_loop: RoundLoop) -> None:
        self._round_loop, self._lock = round_loop, anyio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        try:
            await self._round_loop.begin_turn()
        except BaseException:
            self._lock.release()
            raise

    async def __aexit__(self, *reason: object) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await self._round_loop.end_turn()
        finally:
            self._lock.release()


class RoundLoop:
    """Current run, advanced through its rounds.

    `changes` counts commits, which its own steps follow; `phase_changes` counts those that wake waiting callers.
    """

    def __init__(
        self, archive: Archive, metrics: AggregatorMetrics, computation: RoundComputation, *, clock: Clock
    ) -> None:
        self.archive = archive
        self._computation = computation
        self.lock = TransitionLock(self)
        self.changes, self.phase_changes = ChangeCounter(), ChangeCounter()
        self.workers = archive.database.workers
        self.run, self.sequence, self._number = _load_newest(archive.database)
        self._in_turn, self._notifying = False, False
        self._loading = anyio.Lock()
        self._asked_at = -math.inf  # when this worker last tried to lead
        self._blocked_reason: str | None = "the aggregator is starting"
        self._commit_in_progress: anyio.Event | None = None  # of the transition that is being written
        self._metrics = metrics
        self._clock = clock
        self._show_run()

    @property
    def unready_reason(self) -> str | None:
        """Reason why the rounds cannot continue; None if they can."""
        return self._blocked_reason or self.archive.database.disk.refusal

    async def find_run(self, name: str) -> Run:
        """Returns the current run, or an earlier one from the database."""
        if self.run is not None and self.run.name == name:
            return self.run
        run = await run_in_worker(self._load_run, name)
        if run is None:
            raise NotFoundError(f"there is no run {name!r}")
        return run

    def _load_run(self, name: str) -> Run | None:
        with self.archive.database.reading() as connection:
            return run_document.load_run(connection, name)

    @property
    def number(self) -> int:
        """Number of the shared state that `run` is of; see `SharedPostgreSQL`."""
        return self._number

    async def begin_turn(self) -> None:
        """Takes the turn among the workers, and what they have changed meanwhile."""
        if self.workers is None:
            return
        with self.archive.database.disk.translate_errors("a database that can be reached"):
            await run_in_worker(self.workers.begin_turn)
            try:
                if self.workers.number != self._number or await run_in_worker(self._lacks_receipts):
                    self._take_loaded(*await run_in_worker(_load_newest, self.archive.database))
                self._in_turn = True
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await run_in_worker(self.workers.end_turn)
                raise

    async def end_turn(self) -> None:
        """Gives the turn to the other workers."""
        if self.workers is not None:
            number = self.workers.number
            self._number, self._in_turn = UNKNOWN if number is None else number, False
            await run_in_worker(self.workers.end_turn)

    async def follow(self, number: int) -> None:
        """Takes the shared state of this number, or a later one.

        Callers at once share what is loaded.
        """
        if number <= self._number:
            return
        async with self._loading:
            if self._in_turn:
                await self.wait_for_commit()
            elif number > self._number:
                found = await run_in_worker(_load_newest, self.archive.database)
                if not self._in_turn and found[-1] > self._number:
                    self._take_loaded(*found)

    def _take_loaded(self, run: Run | None, sequence: int, number: int) -> None:
        before, earlier = self.run, self.sequence
        self.run, self.sequence, self._number = run, sequence, number
        self._show_run()
        moved = run is not None and _is_phase_change(before, run)
        self._announce(phase_changed=moved or sequence != earlier)

    def _lacks_receipts(self) -> bool:
        """Tells whether other workers have accepted updates of the open round."""
        run = self.run
        if run is None or run.phase != "open":
            return False
        with self.archive.database.reading() as connection:
            return run_store.count_updates(connection, run.name, number=run.round) != len(run.receipts)

    def _look(self, workers: SharedPostgreSQL, led: Run | None) -> tuple[int, int]:
        """Reads the shared state's number, and how many updates a led run's open round has."""
        run, number = (None, 0) if led is None or led.phase != "open" else (led.name, led.round)
        with self.archive.database.disk.translate_errors("a database that can be read"):
            return workers.look(run, number)

    async def _take_receipts(self, run: Run, count: int) -> None:
        """Loads the receipts of all workers for an open round that may close."""
        self._metrics.show_received(run, count)
        if count == len(run.receipts) or (count < len(run.awaited) and self._clock() < run.deadline):
            return
        number = self._number
        found, _, seen = await run_in_worker(_load_newest, self.archive.database)
        if not self._in_turn and seen == number == self._number:
            self.run = found
            self._show_run()

    async def commit_transition(self, run: Run, *writes: Write) -> None:
        """Stores a transition with its writes, then makes it visible.

        The caller holds the lock.
        """
        if run is self.run:
            return
        moved, sequence = _is_phase_change(self.run, run), self.sequence + _is_visible(self.run, run)
        known = self._commit_in_progress = anyio.Event()
        try:
            save = partial(run_document.save_run, sequence=sequence, writes=writes, before=self.run)
            await run_in_worker(save, self.archive.database, run)
            self.run, self.sequence = run, sequence
        finally:
            self._commit_in_progress = None
            known.set()
        self._show_run()
        if run.phase in ("failed", "cancelled"):
            self._metrics.rounds.labels(run.phase).inc()
            log = LOGGER.warning if run.phase == "failed" else LOGGER.info
            log(f"run_{run.phase}", run=run.name, reason=run.reason)
        self._announce(phase_changed=moved)

    async def wait_for_commit(self) -> None:
        """Waits until `run` is no older than the database was before this call."""
        if self._commit_in_progress is not None:
            await self._commit_in_progress.wait()

    def _announce(self, *, phase_changed: bool) -> None:
        self.changes.announce_change()
        if phase_changed:
            self.phase_changes.announce_change()

    def announce_receipt(self) -> None:
        """Wakes the worker that leads: this one, or another by the database."""
        if self.workers is None or self.workers.leads:
            self.changes.announce_change()
        elif not self._notifying:
            self._notifying = True
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._notify, self.workers)

    def _notify(self, workers: SharedPostgreSQL) -> None:
        self._notifying = False
        asyncio.get_running_loop().run_in_executor(None, workers.notify)

    def close(self) -> None:
        """Wakes all waiting callers, now and from now on."""
        self.changes.close()
        self.phase_changes.close()

    async def fail_run(self, name: str, reason: str | None) -> bool:
        """Ends the current run as failed, or as cancelled without a reason.

        False if the named run is not the current one, or has ended.
        """
        async with self.lock:
            if self.run is None or self.run.name != name or not self.run.active:
                return False
            await self.commit_transition(transitions.fail_run(self.run, reason, now=self._clock()))
            return True

    async def quarantine_clients(self, entries: Collection[Quarantine]) -> None:
        """Quarantines clients, with all consequences for the current run.

        The caller holds the lock.
        """
        writes: list[Write] = [partial(impose_quarantines, entries=entries)]
        before, after = self.run, None
        if before is not None:
            after = transitions.quarantine_clients(
                before, {entry.client: entry.cause for entry in entries}, now=self._clock()
            )
            unused = before.receipts.keys() - after.receipts.keys()
            writes.append(partial(run_store.delete_updates, run=before.name, number=before.round, clients=unused))
        await self.commit_decision(after, *writes)
        for entry in entries:
            LOGGER.warning("client_quarantined", client=entry.client, cause=entry.cause)

    async def commit_decision(self, run: Run | None, *writes: Write) -> None:
        """Stores a decision about a client, and its consequences for a run."""
        if run is None:
            await run_in_worker(run_store.commit_writes, self.archive.database, writes)
        else:
            await self.commit_transition(run, *writes)

    async def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Waits until a condition holds; False after these seconds, or LONGEST_WAIT_SECONDS.

        The condition is checked after every phase change; a shutdown ends the wait.
        """
        with anyio.move_on_after(min(seconds, LONGEST_WAIT_SECONDS)):
            while not (condition() or self.phase_changes.closing):
                await self.phase_changes.wait_for_change(self.phase_changes.count)
        return condition()

    async def run_rounds(self) -> None:
        """Takes each step when it is due, until the shutdown; disk failures are retried."""
        while not self.changes.closing:
            seen = self.changes.count
            try:
                await self._take_step()
                self._blocked_reason, patience = None, self._seconds_to_wait()
            except Exception as error:
                self._record_failure(error)
                patience = DISK_RETRY_SECONDS
            with anyio.move_on_after(patience):
                await self.changes.wait_for_change(seen)
                if self.workers is not None:
                    await anyio.sleep(GATHER_SECONDS)

    def _record_failure(self, error: Exception) -> None:
        """Logs a failed step once.

        A disk without room for updates may have none for logs.
        """
        words = str(error) if isinstance(error, FederationError) else f"a step failed: {type(error).__name__}"
        if words != self._blocked_reason:
            LOGGER.exception("step_failed")
        self._blocked_reason = words

    def _seconds_to_wait(self) -> float:
        if self.run is None or self.run.phase not in ("waiting", "open"):
            return ROUND_CHECK_SECONDS
        if self.workers is not None and not self.workers.leads:
            return ROUND_CHECK_SECONDS  # a deadline is the leader's: others would look again without a pause
        return min(ROUND_CHECK_SECONDS, max(0.0, self.run.deadline - self._clock()))

    async def _take_step(self) -> None:
        if self.archive.database.disk.refusal is not None:
            await self._resume()
        if self.workers is not None and not await self._has_step(self.workers):
            return
        aggregated = None
        async with self.lock:
            if self.run is not None:
                await self.commit_transition(transitions.advance_run(self.run, self._clock()))
            closed = self.run if self.run is not None and self.run.phase == "aggregated" else None
            if closed is not None and self.workers is None:
                aggregated = await self._store_outcome(closed, await self._compute_outcome(closed))
        if aggregated is not None:
            await run_in_worker(self._prune_files, aggregated)
        elif closed is not None and self.workers is not None:
            await self._close_beside_others(closed)

    async def _close_beside_others(self, run: Run) -> None:
        """Aggregates a closed round without the turn, which other workers need to let clients join.

        An outcome is dropped if more than joins has changed the run meanwhile: the next step computes another.
        """
        outcome = await self._compute_outcome(run)
        async with self.lock:
            now = self.run
            if now is None or replace(now, enrolled=run.enrolled) != run:
                if outcome.state is not None and outcome.state.blob is not None:
                    await run_in_worker(self.archive.blobs.remove, [outcome.state.blob])
                return
            aggregated = await self._store_outcome(now, outcome)
        if aggregated is not None:
            async with self.lock:  # what a worker prunes that was stopped meanwhile may be of the next run
                if self.run is not None and self.run.name == aggregated.name:
                    await run_in_worker(self._prune_files, aggregated)

    def list_jobs(self) -> list[Coroutine[None, None, None]]:
        """Lists the endless jobs of one of several workers."""
        if self.workers is None:
            return []
        return [self._beat(self.workers), self._listen(self.workers), self._remove_old_bodies(self.workers)]

    async def _beat(self, workers: SharedPostgreSQL) -> None:
        own = anyio.CapacityLimiter(1)  # a thread of its own: all others may wait for the database
        while True:
            await anyio.sleep(WORKER_BEAT_SECONDS)
            await anyio.to_thread.run_sync(workers.beat, limiter=own)

    def _remove_orphans(self) -> None:
        """Removes bodies that killed workers have left without a row."""
        self.archive.blobs.keep_only(run_store.blob_names(self.archive.database), before=time.time() - ORPHAN_SECONDS)

    async def _remove_old_bodies(self, workers: SharedPostgreSQL) -> None:
        """Removes old copies of bodies in a bucket, which another worker may have deleted.

        The leader also removes orphans.
        """
        while True:
            await anyio.sleep(ORPHAN_SECONDS / 4)
            with suppress(UnavailableError):
                if workers.leads:
                    await run_in_worker(self._remove_orphans)
                await run_in_worker(partial(self.archive.blobs.drop_copies, before=time.time() - ORPHAN_SECONDS))

    async def _listen(self, workers: SharedPostgreSQL) -> None:
        loop = asyncio.get_running_loop()

        def wake(told: str) -> None:
            if told != RECEIPTS or workers.leads:  # receipts are the leader's
                loop.call_soon_threadsafe(self.changes.announce_change)

        workers.listen(wake)

    async def _has_step(self, workers: SharedPostgreSQL) -> bool:
        """Tells whether this worker leads, and the run has a step to take."""
        led = workers.leads
        if not led and time.monotonic() >= self._asked_at + LEAD_SECONDS:
            self._asked_at = time.monotonic()
            with self.archive.database.disk.translate_errors("a database that can be reached"):
                await run_in_worker(workers.lead)
        leads, known = workers.leads, self.run
        number, count = await run_in_worker(self._look, workers, known if leads else None)
        await self.follow(number)
        if not leads:
            await self._take_blocks()
            return False
        if not led:
            LOGGER.info("worker_leads")
            await run_in_worker(self._remove_orphans)
        if known is not None and known is self.run and known.phase == "open":
            await self._take_receipts(known, count)
        run = self.run
        return run is not None and (run.phase == "aggregated" or transitions.advance_run(run, self._clock()) is not run)

    async def _take_blocks(self) -> None:
        """Works on blocks of the sum that the leader shares, if there is one.

        Between two blocks others use the worker's memory for tensors.
        """
        if self.run is None or self.run.phase != "aggregated":
            return
        take_block = await run_in_worker(self._computation.join_shared_sum, self.archive)
        while take_block is not None and not self.changes.closing:
            if not await self.archive.tensors.run_in_worker(take_block):
                return

    async def _resume(self) -> None:
        """Continues from the database: a refused commit may have been stored all the same."""
        async with self.lock:
            await run_in_worker(self.archive.probe)
            self.run, self.sequence, self._number = await run_in_worker(_load_newest, self.archive.database)
            self._show_run()
        self._announce(phase_changed=True)
        LOGGER.info("disk_takes_again")

    async def _compute_outcome(self, run: Run) -> RoundOutcome:
        """Computes the outcome of a closed round, without a change of the run."""
        if lost := await run_in_worker(self._computation.damaged_updates, self.archive, run):
            return RoundOutcome(damaged=lost)
        try:
            if beyond := await self.archive.tensors.run_in_worker(self._computation.distant_clients, self.archive, run):
                return RoundOutcome(distant=beyond)
            state = await self.archive.tensors.run_in_worker(self._computation.aggregate_round, self.archive, run)
        except DamagedUpdatesError as error:
            return RoundOutcome(damaged=error.updates)
        except (OSError, UnavailableError):  # the disk's failure, not the run's: `run_rounds` tries again
            raise
        except Exception as error:
            LOGGER.exception("aggregation_failed", run=run.name, round=run.round)
            words = str(error) if isinstance(error, DamagedError) else f"{type(error).__name__}: {error}"
            return RoundOutcome(failure=f"round {run.round} could not be aggregated: {words}")
        return RoundOutcome(state=state)

    async def _store_outcome(self, run: Run, outcome: RoundOutcome) -> Run | None:
        """Stores the outcome of a closed round and returns its run.

        None if it was not aggregated. The caller holds the lock.
        """
        if outcome.damaged:
            await self._reopen_damaged_round(run, outcome.damaged)
        elif outcome.distant:
            # Repeated without them until none is too far: an interrupted process reaches the same result.
            await self.quarantine_clients(transitions.distance_quarantines(run, outcome.distant, now=self._clock()))
        elif outcome.state is None:
            await self.commit_transition(transitions.fail_run(run, outcome.failure, now=self._clock()))
        else:
            await self._store_state(run, outcome.state)
            return run
        return None

    async def _reopen_damaged_round(self, run: Run, lost: Collection[StoredUpdate]) -> None:
        """Reopens a round to get damaged updates again.

        Their files stay for inspection until the next start.
        """
        for update in lost:
            client, digest = update.receipt.client, update.receipt.digest
            LOGGER.error(
                "update_damaged", run=run.name, round=run.round, client=client, digest=digest, blob=update.blob
            )
        self._metrics.damaged.inc(len(lost))
        clients = [update.receipt.client for update in lost]
        after = transitions.reopen_damaged_round(run, clients, now=self._clock())
        await self.commit_transition(
            after, partial(run_store.delete_updates, run=run.name, number=run.round, clients=clients)
        )

    async def _store_state(self, run: Run, state: StoredState) -> None:
        after = transitions.finish_round(run, self._clock(), **await self._next_start(run, state))
        await self.commit_transition(after, partial(run_store.add_state, state=state))
        self._metrics.close_round(run, now=self._clock())
        LOGGER.info("round_aggregated", run=run.name, round=run.round, updates=len(run.receipts), digest=state.digest)

    async def _next_start(self, run: Run, state: StoredState) -> dict[str, Any]:
        """Returns the start of the next secure round and earlier sums from it."""
        if run.pledge is None:
            return {}
        start = await self.archive.tensors.run_in_worker(self._computation.state_digest, self.archive, run, state)
        if run.pledge.basis is not None:
            return {"start": start}
        return {"start": start, "earlier": await self.earlier_sum_members(run.name, start)}

    async def earlier_sum_members(self, run: str, start: str) -> tuple[str, ...] | None:
        """Returns the members of a sum that another secure run opened from this start."""
        return await run_in_worker(partial(run_store.earlier_sum_members, start=start), self.archive.database, run)

    def _prune_files(self, run: Run) -> None:
        if run.exchange is not None:
            self.archive.blobs.remove(run_store.delete_masked(self.archive.database, run.name, last=run.round))
        kept, rounds = kept_sums(self.archive.database), self.archive.retention_rounds
        if run.request.part != TRAINING:
            method = run.request.method
            rounds = max(rounds, find_sum(method).sums_needed(method.basis))
        oldest = run.round + 1 - rounds
        self.archive.blobs.remove(run_store.delete_old_blobs(self.archive.database, run.name, oldest=oldest, kept=kept))

    def _show_run(self) -> None:
        if self.run is not None:
            self._metrics.show_run(self.run)
            self._metrics.quarantined.set(len(self.run.quarantined))


def _load_newest(database: Database) -> tuple[Run | None, int, int]:
    """Loads the newest run, the sequence of visible changes, and the shared state's number."""
    with database.reading() as connection:
        number = UNKNOWN if database.workers is None else database.workers.stored_number(connection)
        return run_document.load_run(connection), run_store.stored_sequence(connection), number


def _is_visible(before: Run | None, after: Run) -> bool:
    """Tells whether clients must see a change: any phase change but a closed round."""
    return _is_phase_change(before, after) and (
        before is None or after.phase != "aggregated" or before.quarantined != after.quarantined
    )


def _is_phase_change(before: Run | None, after: Run) -> bool:
    """Tells whether callers may wait for this change.

    They do not wait for others' uploads: waking all of many clients each time would cost more than the round.
    """
    return before is None or _progress(before) != _progress(after) or before.quarantined != after.quarantined


def _progress(run: Run) -> tuple[object, ...]:
    return run.name, run.round, run.phase, run.exchange.phase if run.exchange else None
