"""Nonces of signed requests in a shared database, each accepted once by all workers.

A worker adds the nonces of all requests that came while its last transaction ran in one more. As with the nonces of
one process, a commit does not wait for the disk, and the newest deleted time of each client stays for good.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Column, Connection, Float, MetaData, Table, insert, inspect, text

from aggregator_service.storage.database import Database
from aggregator_service.storage.engines.pipelined_session import Statement
from aggregator_service.storage.nonces import MOST, describe_forgotten, describe_too_many
from aggregator_service.storage.tables import TEXT
from aggregator_service.storage.write_batches import WriteBatches, in_own_thread
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
ADDED = (
    "INSERT INTO nonces_seen (client, nonce, created)"
    " SELECT client, nonce, created"
    " FROM json_to_recordset(%(given)s::json) AS given(client text, nonce text, created float8)"
    " ON CONFLICT DO NOTHING RETURNING client, nonce"
)
# Floors are read after the rows were added: what another worker deletes meanwhile has raised these.
SHARED_STATE = (
    "SELECT number, (SELECT coalesce(max(version), 0) FROM registered_keys),"
    " (SELECT json_object_agg(client, created) FROM nonces_floors"
    " WHERE client IN (SELECT json_array_elements_text(%(names)s::json))),"
    " (SELECT json_object_agg(client, held) FROM (SELECT client, count(*) AS held FROM nonces_seen"
    " WHERE client IN (SELECT json_array_elements_text(%(full)s::json)) GROUP BY client) AS counted) FROM turns"
)
GATHER_SECONDS = 0.02  # in which the nonces of a busy worker are gathered
COUNTED_AFTER = 100  # nonces of one client at one worker: so many more than MOST are accepted for each worker
RAISED = text(
    "INSERT INTO nonces_floors SELECT client, max(created) FROM nonces_seen WHERE created < :old GROUP BY client"
    " ON CONFLICT (client) DO UPDATE SET created = greatest(nonces_floors.created, excluded.created)"
)


@dataclass(frozen=True)
class GivenNonce:
    """Nonce of a client's request, signed at `created`, which came at `now`."""

    client: str
    nonce: str
    created: float
    now: float


class SharedNonces:
    """Nonces of all workers of a federation.

    had_clients: whether clients may have called before these tables were made, whose nonces are not in them. follow:
    is called with the number of the shared state, and the version of the registered keys, before a request goes on, so
    that it finds no older ones.
    """

    def __init__(
        self,
        database: Database,
        *,
        seconds: float,
        had_clients: bool,
        follow: Callable[[int, int], Awaitable[None]] | None = None,
    ) -> None:
        assert database.workers is not None
        self._database, self._workers, self._seconds = database, database.workers, seconds
        self._follow = follow
        self._session = database.workers.open_session("SET synchronous_commit = off")
        self._batches: WriteBatches[GivenNonce, tuple[bool, int, int]] = WriteBatches(
            in_own_thread(self._store), gather_seconds=GATHER_SECONDS
        )
        self._room: dict[str, int] = {}  # nonces of each client before all that are stored are counted again
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
        new, number, version = await self._batches.add(GivenNonce(client, nonce, created, now))
        if self._follow is not None:
            await self._follow(number, version)
        return new

    def _store(self, given: Sequence[GivenNonce]) -> list[tuple[bool, int, int] | Exception]:
        if time.monotonic() > self._forgotten_at + FORGET_SECONDS:
            self._forgotten_at = time.monotonic()
            with self._database.recording() as connection:
                self._forget(connection, given[-1].now - WINDOWS * self._seconds)
        # All workers add them in one order: two that add the same in two orders would wait for each other.
        ordered = sorted(given, key=lambda one: (one.client, one.nonce))
        rows = [{"client": one.client, "nonce": one.nonce, "created": one.created} for one in ordered]
        names = sorted({one.client for one in given})
        full = [name for name in names if self._room.get(name, 0) <= 0]
        stated = {"names": json.dumps([*names, EVERYBODY]), "full": json.dumps(full)}
        statements: list[Statement] = [(ADDED, {"given": json.dumps(rows)}), (SHARED_STATE, stated)]
        with self._database.disk.translate_errors("a database that can be written"):
            added, [(number, version, floors, counts)] = self._workers.run_transaction(self._session, statements)
        held: dict[str, int] = counts or {}
        self._room |= {name: min(COUNTED_AFTER, MOST + 1 - held.get(name, 0)) for name in full}
        outcome = partial(self._outcome, new=set(added), floors=floors or {}, state=(number, version))
        return [outcome(one) for one in given]

    def _forget(self, connection: Connection, old: float) -> None:
        """Deletes nonces before a time.

        One worker does so at a time: two would wait for each other's rows.
        """
        if connection.scalar(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": MAKING}):
            connection.execute(RAISED, {"old": old})
            connection.execute(text("DELETE FROM nonces_seen WHERE created < :old"), {"old": old})

    def _outcome(
        self, one: GivenNonce, new: set[tuple[str, str]], floors: dict[str, float], state: tuple[int, int]
    ) -> tuple[bool, int, int] | Exception:
        floor = max((floors[name] for name in (one.client, EVERYBODY) if name in floors), default=None)
        if floor is not None and one.created <= floor:
            return ClockError(describe_forgotten(floor, one.created))
        if self._room[one.client] <= 0:
            return UnavailableError(describe_too_many(self._seconds))
        if (one.client, one.nonce) not in new:
            return False, *state
        new.remove((one.client, one.nonce))  # of two at once only the first
        self._room[one.client] -= 1
        return True, *state
