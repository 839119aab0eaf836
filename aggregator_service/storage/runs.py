"""Runs as JSON documents, each commit with all that belongs to it in one transaction; anchors and secure messages.

A document is written and read by `rounds.run_document`: here it is text under a run's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, delete, select, update
from sqlalchemy.dialects.sqlite import insert

from aggregator_service.storage.database import Database
from aggregator_service.storage.rows import Anchor, UncoveredSum
from aggregator_service.storage.tables import ANCHORS, FEDERATION, RUNS, SECURE_MESSAGES, SUMS
from shared.method.declaration import Counts
from shared.protocol.secure.messages import FromClient

Write = Callable[[Connection], None]


def commit_run(database: Database, name: str, document: str, *, sequence: int, writes: Iterable[Write] = ()) -> None:
    """Store a run as it stands now, together with what has brought it there or follows from it: one transaction."""
    row = {"number": int(name.removeprefix("run-")), "name": name, "document": document}
    with database.writing() as connection:
        connection.execute(insert(RUNS).values(row).on_conflict_do_update(["number"], set_={"document": document}))
        connection.execute(update(FEDERATION).values(sequence=sequence))
        for write in writes:
            write(connection)


def commit_writes(database: Database, writes: Iterable[Write]) -> None:
    """Store what belongs to no run, in one transaction."""
    with database.writing() as connection:
        for write in writes:
            write(connection)


def stored_sequence(database: Database) -> int:
    """The number of changes that waiting clients had to know."""
    with database.reading() as connection:
        return int(connection.execute(select(FEDERATION.c.sequence)).scalar_one())


def run_document(connection: Connection, name: str | None = None) -> str | None:
    """The document of the named run, or of the newest one; None where there is no such run."""
    newest = select(RUNS.c.document).order_by(RUNS.c.number.desc()).limit(1)
    document: str | None = connection.scalar(newest if name is None else newest.where(RUNS.c.name == name))
    return document


def run_documents(database: Database) -> list[str]:
    """The documents of all runs, oldest first."""
    with database.reading() as connection:
        return list(connection.scalars(select(RUNS.c.document).order_by(RUNS.c.number)))


def secure_messages(connection: Connection, run: str, *, number: int) -> Mapping[str, Mapping[str, Any]]:
    """What the clients have sent in each phase of a secure round: phase -> client -> message."""
    theirs = (SECURE_MESSAGES.c.run == run) & (SECURE_MESSAGES.c.round == number)
    by_phase: dict[str, dict[str, Any]] = {}
    for row in connection.execute(select(SECURE_MESSAGES).where(theirs)):
        by_phase.setdefault(row.phase, {})[row.client] = row.message
    return by_phase


def add_message(connection: Connection, *, phase: str, message: FromClient) -> None:
    """A message of one client in one phase of a secure round."""
    row = {"run": message.run, "round": message.round, "phase": phase, "client": message.client}
    connection.execute(insert(SECURE_MESSAGES).values(row | {"message": message.model_dump(mode="json")}))


def forget_messages(connection: Connection, *, except_of: tuple[str, int] | None) -> None:
    """Delete the messages of all rounds but this one: shares in them restore secrets that nobody needs any more."""
    statement = delete(SECURE_MESSAGES)
    if except_of is not None:
        run, number = except_of
        statement = statement.where(~((SECURE_MESSAGES.c.run == run) & (SECURE_MESSAGES.c.round == number)))
    connection.execute(statement)


def add_sum(connection: Connection, *, uncovered: UncoveredSum) -> None:
    """Before any client has agreed to it: what comes of these members may be known from now on."""
    row = asdict(uncovered) | {"members": list(uncovered.members)}
    connection.execute(insert(SUMS).values(row).on_conflict_do_nothing())


def members_summed(database: Database, run: str, *, start: str) -> tuple[str, ...] | None:
    """The members of the sum that another run than this one has uncovered from these parameters."""
    with database.reading() as connection:
        members = connection.scalar(select(SUMS.c.members).where((SUMS.c.start == start) & (SUMS.c.run != run)))
    return None if members is None else tuple(members)


def stored_anchor(database: Database, run: str, *, number: int) -> Anchor | None:
    """The anchor that was drawn for a round of this run; None before that."""
    query = select(ANCHORS).where((ANCHORS.c.run == run) & (ANCHORS.c.round == number))
    with database.reading() as connection:
        row = connection.execute(query).first()
    if row is None:
        return None
    return Anchor(tuple(row.kernel), row.source, None if row.size is None else Counts(**row.size))


def add_anchor(database: Database, run: str, *, number: int, anchor: Anchor) -> None:
    """Store an anchor, unless one was stored before."""
    size = None if anchor.size is None else anchor.size.model_dump()
    row = {"run": run, "round": number, "kernel": list(anchor.kernel), "source": anchor.source, "size": size}
    with database.writing() as connection:
        connection.execute(insert(ANCHORS).values(row).on_conflict_do_nothing())
