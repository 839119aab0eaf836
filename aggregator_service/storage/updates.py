"""Accepted updates and the states after rounds -> rows that name their files; which files retention may delete."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Table, delete, func, insert, select, update

from aggregator_service.storage.database import Database
from aggregator_service.storage.rows import Receipt, StoredState, StoredUpdate
from aggregator_service.storage.tables import STATES, UPDATES
from shared.errors import NotFoundError


def add_update(connection: Connection, *, stored: StoredUpdate) -> None:
    """An accepted update, or a masked vector."""
    row = asdict(stored.receipt) | {"scalars": dict(stored.scalars), "blob": stored.blob}
    connection.execute(insert(UPDATES).values(row))


def delete_updates(connection: Connection, *, run: str, number: int, clients: Collection[str]) -> None:
    """Take the updates of these clients out of a round. Their files stay until the next start."""
    theirs = (UPDATES.c.run == run) & (UPDATES.c.round == number) & UPDATES.c.client.in_(clients)
    connection.execute(delete(UPDATES).where(theirs))


def add_state(connection: Connection, *, state: StoredState) -> None:
    """The state after a round."""
    connection.execute(insert(STATES).values(asdict(state)))


def stored_update(database: Database, run: str, *, number: int, client: str) -> StoredUpdate | None:
    """The client's update of exactly this round."""
    last = last_update(database, run, number=number, client=client)
    return last if last is not None and last.receipt.round == number else None


def last_update(database: Database, run: str, *, number: int, client: str) -> StoredUpdate | None:
    """The client's last accepted update in rounds up to `number`."""
    mine = (UPDATES.c.run == run) & (UPDATES.c.client == client) & (UPDATES.c.round <= number)
    with database.reading() as connection:
        row = connection.execute(select(UPDATES).where(mine).order_by(UPDATES.c.round.desc()).limit(1)).first()
    return None if row is None else _update(row)


def stored_updates(connection: Connection, run: str, *, number: int | None = None) -> list[StoredUpdate]:
    """The updates of a round, or of all rounds of a run, in the order of client names."""
    chosen = UPDATES.c.run == run if number is None else (UPDATES.c.run == run) & (UPDATES.c.round == number)
    return [_update(row) for row in connection.execute(select(UPDATES).where(chosen).order_by(UPDATES.c.client))]


def stored_state(database: Database, run: str, *, number: int) -> StoredState:
    """The state after a round; NotFoundError for a round that is not aggregated."""
    query = select(STATES).where((STATES.c.run == run) & (STATES.c.round == number))
    with database.reading() as connection:
        row = connection.execute(query).first()
    if row is None:
        raise NotFoundError(f"there is no aggregated round {number} of {run}")
    return StoredState(**row._mapping)


def stored_states(connection: Connection, run: str) -> list[StoredState]:
    """The states after all aggregated rounds of a run, in their order."""
    rows = connection.execute(select(STATES).where(STATES.c.run == run).order_by(STATES.c.round))
    return [StoredState(**row._mapping) for row in rows]


def blob_names(database: Database) -> set[str]:
    """Every file that a row names."""
    with database.reading() as connection:
        return {name for table in (UPDATES, STATES) for name in connection.scalars(select(table.c.blob)) if name}


def drop_masked(database: Database, run: str, *, last: int) -> list[str]:
    """Forget the masked vectors of all rounds up to `last`, whose sum is stored; returns the files that may go."""
    with database.writing() as connection:
        return _drop_blobs(connection, UPDATES, (UPDATES.c.run != run) | (UPDATES.c.round <= last))


def drop_before(database: Database, run: str, *, oldest: int) -> list[str]:
    """Forget the blobs that serve no round from `oldest` of `run` on; returns the files that may go.

    What stays: each client's last update up to `oldest`, every later one, and the states from `oldest` on.
    """
    others = UPDATES.alias()
    served = (others.c.run == run) & (others.c.client == UPDATES.c.client) & (others.c.round <= oldest)
    last = select(func.max(others.c.round)).where(served).scalar_subquery()
    with database.writing() as connection:
        updates = _drop_blobs(connection, UPDATES, (UPDATES.c.run != run) | (UPDATES.c.round < last))
        return updates + _drop_blobs(connection, STATES, (STATES.c.run != run) | (STATES.c.round < oldest))


def _drop_blobs(connection: Connection, table: Table, old: ColumnElement[bool]) -> list[str]:
    with_file = old & table.c.blob.is_not(None)
    names = list(connection.scalars(select(table.c.blob).where(with_file)))
    if names:
        connection.execute(update(table).where(with_file).values(blob=None))
    return names


def _update(row: Row[Any]) -> StoredUpdate:
    receipt = Receipt(row.run, row.round, row.client, row.digest, row.size, row.received_at)
    return StoredUpdate(receipt, row.scalars, row.blob)
