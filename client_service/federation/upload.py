"""Upload of updates: noised and masked, as the silo has chosen; and the next parameters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from client_service.boundary.aggregator_api import Aggregator
from client_service.federation.basis_run import BasisRun
from client_service.federation.client_run import ClientRun
from client_service.metrics import ClientMetrics
from client_service.privacy.basis_guard import BasisGuard
from client_service.privacy.guard import Guard, Occasion
from client_service.runtime.interruption import RoundDeadline
from client_service.runtime.logs import LOGGER
from client_service.secure_rounds.exchange import BasisPart, SecureExchange
from client_service.secure_rounds.masking import Masking
from client_service.settings import ClientSettings
from shared.errors import ConflictError, NotFoundError, PrivacyError, RoundClosedError
from shared.method.declaration import TRAINING
from shared.method.parameters import Parameters
from shared.protocol.gate import pass_gate
from shared.protocol.schemas import ReceiptOut, RunOut
from shared.protocol.secure.messages import RoundTerms
from shared.strategies import strategy_of_part
from shared.strategies.aggregation import Mixing
from shared.strategies.strategy import Strategy
from shared.sums import find_sum

T = TypeVar("T")


def require_same_run(run_part: ClientRun, state: RunOut) -> None:
    """Checks that a run still has the seed and the rounds that training used.

    Raises PrivacyError if it has not: the other clients are given the new ones.
    """
    context = run_part.context
    if (run_part.place.seed, context.seed, context.rounds) != (state.seed, state.seed, state.rounds):
        words = f"expected the seed and the number of rounds that round {context.round} was trained with"
        raise PrivacyError(f"{words}, {context.seed} and {context.rounds}, got {state.seed} and {state.rounds}")


def require_similar(mixing: Mixing | None, least: float) -> None:
    """Raises PrivacyError for a run that gives clients less of the mean than allowed.

    Less of the mean gives clients more different starts.
    """
    if mixing is not None and mixing.least_share < least:
        words = f"policy: expected a run that gives each client at least {least:g} of the mean"
        raise PrivacyError(f"{words} (policy.least_similarity), got {mixing.least_share:g}")


def _build_basis_part(run_part: ClientRun, masking: Masking) -> BasisPart | None:
    """Builds the silo's statement about its data in a run that sums.

    It has the digests of its data, and the silo's demands on the others.
    """
    if run_part.summed is None:
        return None
    least = max(masking.basis_changes, run_part.place.method.basis.least_silos)
    summed = run_part.summed
    stamp, method = masking.stamp(summed.training, summed.all_data), run_part.place.method
    over_sums = method.basis.places is not None or find_sum(method).base_part(method) is not None
    return BasisPart(stamp, summed.catalogue, least, listed=over_sums)


class UpdateSender:
    """Sender of a client's updates.

    guard: with differential privacy. masking: in a secure federation. basis_guard: with noise on the common basis.
    worker: for slow work. deadline: of waits for other clients.
    """

    def __init__(
        self,
        settings: ClientSettings,
        aggregator: Aggregator,
        metrics: ClientMetrics,
        worker: Executor,
        *,
        guard: Guard | None,
        masking: Masking | None,
        basis_guard: BasisGuard | None = None,
        deadline: RoundDeadline | None = None,
    ) -> None:
        self._deadline = deadline
        self._aggregator, self._guard, self._basis_guard = aggregator, guard, basis_guard
        self._declared = settings.declaration()
        self._masking, self._wait = masking, settings.wait_seconds
        self._least_similarity = settings.policy.least_similarity
        self._metrics, self._worker = metrics, worker

    def secret_seed(self, run: str) -> bytes:
        """Returns the secret part of a run's seed; empty in an open federation."""
        return b"" if self._masking is None else self._masking.draws(run)

    async def send(self, run_part: ClientRun, update: Parameters, state: RunOut) -> None:
        """Sends the update or, with differential privacy, its release alone.

        Nothing is sent where the silo's budget is spent. A round that was closed without this client is no error: the
        client continues with its result. Nor is it one that the aggregator holds another update: this client sent it,
        and could not keep its training.
        """
        run, number = run_part.place.run, run_part.context.round
        released = await self._release(run_part, update)
        if released is None:
            LOGGER.warning("privacy_budget_spent", run=run, round=number)
            return
        try:
            receipt = await self._send_or_withdraw(run_part, released, state)
            LOGGER.info("uploaded", run=run, round=number, bytes=receipt.size, digest=receipt.digest)
            self._metrics.upload_bytes.inc(receipt.size)
        except (ConflictError, NotFoundError) as error:
            event = "too_late" if isinstance(error, RoundClosedError | NotFoundError) else "another_is_held"
            LOGGER.warning(event, run=run, round=number, reason=str(error))
            self._metrics.uploads_refused.labels(error.code).inc()

    async def _send_or_withdraw(self, run_part: ClientRun, update: Parameters, state: RunOut) -> ReceiptOut:
        """Sends an update, and withdraws a part of a sum that was not accepted."""
        try:
            return await self._send(run_part, update, state)
        except (PrivacyError, RoundClosedError, NotFoundError):
            if isinstance(run_part, BasisRun):
                run_part.withdraw()
            raise

    async def _release(self, run_part: ClientRun, update: Parameters) -> Parameters | None:
        """Returns the part of the update that may leave; a repetition gives the same."""
        if self._guard is None:
            return update
        place, context, release = run_part.place, run_part.context, self._guard.release
        at = (place.run, place.seed, place.method, context.round, context.rounds, run_part.received, context.anchor)
        return await self._in_worker(lambda: release(update, Occasion(*at)))

    async def _send(self, run_part: ClientRun, update: Parameters, state: RunOut) -> ReceiptOut:
        """Sends an update as it is, or masked where the silo demands that."""
        declaration = self._declared.of_part(run_part.part)
        run, number = run_part.place.run, run_part.context.round
        if self._masking is None:
            return await self._aggregator.upload(run, number, pass_gate(declaration, update))
        if state.threshold is None:
            raise PrivacyError("expected a secure round, as this silo demands, got an open one")
        require_same_run(run_part, state)
        require_similar(self._strategy(run_part).mixing, self._least_similarity)
        terms = self._masking.terms(declaration, run_part.place.method, run, number, state)
        if run_part.part != TRAINING and run_part.place.method.basis.epsilon is not None:
            update = await self._noised_part(run_part, update, terms)
        update = await self._with_reports(run_part, update, self._masking)
        pass_gate(declaration, update)
        basis = _build_basis_part(run_part, self._masking)
        exchange = SecureExchange(
            self._masking,
            self._aggregator,
            wait=self._wait,
            worker=self._worker,
            basis=basis,
            patience=self._deadline,
        )
        return await exchange.send(terms, update)

    async def _with_reports(self, run_part: ClientRun, released: Parameters, masking: Masking) -> Parameters:
        """Adds the strategy's reports to a noised update."""
        report, number = self._strategy(run_part).report, run_part.context.round
        if report is None:
            return released
        base = await self._in_worker(lambda: masking.start_of(run_part.place.run, number))
        return await self._in_worker(lambda: report(released, base.arrays))

    async def _noised_part(self, run_part: ClientRun, update: Parameters, terms: RoundTerms) -> Parameters:
        """Adds this silo's part of the noise to an update; a repetition gives the same."""
        guard, method = self._basis_guard, run_part.place.method
        if guard is None:
            raise PrivacyError("expected an account for noised sums of the common basis (basis.epsilon), got none")
        return await self._in_worker(lambda: guard.release(update, terms, method))

    async def next_parameters(
        self, run_part: ClientRun, update: Parameters | None, given: Parameters, number: int
    ) -> Parameters:
        """Returns the parameters that this client continues with after round `number`.

        They are the given ones, or in a secure federation their mixture with what this client has sent. The round's
        secrets are deleted then. number 0: the start of the run. With differential privacy the sent part is the
        release: the next one begins at what the aggregator might know.
        """
        if self._masking is None:
            return given
        strategy, masking = self._strategy(run_part), self._masking
        mixing = strategy.mixing
        mean = given if mixing is None else mixing.drop_server_scalars(given)
        run, whole = run_part.place.run, strategy.report is not None
        await self._in_worker(lambda: masking.remember_start(run, number + 1, mean, whole=whole))
        if number == 0:
            return given
        if mixing is None:
            self.delete_secrets()
            return given
        server_scalars, mean = mixing.split_server_scalars(given)
        mixes = server_scalars != mixing.mean_alone and update is not None
        own = await self._release(run_part, update) if mixes and update is not None else None
        self.delete_secrets()
        return mean if own is None else strategy.mix(server_scalars, mean, own)

    def _strategy(self, run_part: ClientRun) -> Strategy:
        """Returns the strategy of the run."""
        return strategy_of_part(run_part.part, self._declared.strategy, run_part.place.method)

    def delete_secrets(self) -> None:
        """Deletes the secrets of a round that is over."""
        if self._masking is not None:
            self._masking.round_secrets.delete()

    async def _in_worker(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function)
