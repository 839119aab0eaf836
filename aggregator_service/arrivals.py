"""Arrivals -> the aggregator's own durable record of them, within bounds; what is beyond is counted."""

from __future__ import annotations

from aggregator_service.logs import LOGGER
from aggregator_service.rounds.conductor import Clock
from aggregator_service.rounds.metrics import Metrics
from aggregator_service.storage.arrivals import MOST_REFUSED, Arrival, add_arrival, arrivals, last_nonce
from aggregator_service.storage.database import Database
from aggregator_service.threads import off_loop
from shared.protocol.schemas import ArrivalsOut


class Arrivals:
    """The record of one federation."""

    def __init__(self, database: Database, metrics: Metrics, *, clock: Clock) -> None:
        self._database = database
        self._metrics = metrics
        self._clock = clock
        self._full: set[str] = set()  # clients of whom no refusal is recorded any more, as the log says already

    async def add(self, arrival: Arrival) -> None:
        """Durable when this returns. UnavailableError when the disk refuses."""
        if await off_loop(add_arrival, self._database, arrival, now=self._clock()):
            return
        self._metrics.unrecorded.inc()
        if arrival.client not in self._full:
            self._full.add(arrival.client)
            LOGGER.warning("refusals_no_longer_recorded", client=arrival.client, recorded=MOST_REFUSED)

    async def page(self, after: int, limit: int) -> ArrivalsOut:
        """At most `limit` arrivals after the one with that sequence number, oldest first."""
        return await off_loop(arrivals, self._database, after=after, limit=limit)

    async def last_nonce(self, client: str) -> str | None:
        """By which this client has signed the last update that was accepted."""
        return await off_loop(last_nonce, self._database, client)
