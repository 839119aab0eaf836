"""Opens a run at this client: checks settings and cost, resumes, warns the operator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar, cast

from client_service.boundary.aggregator_api import Aggregator
from client_service.data.interactions import Shard
from client_service.federation.basis_run import BasisRun
from client_service.federation.client_run import (
    ClientRun,
    Silo,
    basis_folder,
    build_run_context,
    check_method,
    open_basis_run,
)
from client_service.federation.run_cost import require_affordable
from client_service.federation.training_run import TrainingRun
from client_service.privacy.settings import PrivacySettings
from client_service.runtime.interruption import RoundDeadline
from client_service.settings import ClientSettings
from client_service.sums.common_items import CommonItems
from client_service.sums.content import ContentStatistics, find_agreed_features
from client_service.sums.registry import SILO_SUMS
from client_service.sums.silo_sum import Statistics
from client_service.sums.storage import complete_shard, load_basis, load_basis_head
from client_service.tasks.task import RunContext, TaskShard
from shared.errors import ProtocolError
from shared.method.declaration import TRAINING, Declaration, Part
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.protocol.gate import warn_of_few_clients
from shared.protocol.schemas import RunOut
from shared.strategies import build_strategy, strategy_of_part
from shared.strategies.server_optimisers import magnitudes_for
from shared.strategies.strategy import Strategy
from shared.sums import find_part, find_sum, list_sums, makes_models, method_of_part
from shared.sums.common_items import ITEMS
from shared.sums.content import CONTENT

QUARANTINED = "the aggregator has quarantined this client and accepts nothing from it: ask its operator for the reason"


def list_warnings(
    settings: ClientSettings, state: RunOut, method: MethodSettings, signature_seconds: float | None
) -> tuple[str, ...]:
    """Lists the warnings about an open run.

    signature_seconds: by which a request may be late; None before the aggregator has stated it.
    """
    declaration = settings.declaration()
    late = settings.limits().list_conflicts(signature=signature_seconds, deadline=state.deadline_seconds)
    quarantined = (QUARANTINED,) if state.standing == "quarantined" else ()
    strategy = build_strategy(declaration.strategy, method)
    noised = warn_of_noised_magnitudes(settings.privacy, strategy, method)
    rows = warn_of_changed_item_rows(strategy, method, settings.task, secure=declaration.secure)
    sums = SILO_SUMS[find_sum(method).name].warnings(method) if state.part != TRAINING else ()
    unlike = warn_of_unlike_starts(declaration, method)
    return (*warn_of_few_clients(state.joined), *unlike, *rows, *noised, *sums, *late, *quarantined)


def list_protection_limits(settings: ClientSettings, method: MethodSettings) -> frozenset[str]:
    """Lists the warnings that follow from the federation's settings alone, for training and all sums.

    They hold in every run, and need no action of a silo that has agreed to these settings.
    """
    declaration = settings.declaration()
    strategy = build_strategy(declaration.strategy, method)
    rows = warn_of_changed_item_rows(strategy, method, settings.task, secure=declaration.secure)
    parts = [method_of_part(method, part) for part in list_sums(method)]
    sums = [text for one in parts for text in SILO_SUMS[find_sum(one).name].warnings(one)]
    return frozenset((*warn_of_unlike_starts(declaration, method), *rows, *sums))


def warn_of_unlike_starts(declaration: Declaration, method: MethodSettings) -> tuple[str, ...]:
    """Warns where clients of a secure run continue from different parameters (Eq. 14)."""
    mixing = build_strategy(declaration.strategy, method).mixing
    if not declaration.secure or mixing is None or mixing.least_share == 1.0:
        return ()
    return (
        "with a similarity_floor below 1 an aggregator that lies about the mean can tell one client's update from"
        " a sum: policy.least_similarity = 1 refuses such runs",
    )


def warn_of_changed_item_rows(
    strategy: Strategy, method: MethodSettings, task: str, *, secure: bool
) -> tuple[str, ...]:
    """Warns where sums reveal which items this silo alone has."""
    of_sessions = task == "sessions"
    if not secure or not strategy.shares_items(method) or (of_sessions and method.sessions.candidates == "catalogue"):
        return ()
    others = "; with sessions.candidates = catalogue all rows move" if of_sessions else ""
    return ("rows of items leave: sums with and without this silo reveal which items only it has" + others,)


def warn_of_noised_magnitudes(privacy: PrivacySettings, strategy: Strategy, method: MethodSettings) -> tuple[str, ...]:
    """Warns where server steps follow sizes of changes that are mostly noise."""
    if not privacy.is_on or strategy.server == "none" or magnitudes_for(strategy.server, method) == "off":
        return ()
    return (
        f"the server's steps follow the mean of the clients' |changes|, which noise keeps at {privacy.mean_noise():.2g}"
        " or more: steps become shorter; server_step.magnitudes = off follows the mean's change instead",
    )


T = TypeVar("T")


class WorkerCall(Protocol):
    """Calls a slow function in the worker thread."""

    def __call__(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]: ...


class RunOpener:
    """Opens the runs of one silo, and fetches their inputs."""

    def __init__(self, silo: Silo, aggregator: Aggregator, worker_call: WorkerCall, deadline: RoundDeadline) -> None:
        self._silo, self._aggregator, self._in_worker, self._deadline = silo, aggregator, worker_call, deadline
        self.interrupt = silo.interrupt.child()  # ends the training of these runs alone

    async def open_run(self, state: RunOut, run: str) -> ClientRun:
        """Opens a run at its beginning.

        Raises PrivacyError if it would send parameters that were not declared.
        """
        return await (self._training_run(state, run) if state.part == TRAINING else self._basis_run(state, run))

    async def _training_run(self, state: RunOut, run: str) -> TrainingRun:
        silo, items = self._silo, await self._load_common_items(state)
        method = self._check_run(state, TRAINING, items)
        basis = None if state.basis is None else await self._load_statistics(state, method, state.basis)
        place = replace(self._build_context(state, run, method), basis=basis, content=await self._load_content(state))
        shard = await self._complete_shard()
        return await self._in_worker(TrainingRun, place, silo.task, shard, silo.answers, silo.device, self.interrupt)

    async def _basis_run(self, state: RunOut, run: str) -> BasisRun:
        silo, items = self._silo, await self._load_common_items(state)
        place = self._build_context(state, run, self._check_run(state, state.part, items))
        over, shard = await self._load_base_sums(state, place.method), await self._complete_shard()
        opened = (silo.settings, silo.task, shard, place, state.joined, silo.federation, items, over)
        return await self._in_worker(open_basis_run, *opened)

    async def _complete_shard(self) -> TaskShard:
        """Completes the shard by earlier sums, such as sums over foreign neighbours."""
        settings, shard = self._silo.settings, self._silo.shard
        return cast(TaskShard, await self._in_worker(complete_shard, self._basis_folder, settings.method, shard))

    async def _load_content(self, state: RunOut) -> ContentStatistics | None:
        """Finds the kept content sums of a run, or makes them from its sums.

        None if there are none, and in a silo that has declared none or knows nothing of its items by their encoder.
        """
        silo, run = self._silo, state.content
        if run is None or CONTENT not in list_sums(silo.settings.method) or silo.settings.task != "items":
            return None
        method = method_of_part(silo.settings.method, CONTENT)
        if await self._in_worker(find_agreed_features, cast(Shard, silo.shard), method) is None:
            return None
        found = await self._load_statistics(state, method, run)
        return found if isinstance(found, ContentStatistics) else None

    async def _load_common_items(self, state: RunOut) -> CommonItems | None:
        """Loads a run's list of common items, or builds it from sums.

        Returns None for a run over a list that all silos have.
        """
        if state.items is None or state.method is None or state.method.basis.places is None:
            return None
        method = method_of_part(self._silo.settings.method, ITEMS)
        found = await self._load_statistics(state, method, state.items)
        return found if isinstance(found, CommonItems) else None

    async def _load_base_sums(self, state: RunOut, method: MethodSettings) -> Statistics | None:
        """Loads the statistics that the sum of a run counts over, or builds them.

        Raises ProtocolError if the aggregator does not state their run.
        """
        part = find_sum(method).base_part(method)
        if part is None:
            return None
        if state.over is None:
            raise ProtocolError(f"expected a run of the part {part!r} over whose sums this run counts, got none")
        return await self._load_statistics(state, method_of_part(self._silo.settings.method, part), state.over)

    def _check_run(self, state: RunOut, part: Part, items: CommonItems | None) -> MethodSettings:
        """Returns the run's settings, checked against policy and costs.

        items: the list of common items. What is built from sums over it is as long as that list, not as its places.
        """
        silo, settings = self._silo, self._silo.settings
        method = check_method(settings, state.method, part)
        strategy = strategy_of_part(part, settings.strategy, method)
        declaration, counts = settings.declaration().of_part(part), silo.task.count(silo.shard)
        size = method.catalogue if items is None else max(1, min(method.catalogue, items.size))
        made = method.model_copy(update={"catalogue": size})
        summed = made if part == TRAINING else method
        require_affordable(strategy, summed, settings.policy, counts, declaration, part)
        if part != TRAINING and self.makes_model(state):  # it follows at the end of the run
            trained = build_strategy(settings.strategy, method)
            require_affordable(trained, made, settings.policy, counts, declaration, TRAINING)
        return method

    def makes_model(self, state: RunOut) -> bool:
        """Tells whether the silo builds its model from this run's sums, without training."""
        settings, method = self._silo.settings, state.method
        summed = state.makes_models or (method is not None and makes_models(method.basis, settings.method))
        return summed and build_strategy(settings.strategy, settings.method).sums_alone

    async def open_model(self, summed: BasisRun, state: RunOut) -> TrainingRun:
        """Opens the run that builds the silo's model from these sums, and sends nothing."""
        silo = self._silo
        made = summed.basis
        if isinstance(made, ContentStatistics):
            found = await self._in_worker(find_agreed_features, cast(Shard, silo.shard), summed.place.method)
            place = replace(summed.place, content=None if found is None else made)
        else:
            place = replace(summed.place, basis=made, content=await self._load_content(state))
        shard = await self._complete_shard()
        return await self._in_worker(TrainingRun, place, silo.task, shard, silo.answers, silo.device, self.interrupt)

    def _build_context(self, state: RunOut, run: str, method: MethodSettings) -> RunContext:
        return build_run_context(self._silo.settings, run, state.seed, method)

    @property
    def _basis_folder(self) -> Path:
        return basis_folder(self._silo.settings)

    def has_sums(self, state: RunOut) -> bool:
        """Tells whether the newest kept statistics are those of this run."""
        part = state.part if state.method is None else find_sum(state.method).part
        head = load_basis_head(self._basis_folder, part)
        return head is not None and head.run == state.run

    async def _load_statistics(self, state: RunOut, method: MethodSettings, run: str) -> Statistics:
        """Loads the statistics of an earlier run that summed, or builds them from its sums."""
        head = load_basis_head(self._basis_folder, find_sum(method).part)
        if head is not None and head.run == run:
            found = await self._in_worker(load_basis, self._basis_folder, head.digest)
            if found is not None:
                return found
        run_part = await self._basis_run(
            state.model_copy(update={"method": method, "part": find_part(method.basis)}), run
        )
        last = find_sum(method).rounds(method.basis)
        await self.fetch_missing(run_part, last)
        await self._in_worker(run_part.skip_round, await self.wait_for_personalised(run_part, last), last)
        await self._in_worker(run_part.finish)
        assert run_part.basis is not None
        return run_part.basis

    async def fetch_starting_parameters(self, run_part: ClientRun) -> Parameters:
        """Fetches the initial parameters of a run; sums begin with zeros."""
        return (
            await self._aggregator.fetch_model(run_part.place.run) if run_part.part == TRAINING else run_part.received
        )

    async def fetch_missing(self, run_part: ClientRun, number: int) -> None:
        """Fetches the parameters that are needed beside those of round `number`.

        Raises PrivacyError if they differ from those stated first: the others would multiply with other directions
        than this client.
        """
        while (before := run_part.missing_round(number)) is not None:
            found, masking = await self.wait_for_personalised(run_part, before), self._silo.masking
            if masking is not None:
                masking.remember_start(run_part.place.run, before + 1, found)
            await self._in_worker(run_part.store_received, found, before)

    async def wait_for_personalised(self, run_part: ClientRun, number: int) -> Parameters:
        """Waits for a round's aggregation, and returns this client's parameters.

        The aggregator's deadline bounds the wait, because a failed run is refused. Raises RoundAborted where a change
        of the shard has waited long enough.
        """
        wait = self._silo.settings.wait_seconds
        while True:
            self._deadline.check()
            found = await self._aggregator.fetch_personalised(run_part.place.run, number, wait, run_part.part)
            if found is not None:
                return found
