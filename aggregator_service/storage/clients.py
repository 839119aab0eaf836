"""Who has joined, who is shut out since when and why, and how often a run has refused a client."""

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
    """A new client; or new counts of a known one."""
    counts = client.counts.model_dump() if client.counts else None
    row = asdict(client) | {"counts": counts, "declaration": declaration.model_dump(mode="json")}
    with database.writing() as connection:
        joined = insert_or_update(connection, CLIENTS).values(row)
        connection.execute(joined.on_conflict_do_update(index_elements=["name"], set_={"counts": counts}))


def joined_clients(database: Database) -> dict[str, JoinedClient]:
    """All clients of the federation by name."""
    with database.reading() as connection:
        rows = connection.execute(select(CLIENTS)).all()
    return {row.name: JoinedClient(row.name, row.counts and Counts(**row.counts), row.joined_at) for row in rows}


def active_quarantines(database: Database) -> dict[str, Quarantine]:
    """All that are shut out now, by client."""
    with database.reading() as connection:
        rows = connection.execute(select(QUARANTINES).where(ACTIVE)).all()
    return {row.client: Quarantine(row.client, row.cause, row.reason, row.since, row.run, row.round) for row in rows}


def quarantine_times(connection: Connection) -> dict[str, list[tuple[float, float | None]]]:
    """When each client was shut out and let in again, None while it is shut out; the rows of lifted ones stay."""
    times: dict[str, list[tuple[float, float | None]]] = {}
    for row in connection.execute(select(QUARANTINES)):
        times.setdefault(row.client, []).append((row.since, row.lifted_at))
    return times


def impose_quarantines(connection: Connection, *, entries: Collection[Quarantine]) -> None:
    """Shut clients out."""
    for entry in entries:
        connection.execute(insert(QUARANTINES).values(asdict(entry)))


def lift_quarantine(connection: Connection, *, client: str, now: float) -> None:
    """Let a client in again; what was refused of it before is forgotten."""
    connection.execute(update(QUARANTINES).where(ACTIVE & (QUARANTINES.c.client == client)).values(lifted_at=now))
    connection.execute(delete(REFUSALS).where(REFUSALS.c.client == client))


def count_refusal(database: Database, run: str, *, client: str) -> int:
    """One more update of this client was refused in this run -> how many that makes."""
    with database.writing() as connection:
        first = insert_or_update(connection, REFUSALS).values(run=run, client=client, refused=1)
        counted = first.on_conflict_do_update(
            index_elements=["run", "client"], set_={"refused": REFUSALS.c.refused + 1}
        )
        return int(connection.execute(counted.returning(REFUSALS.c.refused)).scalar_one())


def refusal_counts(database: Database, run: str) -> dict[str, int]:
    """How many updates of each client this run has refused, where it has refused any."""
    with database.reading() as connection:
        rows = connection.execute(select(REFUSALS).where(REFUSALS.c.run == run))
        return {row.client: row.refused for row in rows}
