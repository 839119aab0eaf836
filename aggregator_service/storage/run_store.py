"""Rows of runs, updates, states and secure messages.

`rounds.run` writes and reads the JSON document of a run; here it is text under a run's name. Each commit stores it
with all that belongs to it in one transaction. Updates and states are rows that name their files; retention decides
which of these may go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Row,
    Table,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from aggregator_service.storage.database import Database, insert_of_dialect, insert_or_update
from aggregator_service.storage.records import Anchor, Receipt, StoredState, StoredUpdate, UncoveredSum
from aggregator_service.storage.tables import ANCHORS, FEDERATION, RUNS, SECURE_MESSAGES, STATES, SUMS, UPDATES
from shared.errors import NotFoundError
from shared.method.declaration import Counts
from shared.protocol.secure.messages import ClientMessage

Write = Callable[[Connection], None]


def commit_run(database: Database, name: str, document: str, *, sequence: int, writes: Iterable[Write] = ()) -> None:
    """Stores a run's document with the writes that belong to it, in one transaction."""
    row = {"number": int(name.removeprefix("run-")), "name": name, "document": document}
    with database.writing() as connection:
        connection.execute(_put_run(connection.dialect.name), row)
        connection.execute(SET_SEQUENCE, {"now": sequence})
        for write in writes:
            write(connection)


NAMED = tuple(column for column in UPDATES.c if column.name != "parts")  # those are long, and only a sum needs them
LAST_UPDATE = (
    select(*NAMED)
    .where(UPDATES.c.run == bindparam("of_run"))
    .where(UPDATES.c.client == bindparam("of_client"))
    .where(UPDATES.c.round <= bindparam("last"))
    .order_by(UPDATES.c.round.desc())
    .limit(1)
)
SET_SEQUENCE = update(FEDERATION).values(sequence=bindparam("now"))  # statements are built once: it takes longest
ADD_UPDATES = insert(UPDATES)
ADD_MESSAGE, DELETE_MESSAGES = insert(SECURE_MESSAGES), delete(SECURE_MESSAGES)
DELETE_OTHER_MESSAGES = DELETE_MESSAGES.where(
    ~((SECURE_MESSAGES.c.run == bindparam("kept")) & (SECURE_MESSAGES.c.round == bindparam("number")))
)


@cache
def _put_run(dialect: str) -> Executable:
    stored = insert_of_dialect(dialect, RUNS)
    return stored.on_conflict_do_update(index_elements=["number"], set_={"document": stored.excluded.document})


@cache
def _put_sum(dialect: str) -> Executable:
    return insert_of_dialect(dialect, SUMS).on_conflict_do_nothing()


def commit_writes(database: Database, writes: Iterable[Write]) -> None:
    """Stores writes that belong to no run, in one transaction."""
    with database.writing() as connection:
        for write in writes:
            write(connection)


def stored_sequence(connection: Connection) -> int:
    """Returns the sequence number of visible changes."""
    return int(connection.execute(select(FEDERATION.c.sequence)).scalar_one())


def run_document(connection: Connection, name: str | None = None) -> str | None:
    """Returns the document of the named run, or of the newest.

    None if there is none.
    """
    newest = select(RUNS.c.document).order_by(RUNS.c.number.desc()).limit(1)
    return connection.scalar(newest if name is None else newest.where(RUNS.c.name == name))


def run_documents(database: Database) -> list[str]:
    """Returns the documents of all runs, oldest first."""
    with database.reading() as connection:
        return list(connection.scalars(select(RUNS.c.document).order_by(RUNS.c.number)))


def secure_messages(connection: Connection, run: str, *, number: int) -> Mapping[str, Mapping[str, Any]]:
    """Returns the messages of a secure round as phase to client to message."""
    theirs = (SECURE_MESSAGES.c.run == run) & (SECURE_MESSAGES.c.round == number)
    by_phase: dict[str, dict[str, Any]] = {}
    for row in connection.execute(select(SECURE_MESSAGES).where(theirs)):
        by_phase.setdefault(row.phase, {})[row.client] = row.message
    return by_phase


def add_message(connection: Connection, *, phase: str, message: ClientMessage) -> None:
    """Adds a client's message in a phase of a secure round."""
    row = {"run": message.run, "round": message.round, "phase": phase, "client": message.client}
    connection.execute(ADD_MESSAGE, row | {"message": message.model_dump(mode="json")})


def delete_messages(connection: Connection, *, kept_round: tuple[str, int] | None) -> None:
    """Deletes the messages of all rounds but one: their shares restore secrets."""
    if kept_round is None:
        connection.execute(DELETE_MESSAGES)
    else:
        connection.execute(DELETE_OTHER_MESSAGES, dict(zip(("kept", "number"), kept_round, strict=True)))


def add_sum(connection: Connection, *, uncovered: UncoveredSum) -> None:
    """Records a sum before any client agrees to it.

    From now on it may be known.
    """
    row = asdict(uncovered) | {"members": list(uncovered.members)}
    connection.execute(_put_sum(connection.dialect.name), row)


def earlier_sum_members(database: Database, run: str, *, start: str) -> tuple[str, ...] | None:
    """Returns the members of the sum that another run opened from these parameters."""
    with database.reading() as connection:
        members = connection.scalar(select(SUMS.c.members).where((SUMS.c.start == start) & (SUMS.c.run != run)))
    return None if members is None else tuple(members)


def stored_anchor(database: Database, run: str, *, number: int) -> Anchor | None:
    """Returns the anchor of a round; None before it is drawn."""
    query = select(ANCHORS).where((ANCHORS.c.run == run) & (ANCHORS.c.round == number))
    with database.reading() as connection:
        row = connection.execute(query).first()
    if row is None:
        return None
    return Anchor(tuple(row.kernel), row.source, None if row.size is None else Counts(**row.size))


