"""An update's way out: noised and masked, as the silo has chosen; and what its round gives for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from client_service.boundary.aggregator import Aggregator
from client_service.logs import LOGGER
from client_service.metrics import Metrics
from client_service.participation import Participation
from client_service.privacy.guard import Guard, Occasion
from client_service.secure.exchange import Exchange
from client_service.secure.mixing import mixture, told
from client_service.secure.vault import Vault
from client_service.settings import ClientSettings
from shared.errors import ConflictError, NotFoundError, PrivacyError, RoundClosedError
from shared.privacy import pass_gate
from shared.schemas import ReceiptOut
from shared.secure.agreement import terms
from shared.strategies import build_strategy
from shared.strategy import Parameters

T = TypeVar("T")


class Sending:
    """Of one client. `guard`: there with differential privacy; `worker`: the thread for what is slow."""

    def __init__(
        self, settings: ClientSettings, aggregator: Aggregator, guard: Guard | None, metrics: Metrics, worker: Executor
    ) -> None:
        self._declaration, self._aggregator, self._guard = settings.declaration(), aggregator, guard
        self._metrics, self._worker = metrics, worker
        self._vault = Vault(settings.state_directory)
        self._exchange = Exchange(settings.name, aggregator, self._vault, wait=settings.wait_seconds)

    async def send(self, part: Participation, update: Parameters, threshold: int | None) -> None:
        """The update or, with differential privacy, its release alone; nothing where the silo's budget is spent.

        A round that was closed without this client is no error: it goes on with what it gives. Nor is it one that the
        aggregator holds another update: this client sent it, and could not keep its training.
        """
        run, number = part.place.run, part.moment.round
        leaving = await self._leaving(part, update)
        if leaving is None:
            LOGGER.warning("privacy_budget_spent", run=run, round=number)
            return
        try:
            receipt = await self._sent(run, number, leaving, threshold)
            LOGGER.info("uploaded", run=run, round=number, bytes=receipt.size, digest=receipt.digest)
            self._metrics.upload_bytes.inc(receipt.size)
        except (ConflictError, NotFoundError) as error:
            event = "too_late" if isinstance(error, RoundClosedError | NotFoundError) else "another_is_held"
            LOGGER.warning(event, run=run, round=number, reason=str(error))
            self._metrics.uploads_refused.labels(error.code).inc()

    async def _leaving(self, part: Participation, update: Parameters) -> Parameters | None:
        """What may leave of the update; asked again, the same."""
        if self._guard is None:
            return update
        place, moment, release = part.place, part.moment, self._guard.release
        at = (place.run, place.seed, place.method, moment.round, moment.rounds, part.received, moment.anchor)
        return await self._off_loop(lambda: release(update, Occasion(*at)))

    async def _sent(self, run: str, number: int, update: Parameters, threshold: int | None) -> ReceiptOut:
        """As it is, or masked where the silo demands that; never the one for the other."""
        body = pass_gate(self._declaration, update)
        if not self._declaration.secure:
            return await self._aggregator.upload(run, number, body)
        if threshold is None:
            raise PrivacyError("expected a secure round, as this silo demands, got an open one")
        return await self._exchange.send(terms(self._declaration, run, number, threshold), update)

    async def mixed(self, part: Participation, update: Parameters | None, given: Parameters) -> Parameters:
        """What this client goes on with after a round: what it was given, or in a secure federation its own mixture
        with what it has sent. The round's secrets are of no more use then.

        With differential privacy that is the release: the next one begins at what the aggregator might know.
        """
        if not self._declaration.secure:
            return given
        summed = told(given)[0] < 1.0
        own = await self._leaving(part, update) if summed and update is not None else None
        self.forget()
        return mixture(build_strategy(self._declaration.strategy, part.place.method), given, own)

    def forget(self) -> None:
        """The secrets of a round that is over."""
        self._vault.forget()

    async def _off_loop(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function)
