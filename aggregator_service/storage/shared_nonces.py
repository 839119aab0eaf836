"""Nonces of signed requests in a shared database, each accepted once by all workers.

A worker adds the nonces of all requests that came while its last transaction ran in one more. As with the nonces of
one process, a commit does not wait for the disk, and the newest deleted time of each client stays for good.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, Float, MetaData, Select, Table, func, insert, inspect, select, text
from sqlalchemy.dialects import postgresql

from aggregator_service.process import run_in_worker
from aggregator_service.storage.database import Database
from aggregator_service.storage.nonces import MOST, describe_forgotten, describe_too_many
from aggregator_service.storage.tables import TEXT
from shared.errors import ClockError, UnavailableError

TABLES = MetaData()
SEEN = Table(
    "nonces_seen",
    TABLES,
    Column("client", TEXT, primary_key=True),
    Column("nonce", TEXT, primary_key=True),
    Column("created", Float, nullable=False, index=True),
)
FLOORS = Table(
    "nonces_floors", TABLES, Column("client", TEXT, primary_key=True), Column("created", Float, nullable=False)
)
EVERYBODY = ""  # in FLOORS: for all clients
FORGET_SECONDS = 10.0  # between two deletions of old nonces
WINDOWS = 2  # a nonce is kept for so many windows: the workers' clocks differ
MAKING = 0x4C50_5346_6564 + 3  # lock of the worker that makes the tables
RAISED = text(
    "INSERT INTO nonces_floors SELECT client, max(created) FROM nonces_seen WHERE created < :old GROUP BY client"
    " ON CONFLICT (client) DO UPDATE SET created = greatest(nonces_floors.created, excluded.created)"
)


@dataclass(frozen=True)
class _Given:
    client: str
    nonce: str
    created: float
    now: float
    accepted: asyncio.Future[bool]


class SharedNonces:
    """Nonces of all workers of a federation.

    had_clients: whether clients may have called before these tables were made, whose nonces are not in them.
    """

    def __init__(self, database: Database, *, seconds: float, had_clients: bool) -> None:
        self._database, self._seconds = database, seconds
        self._given: list[_Given] = []
        self._adding: asyncio.Task[None] | None = None
        self._forgotten_at = 0.0
        with database.recording() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MAKING})
            made = inspect(connection).has_table(SEEN.name)
            TABLES.create_all(connection)
            if not made and had_clients:
                connection.execute(insert(FLOORS).values(client=EVERYBODY, created=time.time()))

    def close(self) -> None:
        """Does nothing: the database is closed by itself."""

    async def add_nonce(self, client: str, nonce: str, *, created: float, now: float) -> bool:
        """Stores a nonce; False if it was used before at any worker.

        Raises ClockError for a time whose nonces were deleted, UnavailableError for a client with too many recent
        requests, and while the database refuses.
        """
        given = _Given(client, nonce, created, now, asyncio.get_running_loop().create_future())
        self._given.append(given)
        if self._adding is None:
            self._adding = asyncio.create_task(self._add_given())
        return await given.accepted

    async def _add_given(self) -> None:
        try:
            while self._given:
                given, self._given = self._given, []
                try:
                    found = await run_in_worker(self._store, given)
                except Exception as error:
                    found = [error] * len(given)
                for one, outcome in zip(given, found, strict=True):
                    if one.accepted.done():  # its caller has left
                        continue
                    if isinstance(outcome, Exception):
                        one.accepted.set_exception(outcome)
                    else:
                        one.accepted.set_result(outcome)
        finally:
            self._adding = None

    def _store(self, given: Sequence[_Given]) -> list[bool | Exception]:
        names = sorted({one.client for one in given})
        with self._database.recording() as connection:
            connection.execute(text("SET LOCAL synchronous_commit = off"))
            if time.monotonic() > self._forgotten_at + FORGET_SECONDS:
                self._forgotten_at = time.monotonic()
                self._forget(connection, given[-1].now - WINDOWS * self._seconds)
            new = _insert(connection, given)
            # Read after the rows were added: what another worker deletes meanwhile has raised these.
            floors = _values(connection, select(FLOORS).where(FLOORS.c.client.in_([*names, EVERYBODY])))
            counts = select(SEEN.c.client, func.count()).where(SEEN.c.client.in_(names)).group_by(SEEN.c.client)
            held = _values(connection, counts)
        return [self._outcome(one, new, floors, held) for one in given]

    def _forget(self, connection: Connection, old: float) -> None:
        """Deletes nonces before a time.

        One worker does so at a time: two would wait for each other's rows.
        """
        if connection.scalar(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": MAKING}):
            connection.execute(RAISED, {"old": old})
            connection.execute(text("DELETE FROM nonces_seen WHERE created < :old"), {"old": old})

    def _outcome(
        self, one: _Given, new: set[tuple[str, str]], floors: dict[str, float], held: dict[str, float]
    ) -> bool | Exception:
        floor = max((floors[name] for name in (one.client, EVERYBODY) if name in floors), default=None)
        if floor is not None and one.created <= floor:
            return ClockError(describe_forgotten(floor, one.created))
        if held.get(one.client, 0) > MOST:
            return UnavailableError(describe_too_many(self._seconds))
        if (one.client, one.nonce) not in new:
            return False
        new.remove((one.client, one.nonce))  # of two at once only the first
        return True


def _insert(connection: Connection, given: Sequence[_Given]) -> set[tuple[str, str]]:
    """Adds the nonces; returns those that are new.

    All workers add them in one order: two that add the same in two orders would wait for each other.
    """
    ordered = sorted(given, key=lambda one: (one.client, one.nonce))
    values = [{"client": one.client, "nonce": one.nonce, "created": one.created} for one in ordered]
    added = postgresql.insert(SEEN).values(values)
    rows = connection.execute(added.on_conflict_do_nothing().returning(SEEN.c.client, SEEN.c.nonce))
    return {(client, nonce) for client, nonce in rows}


def _values(connection: Connection, query: Select[Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in connection.execute(query)}