def add_anchor(database: Database, run: str, *, number: int, anchor: Anchor) -> None:
    """Stores an anchor, unless one is stored already."""
    size = None if anchor.size is None else anchor.size.model_dump()
    row = {"run": run, "round": number, "kernel": list(anchor.kernel), "source": anchor.source, "size": size}
    with database.recording() as connection:
        connection.execute(insert_or_update(connection, ANCHORS).values(row).on_conflict_do_nothing())


def add_updates(connection: Connection, *, stored: Sequence[StoredUpdate]) -> None:
    """Adds accepted updates, or masked vectors."""
    rows = [{**vars(one.receipt), "scalars": dict(one.scalars), "blob": one.blob, "parts": one.parts} for one in stored]
    connection.execute(ADD_UPDATES, rows)


def delete_updates(connection: Connection, *, run: str, number: int, clients: Collection[str]) -> None:
    """Deletes the updates of some clients in a round.

    Their files stay until the next start.
    """
    theirs = (UPDATES.c.run == run) & (UPDATES.c.round == number) & UPDATES.c.client.in_(clients)
    connection.execute(delete(UPDATES).where(theirs))


def add_state(connection: Connection, *, state: StoredState) -> None:
    """Adds the state after a round."""
    connection.execute(insert(STATES).values(asdict(state)))


def stored_update(database: Database, run: str, *, number: int, client: str) -> StoredUpdate | None:
    """Returns the client's update of this round."""
    last = last_update(database, run, number=number, client=client)
    return last if last is not None and last.receipt.round == number else None


def last_update(database: Database, run: str, *, number: int, client: str) -> StoredUpdate | None:
    """Returns the client's last accepted update in rounds up to `number`."""
    with database.reading() as connection:
        row = connection.execute(LAST_UPDATE, {"of_run": run, "of_client": client, "last": number}).first()
    return None if row is None else _update(row)


def stored_updates(
    connection: Connection, run: str, *, number: int | None = None, with_parts: bool = False
) -> list[StoredUpdate]:
    """Returns the updates of a round or run, in the order of client names."""
    chosen = UPDATES.c.run == run if number is None else (UPDATES.c.run == run) & (UPDATES.c.round == number)
    columns = UPDATES.c if with_parts else NAMED
    return [_update(row) for row in connection.execute(select(*columns).where(chosen).order_by(UPDATES.c.client))]


def count_updates(connection: Connection, run: str, *, number: int) -> int:
    """Returns the number of updates of a round."""
    chosen = (UPDATES.c.run == run) & (UPDATES.c.round == number)
    return int(connection.execute(select(func.count()).select_from(UPDATES).where(chosen)).scalar_one())


def stored_state(database: Database, run: str, *, number: int) -> StoredState:
    """Returns the state after a round; raises NotFoundError for a round that is not aggregated."""
    query = select(STATES).where((STATES.c.run == run) & (STATES.c.round == number))
    with database.reading() as connection:
        row = connection.execute(query).first()
    if row is None:
        raise NotFoundError(f"there is no aggregated round {number} of {run}")
    return StoredState(**row._mapping)


def stored_states(connection: Connection, run: str) -> list[StoredState]:
    """Returns the states after all aggregated rounds of a run, in order."""
    rows = connection.execute(select(STATES).where(STATES.c.run == run).order_by(STATES.c.round))
    return [StoredState(**row._mapping) for row in rows]


def blob_names(database: Database) -> set[str]:
    """Returns the names of all files that a row refers to."""
    with database.reading() as connection:
        return {name for table in (UPDATES, STATES) for name in connection.scalars(select(table.c.blob)) if name}


def delete_masked(database: Database, run: str, *, last: int) -> list[str]:
    """Deletes masked vectors of rounds up to `last`, and of other runs; returns their files.

    The sums of these rounds are stored.
    """
    with database.writing() as connection:
        return _delete_blobs(connection, UPDATES, (UPDATES.c.run != run) | (UPDATES.c.round <= last))


def delete_old_blobs(database: Database, run: str, *, oldest: int, kept: Collection[str] = ()) -> list[str]:
    """Deletes blobs that no round from `oldest` of `run` needs; returns their files.

    Each client's last update up to `oldest` stays, every later one, the states from `oldest` on, and the states of
    the runs `kept`, whose sums later runs use.
    """
    others = UPDATES.alias()
    served = (others.c.run == run) & (others.c.client == UPDATES.c.client) & (others.c.round <= oldest)
    last = select(func.max(others.c.round)).where(served).scalar_subquery()
    with database.writing() as connection:
        updates = _delete_blobs(connection, UPDATES, (UPDATES.c.run != run) | (UPDATES.c.round < last))
        old = (STATES.c.run != run) | (STATES.c.round < oldest)
        if others_kept := sorted(set(kept) - {run}):
            old &= STATES.c.run.not_in(others_kept)
        return updates + _delete_blobs(connection, STATES, old)


def _delete_blobs(connection: Connection, table: Table, old: ColumnElement[bool]) -> list[str]:
    with_file = old & table.c.blob.is_not(None)
    names = list(connection.scalars(select(table.c.blob).where(with_file)))
    if names:
        gone = ("blob", "parts") if table is UPDATES else ("blob",)
        connection.execute(update(table).where(with_file).values(dict.fromkeys(gone)))
    return names


def _update(row: Row[Any]) -> StoredUpdate:
    receipt = Receipt(row.run, row.round, row.client, row.digest, row.size, row.received_at)
    return StoredUpdate(receipt, row.scalars, row.blob, getattr(row, "parts", None))
