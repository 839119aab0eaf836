"""Where a run stands, as the aggregator says it -> the run at this client, with all that it needs to go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from client_service.basis.common_basis import CommonBasis
from client_service.basis.storage import kept_head, load_basis
from client_service.basis_run import BasisRun
from client_service.boundary.aggregator import Aggregator
from client_service.giving_way import RoundPatience
from client_service.run_cost import require_affordable
from client_service.run_part import RunPart
from client_service.run_place import agree_method, basis_folder, open_basis_run, place_run
from client_service.silo import Silo
from client_service.tasks.task import Place
from client_service.training_run import TrainingRun
from shared.method.declaration import Part
from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunOut
from shared.strategies import strategy_of_part

T = TypeVar("T")


class OffLoop(Protocol):
    """Call a slow function in the worker thread."""

    def __call__(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]: ...


class RunOpening:
    """Opens the runs of one silo, and fetches what each needs to begin."""

    def __init__(self, silo: Silo, aggregator: Aggregator, off_loop: OffLoop, patience: RoundPatience) -> None:
        self._silo, self._aggregator, self._off_loop, self._patience = silo, aggregator, off_loop, patience
        self.interrupt = silo.interrupt.within()  # ends the training of these runs alone

    async def open_run(self, state: RunOut, run: str) -> RunPart:
        """The run before anything of it is taken up. PrivacyError where it would send what was not declared."""
        return await (self._basis_run(state, run) if state.part == "basis" else self._training_run(state, run))

    async def _training_run(self, state: RunOut, run: str) -> TrainingRun:
        silo, method = self._silo, self._agree(state, "training")
        basis = None if state.basis is None else await self._common_basis(state, method, state.basis)
        place = replace(self._place(state, run, method), basis=basis)
        return await self._off_loop(
            TrainingRun, place, silo.task, silo.shard, silo.answers, silo.device, self.interrupt
        )

    async def _basis_run(self, state: RunOut, run: str) -> BasisRun:
        silo, place = self._silo, self._place(state, run, self._agree(state, "basis"))
        return await self._off_loop(open_basis_run, silo.settings, silo.task, silo.shard, place, state.joined)

    def _agree(self, state: RunOut, part: Part) -> MethodSettings:
        """The run's settings, once they are neither more telling nor more costly than the silo's policy allows."""
        silo, settings = self._silo, self._silo.settings
        method = agree_method(settings, state.method, part)
        strategy = strategy_of_part(part, settings.strategy, method)
        declaration, counts = settings.declaration().of_part(part), silo.task.count(silo.shard)
        require_affordable(strategy, method, settings.policy, counts, declaration, part)
        return method

    def _place(self, state: RunOut, run: str, method: MethodSettings) -> Place:
        return place_run(self._silo.settings, run, state.seed, method)

    @property
    def _basis_folder(self) -> Path:
        return basis_folder(self._silo.settings)

    def has_basis(self, run: str) -> bool:
        """Is the newest basis that is kept of this run?"""
        head = kept_head(self._basis_folder)
        return head is not None and head.run == run

    async def _common_basis(self, state: RunOut, method: MethodSettings, run: str) -> CommonBasis:
        """The basis that a training run uses: the one that is kept, or made from the sums of its basis run."""
        head = kept_head(self._basis_folder)
        if head is not None and head.run == run:
            found = await self._off_loop(load_basis, self._basis_folder, head.digest)
            if found is not None:
                return found
        part = await self._basis_run(state.model_copy(update={"method": method}), run)
        last = method.basis.rounds_needed
        await self.fetch_missing(part, last)
        await self._off_loop(part.skip_round, await self.personalised(part, last), last)
        await self._off_loop(part.finish)
        assert part.basis is not None
        return part.basis

    async def starting_parameters(self, part: RunPart) -> Parameters:
        """What a run begins with; statistics begin with zeros, which nobody needs to send."""
        return part.received if part.part == "basis" else await self._aggregator.model(part.place.run)

    async def fetch_missing(self, part: RunPart, number: int) -> None:
        """What is needed beside the parameters of round `number`. PrivacyError for other ones than were told first:
        the others would multiply with other directions than this client."""
        while (before := part.missing_round(number)) is not None:
            found, masking = await self.personalised(part, before), self._silo.masking
            if masking is not None:
                masking.remember_start(part.place.run, before + 1, found)
            await self._off_loop(part.remember, found, before)

    async def personalised(self, part: RunPart, number: int) -> Parameters:
        """Wait for the round to be aggregated. The aggregator's deadline bounds the wait, because a failed run is
        refused; and GaveWay, where a change of the shard has waited long enough."""
        wait = self._silo.settings.wait_seconds
        while True:
            self._patience.check()
            found = await self._aggregator.personalised(part.place.run, number, wait, part.part)
            if found is not None:
                return found
