"""Rows of joined clients, quarantines and counts of refused updates."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from sqlalchemy import Connection, delete, insert, select, update

from aggregator_service.storage.database import Database, insert_or_update
from aggregator_service.storage.records import JoinedClient, Quarantine
from aggregator_service.storage.tables import CLIENTS, QUARANTINES, REFUSALS
from shared.method.declaration import Counts, Declaration

ACTIVE = QUARANTINES.c.lifted_at.is_(None)


def add_client(database: Database, client: JoinedClient, *, declaration: Declaration) -> None:
    """Adds a new client, or updates the counts of a known one."""
    counts = client.counts.model_dump() if client.counts else None
    row = asdict(client) | {"counts": counts, "declaration": declaration.model_dump(mode="json")}
    with database.writing() as connection:
        joined = insert_or_update(connection, CLIENTS).values(row)
        connection.execute(joined.on_conflict_do_update(index_elements=["name"], set_={"counts": counts}))


def joined_clients(database: Database, name: str | None = None) -> dict[str, JoinedClient]:
    """Returns all clients of the federation by name, or the one of this name."""
    chosen = select(CLIENTS) if name is None else select(CLIENTS).where(CLIENTS.c.name == name)
    with database.reading() as connection:
        rows = connection.execute(chosen).all()
    return {row.name: JoinedClient(row.name, row.counts and Counts(**row.counts), row.joined_at) for row in rows}


def active_quarantines(database: Database) -> dict[str, Quarantine]:
    """Returns the current quarantines by client."""
    with database.reading() as connection:
        rows = connection.execute(select(QUARANTINES).where(ACTIVE)).all()
    return {row.client: Quarantine(row.client, row.cause, row.reason, row.since, row.run, row.round) for row in rows}


def quarantine_times(connection: Connection) -> dict[str, list[tuple[float, float | None]]]:
    """Returns the begin and end of every quarantine by client; None while it lasts."""
    times: dict[str, list[tuple[float, float | None]]] = {}
    for row in connection.execute(select(QUARANTINES)):
        times.setdefault(row.client, []).append((row.since, row.lifted_at))
    return times


def impose_quarantines(connection: Connection, *, entries: Collection[Quarantine]) -> None:
    """Adds quarantines."""
    for entry in entries:
        connection.execute(insert(QUARANTINES).values(asdict(entry)))


def lift_quarantine(connection: Connection, *, client: str, now: float) -> None:
    """Ends a client's quarantine and resets its refusal counts."""
    connection.execute(update(QUARANTINES).where(ACTIVE & (QUARANTINES.c.client == client)).values(lifted_at=now))
    connection.execute(delete(REFUSALS).where(REFUSALS.c.client == client))


def count_refusal(database: Database, run: str, *, client: str) -> int:
    """Counts one more refused update of a client in a run; returns the new count."""
    with database.writing() as connection:
        first = insert_or_update(connection, REFUSALS).values(run=run, client=client, refused=1)
        counted = first.on_conflict_do_update(
            index_elements=["run", "client"], set_={"refused": REFUSALS.c.refused + 1}
        )
        return int(connection.execute(counted.returning(REFUSALS.c.refused)).scalar_one())


def refusal_counts(database: Database, run: str) -> dict[str, int]:
    """Returns the number of refused updates in a run by client."""
    with database.reading() as connection:
        rows = connection.execute(select(REFUSALS).where(REFUSALS.c.run == run))
        return {row.client: row.refused for row in rows}
