"""Audit log of joins, uploads and undeclared requests, with their answers, read by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, func, insert, literal, select

from aggregator_service.process import LOGGER, run_in_worker
from aggregator_service.storage.database import Database
from aggregator_service.storage.records import Arrival, instant
from aggregator_service.storage.shared_records import SharedRecords
from aggregator_service.storage.tables import ARRIVALS
from aggregator_service.storage.write_batches import WriteBatches, in_own_thread
from shared.errors import UnavailableError, UnsettledError
from shared.protocol.schemas import ArrivalOut, ArrivalsOut

LEAST_REFUSED = 400  # the HTTP status from which on an answer is a refusal
ARRIVAL_FIELDS = tuple(field.name for field in fields(Arrival))
ADD_ARRIVAL = insert(ARRIVALS)  # built once: it takes longer than to execute it
MOST_REFUSED = 1000  # rows of one client: repeated refusals must not fill the disk


def _row(arrival: Arrival, now: float) -> dict[str, Any]:
    return {name: getattr(arrival, name) for name in ARRIVAL_FIELDS} | {"time": now}


def add_accepted(database: Database, rows: Sequence[dict[str, Any]]) -> list[Exception | None]:
    """Stores arrivals of accepted requests in one transaction.

    A refused row refuses no other.
    """
    try:
        with database.recording() as connection:
            connection.execute(ADD_ARRIVAL, rows)
    except UnavailableError as error:
        if len(rows) == 1 or isinstance(error, UnsettledError):
            return [error] * len(rows)
        return [add_accepted(database, [row])[0] for row in rows]
    return [None] * len(rows)


def add_refused(database: Database, arrival: Arrival, *, now: float) -> bool:
    """Stores an arrival of a refused request; False beyond the client's limit of stored ones."""
    row = _row(arrival, now)
    values = select(*(literal(value, ARRIVALS.c[name].type) for name, value in row.items()))
    mine = (ARRIVALS.c.client == arrival.client) & (ARRIVALS.c.status >= LEAST_REFUSED)
    held = select(func.count()).select_from(ARRIVALS).where(mine).scalar_subquery()
    values = values.where(held < MOST_REFUSED)
    # One statement, so that two refusals at once cannot both be the last.
    statement = insert(ARRIVALS).from_select(list(row), values).returning(ARRIVALS.c.sequence)
    with database.recording() as connection:
        if database.workers is not None:
            database.workers.lock_arrivals(connection, alone=False)
        return connection.execute(statement).first() is not None


def last_nonce(database: Database, client: str) -> str | None:
    """Returns the nonce of the client's last accepted update."""
    accepted = (ARRIVALS.c.client == client) & (ARRIVALS.c.call == "update") & (ARRIVALS.c.status < LEAST_REFUSED)
    newest = select(ARRIVALS.c.nonce).where(accepted).order_by(ARRIVALS.c.sequence.desc()).limit(1)
    with database.reading() as connection:
        found: str | None = connection.execute(newest).scalar_one_or_none()
    return found


@contextmanager
def _reading_in_order(database: Database) -> Iterator[Connection]:
    """Opens a transaction after whose rows none with a smaller number comes."""
    if database.workers is None:
        with database.reading() as connection:
            yield connection
    else:
        with database.recording() as connection:
            database.workers.lock_arrivals(connection, alone=True)
            yield connection


def arrivals_after(database: Database, *, after: int, limit: int) -> ArrivalsOut:
    """Returns at most `limit` rows after a sequence number, oldest first, and the total."""
    page = select(ARRIVALS).where(ARRIVALS.c.sequence > after).order_by(ARRIVALS.c.sequence).limit(limit)
    with _reading_in_order(database) as connection:
        rows = [row._asdict() for row in connection.execute(page)]
        total = connection.execute(select(func.count()).select_from(ARRIVALS)).scalar_one()
    entries = tuple(ArrivalOut.model_validate(row | {"time": instant(row["time"])}) for row in rows)
    return ArrivalsOut(entries=entries, total=total)


class ArrivalRecord:
    """Durable audit log of one federation, within limits.

    `count_unrecorded` is called for each arrival beyond them. records: of one of several workers.
    """

    def __init__(
        self,
        database: Database,
        records: SharedRecords | None,
        *,
        clock: Callable[[], float],
        count_unrecorded: Callable[[], None],
    ) -> None:
        self._database, self._records = database, records
        self._accepted: WriteBatches[dict[str, Any], None] = WriteBatches(
            in_own_thread(lambda rows: add_accepted(database, rows))
        )
        self._clock = clock
        self._count_unrecorded = count_unrecorded
        self._full: set[str] = set()  # clients whose refusals are no longer recorded, which is logged once

    async def add(self, arrival: Arrival) -> None:
        """Stores an arrival before it returns; raises UnavailableError when the disk refuses."""
        if arrival.status < LEAST_REFUSED:
            if self._records is not None:
                await self._records.add_arrival(arrival, now=self._clock())
            else:
                await self._accepted.add(_row(arrival, self._clock()))
            return
        if await run_in_worker(add_refused, self._database, arrival, now=self._clock()):
            return
        self._count_unrecorded()
        if arrival.client not in self._full:
            self._full.add(arrival.client)
            LOGGER.warning("refusals_no_longer_recorded", client=arrival.client, recorded=MOST_REFUSED)

    async def page(self, after: int, limit: int) -> ArrivalsOut:
        """Returns at most `limit` arrivals after a sequence number, oldest first."""
        return await run_in_worker(arrivals_after, self._database, after=after, limit=limit)

    async def last_nonce(self, client: str) -> str | None:
        """Returns the nonce of the client's last accepted update."""
        return await run_in_worker(last_nonce, self._database, client)
