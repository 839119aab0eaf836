"""Agent of a client: joins, polls, trains, uploads and evaluates, run after run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from client_service.boundary.aggregator_api import Aggregator
from client_service.boundary.anchors import AnchorInputs
from client_service.federation.basis_run import BasisRun
from client_service.federation.client_run import ClientRun, RebuildResult, RefreshResult, Silo
from client_service.federation.killed_runs import KilledRuns
from client_service.federation.messages import QualityOut, RoundCosts
from client_service.federation.run_poll import AgentStatus, RunPoll
from client_service.federation.run_records import load_quality
from client_service.federation.run_setup import RunOpener, list_warnings
from client_service.federation.training_run import TrainingRun
from client_service.federation.upload import UpdateSender
from client_service.runtime.interruption import Interrupted, RoundAborted, RoundDeadline
from client_service.runtime.logs import LOGGER, describe_failure, describe_place
from client_service.runtime.memory import return_free_memory
from client_service.tasks.task import RunContext
from client_service.training.training_state import RoundContext
from shared.errors import FederationError, UnavailableError
from shared.method.declaration import TRAINING, Counts
from shared.method.graph import Float64
from shared.method.parameters import Parameters
from shared.protocol.schemas import ENDED, RunOut
from shared.strategies import strategy_of_part

P = ParamSpec("P")
T = TypeVar("T")
PARTICIPATING = ("expected", "received")
LONGEST_ROUND = 3600.0  # seconds that a change of the shard waits for the current round
FAILURES = {"failed": "the aggregator ended the run as failed", "cancelled": "the operator cancelled the run"}
WORK = {"fit": "training", "apply": "evaluating", "skip_round": "evaluating", "check_anchor": "drawing the anchor"}
ERROR_SECONDS = 0.2  # after an unforeseen error


@dataclass(frozen=True)
class AbandonedRun:
    """Run that this silo computes no further, and the reason."""

    run: str
    reason: str


class Agent:
    """Agent of one client, which follows the aggregator's runs.

    `status`, `training_run`, `silo` and `is_busy` may be read at any time. is_busy: a run needs work of this client,
    or the aggregator has not been polled yet. earlier_status: status before this process was started again.
    """

    def __init__(
        self, silo: Silo, aggregator: Aggregator, worker: Executor, earlier_status: AgentStatus | None = None
    ) -> None:
        self.silo, self._aggregator, self._worker = silo, aggregator, worker
        self.poll = RunPoll(aggregator, silo.settings, silo.metrics)
        self.is_busy = True  # until the first poll
        self._deadline = RoundDeadline()
        self._signature_seconds: float | None = None
        self._sender = UpdateSender(
            silo.settings,
            aggregator,
            silo.metrics,
            worker,
            guard=silo.guard,
            masking=silo.masking,
            basis_guard=silo.basis_guard,
            deadline=self._deadline,
        )
        self._killed = KilledRuns(silo.settings.state_directory)
        self._opener = RunOpener(silo, aggregator, self._run_counted, self._deadline)
        self.status = earlier_status or AgentStatus(shared_digest=self._earlier_quality().shared_digest)
        self.training_run: TrainingRun | None = None
        self._client_run: ClientRun | None = None
        self._done: str | None = None  # the run that is over for this client
        self._current_run: str | None = None  # the run that is worked on at the moment
        self._abandoned_run: AbandonedRun | None = None
        self._steps, self._round_in_progress = asyncio.Condition(), False  # a round is begun, and not applied

    async def follow(self, ends: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Follows the aggregator until cancelled, or until `ends` returns True.

        A refusal or a lost connection is shown in `status`, and tried again later. A run that ends in another error,
        such as a lack of memory, is abandoned: the silo continues with the next one. ends: called between two polls
        while no run needs work.
        """
        while ends is None or self.is_busy or not await ends():
            try:
                await self._step()
                self._set_status(problem=None if self._abandoned_run is None else self._abandoned_run.reason)
            except FederationError as error:
                self._schedule_retry(error)
            except OSError as error:  # of the disk: the aggregator's are FederationErrors
                self._reset_run(self.silo)  # from what is on the disk, as after a kill
                self._schedule_retry(UnavailableError(describe_failure(error)))
            except (RoundAborted, Interrupted):
                if self._deadline.remaining > 0.0:  # the silo ends
                    raise
                LOGGER.info("round_gave_way", run=self.status.run, round=self.status.round)
                self.poll.sequence = None
            except Exception as error:
                self._give_up(error)
                await asyncio.sleep(ERROR_SECONDS)  # without a pause, repeated errors would starve other tasks

    def _give_up(self, error: Exception) -> None:
        """Abandons the current run after an unforeseen error.

        The error's own words may contain an id, and are not repeated.
        """
        run, reason = self._current_run, describe_failure(error)
        LOGGER.error("run_abandoned", run=run, error=type(error).__name__, at=describe_place(error))
        self._reset_run(self.silo)
        if run is not None:
            words = "this silo leaves the run and continues with the next one"
            self._abandoned_run = AbandonedRun(run, f"{run}: {reason}; {words}")
            reason = self._abandoned_run.reason
        self._schedule_retry(FederationError(reason))

    def _schedule_retry(self, error: FederationError) -> None:
        """Shows an error, and delays the next call: see `RetrySchedule`."""
        self._set_status(problem=str(error))
        self.poll.record_failure(error)

    async def _step(self) -> None:
        """Waits for the next state of the federation, and does its work."""
        try:
            if not self.poll.joined:
                await self._join()
            state = await self.poll.fetch()
        except FederationError:
            self.is_busy = self._client_run is not None
            raise
        self.is_busy = not self.poll.is_idle(state)
        if state.run is not None:
            async with self._steps:
                self._current_run = state.run
                await self._follow_run(state, state.run)
                self._steps.notify_all()
        self.poll.record_done(state)
        self.is_busy, self._current_run = state.run is not None and state.phase not in ENDED, None

    async def change_silo(self, change: Callable[[Silo], RebuildResult]) -> RefreshResult:
        """Changes the silo's shard between two rounds, and continues with the new one.

        Waits for the end of the current round, at most `LONGEST_ROUND` seconds. Then a wait for other clients ends
        after the current poll, and training after the current step; the round begins again. `change` is slow and runs
        in the worker thread. The current run continues with its parameters and the new shard, as after a restart with
        one.
        """
        overdue = asyncio.get_running_loop().call_later(LONGEST_ROUND, self._opener.interrupt.set)
        try:
            with self._deadline.limit(LONGEST_ROUND):
                async with self._steps:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._deadline.remaining):
                            await self._steps.wait_for(lambda: not self._round_in_progress)
                    overdue.cancel()
                    silo = self.silo
                    try:
                        rebuilt = await self._in_worker(change, silo)
                        silo = rebuilt.silo
                    finally:  # a run whose opening was interrupted is opened anew, even if the shard is the same
                        self._switch_silo(silo)
                    return await self._in_worker(rebuilt.finish)
        finally:
            overdue.cancel()

    def _switch_silo(self, silo: Silo) -> None:
        if silo is not self.silo or self._opener.interrupt.is_set:
            self._reset_run(silo)
            self._abandoned_run = None  # with another shard it may be possible

    def _reset_run(self, silo: Silo) -> None:
        """Continues the current run from its checkpoint, as a new process would.

        silo: the silo to continue with.
        """
        self.silo = silo
        self._opener = RunOpener(silo, self._aggregator, self._run_counted, self._deadline)
        self._client_run, self.training_run = None, None
        self._round_in_progress, self._current_run = False, None
        self.poll.joined = False  # the silo's counts may have changed

    @property
    def counts(self) -> Counts | None:
        """Sizes of the silo's graph, where its policy shares them."""
        return self.silo.task.count(self.silo.shard) if self.silo.settings.policy.counts else None

    async def _join(self) -> None:
        self._set_status(phase="joining")
        self._signature_seconds = (await self.poll.join(self.counts)).signature_seconds
        self._set_status(phase="waiting")

    async def _follow_run(self, state: RunOut, run: str) -> None:
        over, run_part = state.phase in ENDED, self._client_run
        if over and run == self._done:
            return
        if self._is_abandoned(run):
            if over:
                self._sender.delete_secrets()
            return self._set_status(phase="refused", run=run, round=state.round, rounds=state.rounds)
        if run_part is None or run_part.place.run != run:
            late = self._joins_late(state, run)
            if over and not late and not self._was_interrupted(state, run):
                self._sender.delete_secrets()
                return self._set_status(phase="waiting")
            run_part = await self._open_run(state, run, 0 if late else _last_closed_round(state))
        self._set_status(run=run, round=state.round, rounds=state.rounds)
        if state.phase == "open":
            method, seconds = run_part.place.method, self._signature_seconds
            empty = (run_part.warning,) if isinstance(run_part, BasisRun) and run_part.is_empty else ()
            self._warn((*list_warnings(self.silo.settings, state, method, seconds), *empty))
        if over and run_part.finished:
            return
        await self._catch_up(run_part, state)
        if state.phase == "open" and state.standing in PARTICIPATING and run_part.applied < state.round:
            await self._round(run_part, state, state.round)
        elif over:
            await self._finish(run_part, state)

    def _is_abandoned(self, run: str) -> bool:
        """Tells whether a run is abandoned, and forgets an earlier one that was."""
        if self._abandoned_run is not None and self._abandoned_run.run != run:
            self._abandoned_run = None
        return self._abandoned_run is not None

    def _was_interrupted(self, state: RunOut, run: str) -> bool:
        """Tells whether this client was stopped in a run that it had not evaluated."""
        if state.part != TRAINING:
            unmade = self._opener.makes_model(state) and not self._has_evaluated(run)
            return state.phase == "finished" and (unmade or not self._opener.has_sums(state))
        quality = self._earlier_quality()
        return quality.run == run and not quality.finished

    def _joins_late(self, state: RunOut, run: str) -> bool:
        """Tells whether this client can still use the sums of an ended run.

        It had no part in the run. It takes its sums and trained parameters, evaluates both on its own data, and sends
        nothing.
        """
        uses_sums = state.basis is not None or state.content is not None
        if state.phase != "finished" or not uses_sums or state.standing == "quarantined":
            return False
        quality = self._earlier_quality()
        return run != quality.run and all(run != one.run for one in quality.earlier)

    def _has_evaluated(self, run: str) -> bool:
        quality = self._earlier_quality()
        return quality.run == run and quality.finished

    def _earlier_quality(self) -> QualityOut:
        """Loads the measures of the last run, written by this or an earlier process."""
        return load_quality(self.silo.settings.models_directory, self.silo.settings.name)

    async def _open_run(self, state: RunOut, run: str, number: int) -> ClientRun:
        """Opens a run from its checkpoint, or with its parameters after round `number`."""
        self._set_status(phase="preparing", run=run)
        run_part = await self._opener.open_run(state, run)
        if not await self._run_counted(run_part.resume, number):
            await self._opener.fetch_missing(run_part, number)
            found = (
                await self._wait_for_personalised(run_part, number)
                if number
                else await self._opener.fetch_starting_parameters(run_part)
            )
            received = await self._sender.next_parameters(run_part, None, found, number)
            await self._run_counted(run_part.begin, received, number)
        self._set_status(shared_digest=run_part.shared_digest)
        self._client_run = run_part
        if isinstance(run_part, TrainingRun):
            self.training_run = run_part
        return run_part

    async def _catch_up(self, run_part: ClientRun, state: RunOut) -> None:
        """Applies the last round that has closed.

        A round that this client has trained in, or may have before a restart, is computed again, so that it ends as
        it would have. Nothing is sent: a closed round accepts nothing. Other rounds are skipped.
        """
        number = _last_closed_round(state)
        if run_part.applied == number - 1 and run_part.has_trained(number):
            await self._round(run_part, state, number)
        elif run_part.applied < number:
            await self._opener.fetch_missing(run_part, number)
            received = await self._sender.next_parameters(
                run_part, None, await self._wait_for_personalised(run_part, number), number
            )
            await self._run_counted(run_part.skip_round, received, number)
            self._set_status(shared_digest=run_part.shared_digest)

    async def _round(self, run_part: ClientRun, state: RunOut, number: int) -> None:
        """Runs the client's part of a round (Algorithm 1).

        An update that the aggregator has already, or cannot accept, is not sent.
        """
        self._round_in_progress = True
        began, before = time.perf_counter(), replace(self._aggregator.traffic)
        update, seconds = await self._fit(run_part, state, number)
        fitting = min(seconds, time.perf_counter() - began)  # training before a restart took no time of this process
        if number == state.round and state.phase == "open" and state.standing == "expected":
            self._set_status(phase="uploading")
            await self._sender.send(run_part, update, state)
        received = await self._sender.next_parameters(
            run_part, update, await self._wait_for_personalised(run_part, number), number
        )
        traffic = self._aggregator.traffic
        costs = RoundCosts(
            round=number,
            scalars=dict(update.scalars),
            train_seconds=seconds,
            overhead_seconds=time.perf_counter() - began - fitting,
            bytes_up=traffic.up - before.up,
            bytes_down=traffic.down - before.down,
        )
        self._set_status(phase="evaluating")
        await self._run_counted(run_part.apply, received, costs)
        self._set_status(phase="waiting", shared_digest=run_part.shared_digest)
        self.silo.metrics.end_round()
        self._round_in_progress = False

    async def _fit(self, run_part: ClientRun, state: RunOut, number: int) -> tuple[Parameters, float]:
        strategy = strategy_of_part(run_part.part, self.silo.settings.strategy, run_part.place.method)
        anchor = await self._draw_anchor(run_part.place, state, number) if strategy.spectral_scalar else None
        context = RoundContext(number, state.rounds, state.seed, anchor, self._sender.secret_seed(run_part.place.run))
        self._set_status(phase="training" if run_part.part == TRAINING else "summing")
        return await self._run_counted(run_part.fit, strategy, context, run_part.received)

    async def _draw_anchor(self, place: RunContext, state: RunOut, number: int) -> Float64:
        """Draws K^R of the round, and checks the aggregator's.

        Raises PrivacyError if they differ, and if rho would be compared with more anchors than the silo's
        policy allows.
        """
        stated = await self._aggregator.fetch_anchor(place.run, number)
        anchors, inputs = self.silo.anchors, AnchorInputs(place.method, state.seed, number, place.run)
        return await self._run_counted(anchors.check_anchor, inputs, stated)

    async def _wait_for_personalised(self, run_part: ClientRun, number: int) -> Parameters:
        """Waits for the round's aggregation, and returns this client's parameters."""
        self._set_status(phase="waiting for the round")
        return await self._opener.wait_for_personalised(run_part, number)

    async def _finish(self, run_part: ClientRun, state: RunOut) -> None:
        phase = state.phase
        self._set_status(phase="evaluating")
        self._sender.delete_secrets()
        await self._run_counted(run_part.finish, FAILURES.get(phase or "failed"))
        if isinstance(run_part, BasisRun) and run_part.finished and self._opener.makes_model(state):
            await self._make_model(run_part, state)
        self._set_status(phase=phase or "failed")
        # The trained model is on the disk, and the recommender has the served one: hundreds of megabytes are freed.
        self._client_run, self.training_run, self._done, self._round_in_progress = None, None, run_part.place.run, False
        await self._in_worker(return_free_memory)

    async def _make_model(self, summed: BasisRun, state: RunOut) -> None:
        """Builds, evaluates and serves the model that follows from sums without training."""
        self.training_run = await self._opener.open_model(summed, state)
        await self._run_counted(self.training_run.begin, Parameters({}), 0)
        await self._run_counted(self.training_run.finish)
        self._set_status(shared_digest=self.training_run.shared_digest)

    async def _run_counted(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs work of the current run in the worker thread, and counts killed processes.

        Raises SettingsError if the system has killed too many processes during this work.
        """
        assert self._current_run is not None, "expected a current run, got none"
        with self._killed.guard(self._current_run, WORK.get(name := getattr(function, "__name__", "preparing"), name)):
            return await self._in_worker(function, *args, **kwargs)

    async def _in_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a function in the worker thread, while requests are still answered."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, lambda: function(*args, **kwargs))

    def _warn(self, warnings: tuple[str, ...]) -> None:
        """Shows warnings, and logs each new one."""
        for warning in set(warnings) - set(self.status.warnings):
            LOGGER.warning("warning", reason=warning)
        self._set_status(warnings=warnings)

    def _set_status(self, **changes: object) -> None:
        self.status = replace(self.status, **changes)  # type: ignore[arg-type]


def _last_closed_round(state: RunOut) -> int:
    """Returns the last round whose parameters can be fetched; 0 before the first."""
    return state.round if state.phase == "finished" else max(0, state.round - 1)
