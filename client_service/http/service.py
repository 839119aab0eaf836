"""Service of one client: reads the shard, serves the kept model, and runs the agent."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, TextIO

import httpx

from client_service.boundary.anchors import KnownAnchors
from client_service.boundary.gate import GateTransport
from client_service.boundary.gate_self_test import GateOut, check_gate, digest_code
from client_service.boundary.ledger_heads import HeadedLedger
from client_service.federation.agent import Agent
from client_service.federation.client_run import RebuildResult, RefreshResult, Silo
from client_service.federation.messages import BasisOut, QualityOut, SpectrumOut, StatusOut
from client_service.federation.run_poll import AgentStatus, connect_aggregator
from client_service.federation.run_records import load_quality, load_spectra, quality_warnings
from client_service.http.answer_service import AnswerService
from client_service.http.trainer_proxy import RequestActivity
from client_service.http.waiting_trainer import Budget, Handover
from client_service.metrics import ClientMetrics
from client_service.model_store.model_server import FrozenModel
from client_service.privacy.accounting import PrivacyOut
from client_service.privacy.guard import Guard, notices
from client_service.refresh.rebuild import ModelRenewal, rebuild_silo
from client_service.refresh.scheduler import RefreshScheduler
from client_service.refresh.startup import OpenRecords, load_stored_model, open_records
from client_service.runtime.device import choose_device
from client_service.runtime.interruption import Interrupt
from client_service.runtime.logs import LOGGER, describe_place
from client_service.runtime.memory import return_free_memory
from client_service.runtime.trainer_process import InheritedFiles
from client_service.runtime.workers import TrainingWorker
from client_service.secure_rounds.masking import Masking, open_masking
from client_service.secure_rounds.members import KnownMembers, open_members
from client_service.secure_rounds.round_memory import RoundMemory
from client_service.serving.model_server import ModelServer
from client_service.settings import ClientSettings
from client_service.sums.storage import basis_time, load_basis_head
from client_service.tasks import task_named
from client_service.tasks.task import TaskShard
from shared.errors import ConflictError, UnavailableError
from shared.files import lock_directory
from shared.method.declaration import Declaration
from shared.protocol.signing.enrolment import read_own_key
from shared.protocol.signing.keys import PrivateKey
from shared.sums import SUMS
from shared.sums.sum import BASIS

MODEL_LOAD_SECONDS = 15.0  # longest wait of requests for the kept model, in a trainer that has waited
IDLE_CHECK_SECONDS = 1.0  # between two checks for work


class ClientService(AnswerService):
    """Service of one client; the objects that its routes use exist only inside `running`."""

    def __init__(
        self, settings: ClientSettings, outside: httpx.AsyncBaseTransport, turns: AbstractContextManager[object]
    ) -> None:
        super().__init__(settings.task)
        self.settings, self.task = settings, task_named(settings.task)
        self.device, self.device_reason = choose_device(settings.device)
        self.models = settings.models_directory
        self.metrics: ClientMetrics = ClientMetrics()
        self._records: OpenRecords | None = None
        self._outside, self._turns = outside, turns
        self._agent: Agent | None = None
        self._refresher: RefreshScheduler | None = None
        self._gate: GateTransport | None = None
        self._members: KnownMembers | None = None
        self._ended = False
        self.server_process: int | None = None  # id of the server process that has started this one
        self.handover: Handover | None = None  # of an earlier image of this process, which has waited
        self.activity = RequestActivity()
        self._kept_lock: int | None = None
        self._idle_since = time.monotonic()
        self.idle = asyncio.Event()  # set once there is nothing to do; only in a trainer that may wait
        self.waits_when_idle = False
        self.metrics.watch_state(settings.state_directory, self.status)

    @property
    def ledger(self) -> HeadedLedger:
        if self._records is None:
            raise UnavailableError("the client has not opened its records yet")
        return self._records.ledger

    @property
    def refresher(self) -> RefreshScheduler:
        """Scheduler of refreshes; ConflictError in a silo whose applications post no events."""
        if self._refresher is None and self.log:
            raise UnavailableError("the client is reading its shard")
        assert self._refresher is not None
        return self._refresher

    @property
    def members(self) -> KnownMembers:
        """Known members of the federation; ConflictError in a silo without secure rounds."""
        if not self.settings.secure:
            raise ConflictError(
                "expected a silo of a secure federation, got one of an open federation, which has no members to accept"
            )
        if self._members is None:
            raise UnavailableError("the client has not opened its records yet")
        return self._members

    @property
    def _guard(self) -> Guard | None:
        return None if self._records is None else self._records.guard

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the service: opens shard, records and state directory, and closes them at the end.

        Raises DataError or SettingsError if shard or state directory cannot be used, or records are damaged. At the
        end slow work is interrupted first, because leaving the worker waits for it.
        """
        pinned, interrupt = self.settings.threads, Interrupt()
        with (
            self._lock_state(),
            TrainingWorker(pinned, self._turns) as worker,
        ):
            key = read_own_key(self.settings.name, self.settings.state_directory, self.settings.signing_key_file)
            shard = await asyncio.get_running_loop().run_in_executor(worker, self.task.read, self.settings)
            LOGGER.info("device", device=str(self.device), reason=self.device_reason, threads=pinned)
            # Before anything is written: beside damaged records all files stay as they were found.
            records = await asyncio.get_running_loop().run_in_executor(worker, self._open, key, shard)
            self._answers, self._feedback = await asyncio.to_thread(self.task.open, self.settings, shard)
            members, masking = self._peers(key, records)
            linked = connect_aggregator(
                self.settings,
                records.ledger,
                key,
                members,
                self._outside,
                permit=None if records.guard is None else records.guard.permit,
                permit_basis=None if records.basis_guard is None else records.basis_guard.permit,
            )
            async with _sealed_at_end(records), linked as link:
                self._gate = link.gate
                self._agent = agent = Agent(
                    self._silo(shard, interrupt, records, masking),
                    link,
                    worker,
                    None if self.handover is None else self.handover.agent_status,
                )
                if self._feedback is not None:
                    before = None if self.handover is None else self.handover.refresh
                    work = partial(self._refresh, agent)
                    self._refresher = RefreshScheduler(self.settings, self._feedback, work, before)
                model_loaded = asyncio.Event()
                self._following = asyncio.create_task(self._follow(shard, worker, interrupt, model_loaded))
                try:
                    if self.handover is not None:  # the request that has ended the wait is answered by the kept model
                        with suppress(TimeoutError):
                            async with asyncio.timeout(MODEL_LOAD_SECONDS):
                                await model_loaded.wait()
                    yield
                finally:
                    interrupt.set()
                    self.answers.close()
                    self._following.cancel()
                    with suppress(asyncio.CancelledError):
                        await self._following
                    if self._feedback is not None:
                        self._feedback.close()

    async def _follow(
        self, shard: TaskShard, worker: ThreadPoolExecutor, interrupt: Interrupt, model_loaded: asyncio.Event
    ) -> None:
        """Serves the kept model first, then follows the aggregator."""
        try:
            loop = asyncio.get_running_loop()
            self.answers.served = await loop.run_in_executor(worker, self._load_stored_model, shard, interrupt)
            model_loaded.set()
            await loop.run_in_executor(worker, return_free_memory)
            assert self._agent is not None
            refreshing = () if self._refresher is None else (self._watch(self._refresher.follow()),)
            await _run_all(self._watch(self._follow_runs(self._agent)), *refreshing)
        except Exception:
            LOGGER.exception("agent_ended")
            raise

    async def _follow_runs(self, agent: Agent) -> None:
        """Follows the aggregator; a trainer that may wait stops when it is idle."""
        if not self.waits_when_idle:
            return await agent.follow()
        watching = asyncio.create_task(self._record_work(agent))
        try:
            await agent.follow(self._is_idle)
        finally:
            watching.cancel()
        self.idle.set()
        await asyncio.Future()  # until the service ends

    async def _record_work(self, agent: Agent) -> None:
        """Records the last time at which there was work, until cancelled."""
        while True:
            if agent.is_busy or self._has_work():
                self._idle_since = time.monotonic()
            await asyncio.sleep(min(IDLE_CHECK_SECONDS, self.settings.trainer_idle_seconds / 4))

    def _has_work(self) -> bool:
        """Tells whether a request, a computation of lists or a refresh is open or due."""
        refresher, seconds = self._refresher, self.settings.trainer_idle_seconds
        refreshes = refresher is not None and not refresher.is_idle(seconds)
        return self.activity.open > 0 or self.answers.is_busy or refreshes or self.unready_reason is not None

    async def _is_idle(self) -> bool:
        """Tells whether the trainer has been idle for `trainer_idle_seconds`."""
        since = max(self._idle_since, self.activity.ended)
        if self._has_work() or time.monotonic() - since < self.settings.trainer_idle_seconds:
            return False
        if self._feedback is None:
            return True
        try:
            return not await asyncio.to_thread(self._feedback.store.erasures.has_open)
        except UnavailableError:  # another process has locked the log
            return False

    def make_handover(self, settings: int, listener: int, health: int) -> Handover:
        """Makes the handover to the process's next image, which waits.

        settings, listener, health: descriptors of files.
        """
        assert self._agent is not None and self._kept_lock is not None
        poll, guard, log = self._agent.poll, self._guard, self._feedback
        served = self.answers.served
        spent = None if guard is None else guard.spending
        files = InheritedFiles(settings=settings, lock=self._kept_lock, listener=listener, health=health)
        return Handover(
            kept=files,
            server=self.server_process,
            refresh=None if self._refresher is None else self._refresher.state,
            least_rating=None if log is None else log.least_rating,
            joined=poll.joined,
            ended_run=poll.ended_run,
            counts=self._agent.counts,
            agent_status=self._agent.status,
            model=None if served is None else served.version,
            budget=None if spent is None else Budget(epsilon=spent.epsilon, budget=spent.budget),
            series=tuple(self.metrics.read_counts()),
        )

    def _lock_state(self) -> TextIO:
        """Locks the state directory, and keeps the lock for the trainer process that follows."""
        held = None if self.handover is None else self.handover.kept.lock
        found = lock_directory(self.settings.state_directory, self.server_process, held)
        if self.waits_when_idle:
            self._kept_lock = os.dup(found.fileno())
        return found

    async def _watch(self, job: Coroutine[Any, Any, None]) -> None:
        """Runs a background job, and notes its failure: then only a restart helps."""
        try:
            await job
        except Exception as error:
            LOGGER.error("agent_ended", error=type(error).__name__, at=describe_place(error))
            self._ended = True
            raise

    @property
    def live(self) -> bool:
        """Whether agent and refresh scheduler run; if one failed, only a restart helps."""
        return super().live and not self._ended

    def _load_stored_model(self, shard: TaskShard, interrupt: Interrupt) -> FrozenModel | None:
        store = None if self._feedback is None else self._feedback.store
        renewal = ModelRenewal(self.settings, self.task, shard, self.device, interrupt)
        return load_stored_model(renewal, store)

    async def _refresh(self, agent: Agent, begins: Callable[[], None]) -> RefreshResult:
        """Rebuilds shard, model and answers from the event log, between two rounds."""

        def change(silo: Silo) -> RebuildResult:
            begins()
            return rebuild_silo(silo, self.log, self._publish)

        return await agent.change_silo(change)

    @property
    def silo(self) -> Silo:
        """Data and state that answers and training use now."""
        if self._agent is None:
            raise UnavailableError("the client is reading its shard")
        return self._agent.silo

    def _publish(self, answers: ModelServer) -> None:
        self._answers = answers

    def _silo(self, shard: TaskShard, interrupt: Interrupt, records: OpenRecords, masking: Masking | None) -> Silo:
        settings, policy = self.settings, self.settings.policy
        limit = None if settings.privacy.is_on else policy.anchors
        anchors = KnownAnchors(records.anchors, shard.digest, limit=limit, agreed=policy.anchor_size)
        return Silo(
            settings,
            self.task,
            shard,
            self.answers,
            self.device,
            self.metrics,
            interrupt,
            anchors,
            guard=records.guard,
            basis_guard=records.basis_guard,
            masking=masking,
        )

    def _peers(self, key: PrivateKey, records: OpenRecords) -> tuple[KnownMembers | None, Masking | None]:
        """Opens the pinned members and the masking of secure rounds, where they are used."""
        settings = self.settings
        if settings.members is None and not settings.trust_on_first_use:
            return None, None
        memory = RoundMemory(records.rounds)
        members = self._members = open_members(settings, memory)
        if not settings.secure:
            return members, None
        rules = {"noised": settings.privacy.is_on, "changing_members": settings.policy.changing_members}
        policy, folder = settings.policy, settings.state_directory
        opened = partial(open_masking, basis_changes=policy.basis_changes, colluders=policy.colluders)
        return members, opened(settings.name, folder, key, members, memory, **rules)

    def _open(self, key: PrivateKey, shard: TaskShard) -> OpenRecords:
        self._records = found = open_records(self.settings, key, shard)
        if (guard := found.guard) is not None:
            self.metrics.watch_privacy(lambda: guard.spending)
        return found

    def status(self) -> StatusOut:
        status = AgentStatus() if self._agent is None else self._agent.status
        served = None if self._answers is None else self._answers.served
        privacy = None if self._guard is None else self._guard.spending
        sums = self._kept_sums()
        return StatusOut(
            client=self.settings.name,
            phase=status.phase,
            run=status.run,
            round=status.round,
            rounds=status.rounds,
            model=None if served is None else served.version,
            listed=0.0 if self._answers is None else self._answers.lists_share,
            form=getattr(served, "form", None),
            form_reason=getattr(served, "why", None),
            shared_digest=status.shared_digest,
            device=str(self.device),
            device_reason=self.device_reason,
            streams=self._agent is not None and self._agent.poll.has_stream,
            problem=status.problem,
            warnings=(*status.warnings, *self._own_warnings(privacy)),
            privacy=privacy,
            basis=next((one for one in sums if one.part == BASIS), None),
            sums=sums,
        )

    def _own_warnings(self, privacy: PrivacyOut | None) -> tuple[str, ...]:
        """Lists the silo's own warnings for its operator, apart from the aggregator's."""
        problem = None if self._refresher is None else self._refresher.status.problem
        refresh = () if problem is None else (f"the shard was not refreshed: {problem}",)
        members = self._members.notices if self._members is not None and self.settings.secure else ()
        return (*members, *quality_warnings(self.quality()), *notices(privacy), *refresh)

    def _kept_sums(self) -> tuple[BasisOut, ...]:
        folder = self.settings.state_directory / "basis"
        heads = {part: load_basis_head(folder, part) for part in dict.fromkeys(one.part for one in SUMS.values())}
        return tuple(
            BasisOut(part=part, kept_at=basis_time(folder, part), **head.model_dump())
            for part, head in heads.items()
            if head is not None
        )

    def quality(self) -> QualityOut:
        """Returns the figures of the current run, or of the last one."""
        training_run = None if self._agent is None else self._agent.training_run
        return load_quality(self.models, self.settings.name) if training_run is None else training_run.quality

    def spectrum(self) -> SpectrumOut:
        """Returns the kernels that the latest rho compared; empty before the first."""
        training_run = None if self._agent is None else self._agent.training_run
        return load_spectra(self.models) if training_run is None else training_run.spectrum

    async def check_gate(self) -> GateOut:
        """Tests the gate of this client with forbidden messages, and digests its code."""
        if self._gate is None:
            raise UnavailableError("the client is still starting")
        verdicts, code = await check_gate(self._gate), await asyncio.to_thread(digest_code)
        return GateOut(client=self.settings.name, verdicts=verdicts, code=code)

    def declaration(self) -> Declaration:
        """Returns the declaration of all that may leave this client."""
        return self.settings.declaration()


async def _run_all(*jobs: Coroutine[Any, Any, None]) -> None:
    """Runs all jobs to their end; the failure of one does not stop the others.

    For example, erasures continue after the agent has failed.
    """
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _sealed_at_end(records: OpenRecords) -> AsyncIterator[None]:
    try:
        yield
    finally:
        records.save_heads()
