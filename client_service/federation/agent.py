"""The client's side of the federation: join, poll, train, gate, upload, fetch, apply; run after run, for ever."""

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
from client_service.federation.run_setup import RunOpening, list_warnings
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
TAKES_PART = ("expected", "received")
LONGEST_ROUND = 3600.0  # seconds that a change of the shard waits for the round at hand
FAILURES = {"failed": "the aggregator ended the run as failed", "cancelled": "the operator cancelled the run"}
WORK = {"fit": "training", "apply": "evaluating", "skip_round": "evaluating", "check_anchor": "drawing the anchor"}
ERROR_SECONDS = 0.2  # after an unforeseen error


@dataclass(frozen=True)
class GivenUp:
    """A run of which this silo computes nothing more, and why."""

    run: str
    reason: str


class Agent:
    """Follows the aggregator.

    `standing`, `training_run`, `silo` and `at_work` may be read at any time. at_work: a run asks something of this
    client, or the aggregator has not been asked yet. earlier_status: of an earlier image of this process.
    """

    def __init__(
        self, silo: Silo, aggregator: Aggregator, worker: Executor, earlier_status: AgentStatus | None = None
    ) -> None:
        self.silo, self._aggregator, self._worker = silo, aggregator, worker
        self.poll = RunPoll(aggregator, silo.settings, silo.metrics)
        self.at_work = True  # until the first poll
        self._patience = RoundDeadline()
        self._signature_seconds: float | None = None
        self._sending = UpdateSender(
            silo.settings,
            aggregator,
            silo.metrics,
            worker,
            guard=silo.guard,
            masking=silo.masking,
            basis_guard=silo.basis_guard,
            patience=self._patience,
        )
        self._killed = KilledRuns(silo.settings.state_directory)
        self._opening = RunOpening(silo, aggregator, self._work, self._patience)
        self.standing = earlier_status or AgentStatus(shared_digest=self._earlier_quality().shared_digest)
        self.training_run: TrainingRun | None = None
        self._part: ClientRun | None = None
        self._done: str | None = None  # the run that is over for this client
        self._asked: str | None = None  # the run that is worked on at the moment
        self._given_up: GivenUp | None = None
        self._steps, self._amid = asyncio.Condition(), False  # a round is begun, and not applied

    async def follow(self, ends: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Until cancelled. A refusal or a lost connection is shown in `standing` and tried again later.

        A run that ends in another error, such as a lack of memory, is given up: the silo goes on with the next one.
        ends: asked between two polls while no run asks anything of this client; True ends this.
        """
        while ends is None or self.at_work or not await ends():
            try:
                await self._step()
                self._set_status(problem=None if self._given_up is None else self._given_up.reason)
            except FederationError as error:
                self._schedule_retry(error)
            except OSError as error:  # of the disk: the aggregator's are FederationErrors
                self._reset_run(self.silo)  # from what is on the disk, as after a kill
                self._schedule_retry(UnavailableError(describe_failure(error)))
            except (RoundAborted, Interrupted):
                if self._patience.remaining > 0.0:  # the silo ends
                    raise
                LOGGER.info("round_gave_way", run=self.standing.run, round=self.standing.round)
                self.poll.sequence = None
            except Exception as error:
                self._give_up(error)
                await asyncio.sleep(ERROR_SECONDS)  # an error before any call would else leave no time for others

    def _give_up(self, error: Exception) -> None:
        """Compute nothing more of the run at hand. The error's own words may hold an id, and are not repeated."""
        run, reason = self._asked, describe_failure(error)
        LOGGER.error("run_given_up", run=run, error=type(error).__name__, at=describe_place(error))
        self._reset_run(self.silo)
        if run is not None:
            words = "this silo takes no part in the rest of it, and goes on with the next run"
            self._given_up = GivenUp(run, f"{run}: {reason}; {words}")
            reason = self._given_up.reason
        self._schedule_retry(FederationError(reason))

    def _schedule_retry(self, error: FederationError) -> None:
        """The next call waits: see `RetrySchedule`."""
        self._set_status(problem=str(error))
        self.poll.hold_up(error)

    async def _step(self) -> None:
        """One change of the federation: wait for it, then do what it asks of this client."""
        try:
            if not self.poll.joined:
                await self._join()
            state = await self.poll.ask()
        except FederationError:
            self.at_work = self._part is not None
            raise
        self.at_work = not self.poll.asks_nothing(state)
        if state.run is not None:
            async with self._steps:
                self._asked = state.run
                await self._take_part(state, state.run)
                self._steps.notify_all()
        self.poll.note_done(state)
        self.at_work, self._asked = state.run is not None and state.phase not in ENDED, None

    async def change_silo(self, change: Callable[[Silo], RebuildResult]) -> RefreshResult:
        """Wait for the end of the round at hand, at most `LONGEST_ROUND` seconds, and go on with another shard.

        Then whoever waits for other clients stops after the poll at hand, and training after the step at hand; the
        round begins anew. `change` is slow and runs in the worker thread. The run at hand goes on with its parameters
        and the new shard, as after a restart with one.
        """
        overdue = asyncio.get_running_loop().call_later(LONGEST_ROUND, self._opening.interrupt.set)
        try:
            with self._patience.limit(LONGEST_ROUND):
                async with self._steps:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._patience.remaining):
                            await self._steps.wait_for(lambda: not self._amid)
                    overdue.cancel()
                    silo = self.silo
                    try:
                        rebuilt = await self._in_worker(change, silo)
                        silo = rebuilt.silo
                    finally:  # an opening that was told to give way is of no use even where nothing has changed
                        self._switch_silo(silo)
                    return await self._in_worker(rebuilt.finish)
        finally:
            overdue.cancel()

    def _switch_silo(self, silo: Silo) -> None:
        if silo is not self.silo or self._opening.interrupt.is_set:
            self._reset_run(silo)
            self._given_up = None  # with another shard it may be possible

    def _reset_run(self, silo: Silo) -> None:
        """Go on with this silo and with what is kept of the run at hand, as a new process would."""
        self.silo = silo
        self._opening = RunOpening(silo, self._aggregator, self._work, self._patience)
        self._part, self.training_run = None, None
        self._amid, self.poll.joined, self._asked = False, False, None  # the silo's counts may be others

    @property
    def counts(self) -> Counts | None:
        """Sizes of the silo's graph, where its policy gives them."""
        return self.silo.task.count(self.silo.shard) if self.silo.settings.policy.counts else None

    async def _join(self) -> None:
        self._set_status(phase="joining")
        self._signature_seconds = (await self.poll.join(self.counts)).signature_seconds
        self._set_status(phase="waiting")

    async def _take_part(self, state: RunOut, run: str) -> None:
        over, part = state.phase in ENDED, self._part
        if over and run == self._done:
            return
        if self._is_given_up(run):
            if over:
                self._sending.forget()
            return self._set_status(phase="refused", run=run, round=state.round, rounds=state.rounds)
        if part is None or part.place.run != run:
            newcomer = self._comes_late(state, run)
            if over and not newcomer and not self._was_interrupted(state, run):
                self._sending.forget()
                return self._set_status(phase="waiting")
            part = await self._begin(state, run, 0 if newcomer else _last_closed_round(state))
        self._set_status(run=run, round=state.round, rounds=state.rounds)
        if state.phase == "open":
            method, late = part.place.method, self._signature_seconds
            nothing = (part.warning,) if isinstance(part, BasisRun) and part.adds_nothing else ()
            self._warn((*list_warnings(self.silo.settings, state, method, late), *nothing))
        if over and part.finished:
            return
        await self._catch_up(part, state)
        if state.phase == "open" and state.standing in TAKES_PART and part.applied < state.round:
            await self._round(part, state, state.round)
        elif over:
            await self._finish(part, state)

    def _is_given_up(self, run: str) -> bool:
        """Has this run been given up? An earlier one that was is of no more interest."""
        if self._given_up is not None and self._given_up.run != run:
            self._given_up = None
        return self._given_up is not None

    def _was_interrupted(self, state: RunOut, run: str) -> bool:
        """Was this client stopped in this run, before it had evaluated it?"""
        if state.part != TRAINING:
            unmade = self._opening.makes_model(state) and not self._has_judged(run)
            return state.phase == "finished" and (unmade or not self._opening.has_sums(state))
        quality = self._earlier_quality()
        return quality.run == run and not quality.finished

    def _comes_late(self, state: RunOut, run: str) -> bool:
        """Has this client had no part in a run that is over, and can it use the sums that are kept of it?

        It takes them over, with what the run has trained, and judges both by its own data. It sends nothing.
        """
        uses_sums = state.basis is not None or state.content is not None
        if state.phase != "finished" or not uses_sums or state.standing == "quarantined":
            return False
        quality = self._earlier_quality()
        return run != quality.run and all(run != one.run for one in quality.earlier)

    def _has_judged(self, run: str) -> bool:
        quality = self._earlier_quality()
        return quality.run == run and quality.finished

    def _earlier_quality(self) -> QualityOut:
        """What an earlier process knew of its last run."""
        return load_quality(self.silo.settings.models_directory, self.silo.settings.name)

    async def _begin(self, state: RunOut, run: str, number: int) -> ClientRun:
        """This run as an earlier process left it, or with the run's parameters after round `number`."""
        self._set_status(phase="preparing", run=run)
        part = await self._opening.open_run(state, run)
        if not await self._work(part.resume, number):
            await self._opening.fetch_missing(part, number)
            found = await self._personalised(part, number) if number else await self._opening.starting_parameters(part)
            received = await self._sending.received(part, None, found, number)
            await self._work(part.begin, received, number)
        self._set_status(shared_digest=part.shared_digest)
        self._part = part
        if isinstance(part, TrainingRun):
            self.training_run = part
        return part

    async def _catch_up(self, part: ClientRun, state: RunOut) -> None:
        """Be after the last round that has closed.

        A round that this client has trained in, or may have before it was restarted, is done again, so that it ends
        with what it would have had. Nothing is sent: a closed round takes nothing. Other rounds are skipped.
        """
        number = _last_closed_round(state)
        if part.applied == number - 1 and part.trained_in(number):
            await self._round(part, state, number)
        elif part.applied < number:
            await self._opening.fetch_missing(part, number)
            received = await self._sending.received(part, None, await self._personalised(part, number), number)
            await self._work(part.skip_round, received, number)
            self._set_status(shared_digest=part.shared_digest)

    async def _round(self, part: ClientRun, state: RunOut, number: int) -> None:
        """Algorithm 1's body at the client. What the aggregator holds already, or cannot take, is not sent."""
        self._amid = True
        began, before = time.perf_counter(), replace(self._aggregator.traffic)
        update, seconds = await self._fit(part, state, number)
        fitting = min(seconds, time.perf_counter() - began)  # what was trained before takes none of it
        if number == state.round and state.phase == "open" and state.standing == "expected":
            self._set_status(phase="uploading")
            await self._sending.send(part, update, state)
        received = await self._sending.received(part, update, await self._personalised(part, number), number)
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
        await self._work(part.apply, received, costs)
        self._set_status(phase="waiting", shared_digest=part.shared_digest)
        self.silo.metrics.end_round()
        self._amid = False

    async def _fit(self, part: ClientRun, state: RunOut, number: int) -> tuple[Parameters, float]:
        strategy = strategy_of_part(part.part, self.silo.settings.strategy, part.place.method)
        anchor = await self._anchor(part.place, state, number) if strategy.spectral_scalar else None
        context = RoundContext(number, state.rounds, state.seed, anchor, self._sending.draws(part.place.run))
        self._set_status(phase="training" if part.part == TRAINING else "summing")
        return await self._work(part.fit, strategy, context, part.received)

    async def _anchor(self, place: RunContext, state: RunOut, number: int) -> Float64:
        """K^R of the round, as this client draws it. PrivacyError where the aggregator says another one, and where rho
        would be compared with more anchors than the silo's policy allows."""
        said = await self._aggregator.fetch_anchor(place.run, number)
        anchors, question = self.silo.anchors, AnchorInputs(place.method, state.seed, number, place.run)
        return await self._work(anchors.check_anchor, question, said)

    async def _personalised(self, part: ClientRun, number: int) -> Parameters:
        """Wait for the round to be aggregated."""
        self._set_status(phase="waiting for the round")
        return await self._opening.personalised(part, number)

    async def _finish(self, part: ClientRun, state: RunOut) -> None:
        phase = state.phase
        self._set_status(phase="evaluating")
        self._sending.forget()
        await self._work(part.finish, FAILURES.get(phase or "failed"))
        if isinstance(part, BasisRun) and part.finished and self._opening.makes_model(state):
            await self._make_model(part, state)
        self._set_status(phase=phase or "failed")
        # What was trained is on the disk, and what serves is the recommender's: hundreds of megabytes can go.
        self._part, self.training_run, self._done, self._amid = None, None, part.place.run, False
        await self._in_worker(return_free_memory)

    async def _make_model(self, summed: BasisRun, state: RunOut) -> None:
        """Make, judge and serve the model that follows from the sums: no run trains one."""
        self.training_run = await self._opening.open_model(summed, state)
        await self._work(self.training_run.begin, Parameters({}), 0)
        await self._work(self.training_run.finish)
        self._set_status(shared_digest=self.training_run.shared_digest)

    async def _work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Work of the run at hand, likewise. SettingsError where the system has killed too many processes amid it."""
        assert self._asked is not None, "expected a run at hand"
        with self._killed.amid(self._asked, WORK.get(name := getattr(function, "__name__", "preparing"), name)):
            return await self._in_worker(function, *args, **kwargs)

    async def _in_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In the worker thread: requests go on being answered meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, lambda: function(*args, **kwargs))

    def _warn(self, warnings: tuple[str, ...]) -> None:
        """Show warnings, and log each when it first holds."""
        for warning in set(warnings) - set(self.standing.warnings):
            LOGGER.warning("warning", reason=warning)
        self._set_status(warnings=warnings)

    def _set_status(self, **changes: object) -> None:
        self.standing = replace(self.standing, **changes)  # type: ignore[arg-type]


def _last_closed_round(state: RunOut) -> int:
    """The last round whose parameters are there to be fetched; 0 before the first."""
    return state.round if state.phase == "finished" else max(0, state.round - 1)
