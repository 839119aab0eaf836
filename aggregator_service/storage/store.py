"""Transitions -> committed rows: each function is one transaction, durable before anybody is answered."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from sqlalchemy import ColumnElement, Connection, Table, delete, func, select, update
from sqlalchemy.dialects.sqlite import insert

from aggregator_service.rounds.run import Run
from aggregator_service.storage.anchors import Anchor
from aggregator_service.storage.database import Database
from aggregator_service.storage.records import Client, HeldState, HeldUpdate
from aggregator_service.storage.tables import (
    ANCHORS,
    CLIENTS,
    ENROLMENTS,
    FEDERATION,
    LOSSES,
    ROUNDS,
    RUNS,
    SECURE_MESSAGES,
    SECURE_ROUNDS,
    STATES,
    SUMS,
    UPDATES,
)
from shared.method.declaration import Declaration
from shared.protocol.secure.messages import FromClient
from shared.protocol.secure.server import Phase, SecureRound


def add_client(database: Database, client: Client, *, declaration: Declaration) -> None:
    """A new client; or new counts of a known one."""
    counts = client.counts.model_dump() if client.counts else None
    row = asdict(client) | {"counts": counts, "declaration": declaration.model_dump(mode="json")}
    with database.writing() as connection:
        connection.execute(insert(CLIENTS).values(row).on_conflict_do_update(["name"], set_={"counts": counts}))


def save_run(database: Database, run: Run, *, sequence: int) -> None:
    with database.writing() as connection:
        write_run(connection, run, sequence)


def enrol(database: Database, run: Run, *, clients: Collection[str], sequence: int) -> None:
    """A run, new or changed by those who join it."""
    since = max(1, run.round)
    with database.writing() as connection:
        write_run(connection, run, sequence)
        for client in sorted(clients):
            row = {"run": run.name, "client": client, "since_round": since}
            connection.execute(insert(ENROLMENTS).values(row).on_conflict_do_nothing())


def add_update(database: Database, run: Run, *, held: HeldUpdate, sequence: int) -> None:
    """An update together with what it brought about in its run."""
    row = asdict(held.receipt) | {"scalars": dict(held.scalars), "blob": held.blob}
    with database.writing() as connection:
        connection.execute(insert(UPDATES).values(row))
        write_run(connection, run, sequence)


def add_masked(database: Database, run: Run, *, held: HeldUpdate, header: FromClient, sequence: int) -> None:
    """A masked vector and its header together with what they brought about."""
    row = asdict(held.receipt) | {"scalars": dict(held.scalars), "blob": held.blob}
    with database.writing() as connection:
        connection.execute(insert(UPDATES).values(row))
        _write_message(connection, "masked", header)
        write_run(connection, run, sequence)


def add_message(database: Database, run: Run, *, phase: Phase, message: FromClient, sequence: int) -> None:
    """A message of a secure round together with what it brought about."""
    with database.writing() as connection:
        _write_message(connection, phase, message)
        write_run(connection, run, sequence)


def _write_message(connection: Connection, phase: Phase, message: FromClient) -> None:
    row = {"run": message.run, "round": message.round, "phase": phase, "client": message.client}
    connection.execute(insert(SECURE_MESSAGES).values(row | {"message": message.model_dump(mode="json")}))


def drop_masked(database: Database, run: str, *, last: int) -> list[str]:
    """Forget the masked vectors of all rounds up to `last`, whose sum is stored; returns the files that may go."""
    with database.writing() as connection:
        return _forget(connection, UPDATES, (UPDATES.c.run != run) | (UPDATES.c.round <= last))


def lose_updates(database: Database, run: Run, *, lost: Collection[HeldUpdate], found_at: float, sequence: int) -> None:
    """Damaged updates out of the round, on record, together with what follows for the run."""
    names = [one.receipt.client for one in lost]
    theirs = (UPDATES.c.run == run.name) & (UPDATES.c.round == run.round) & UPDATES.c.client.in_(names)
    with database.writing() as connection:
        connection.execute(delete(UPDATES).where(theirs))
        for one in lost:
            row = {"run": run.name, "round": run.round, "client": one.receipt.client, "digest": one.receipt.digest}
            connection.execute(insert(LOSSES).values(row | {"found_at": found_at}).on_conflict_do_nothing())
        write_run(connection, run, sequence)


def add_state(database: Database, run: Run, *, state: HeldState, sequence: int) -> None:
    """The state after a round together with what follows: the next round, or the end."""
    with database.writing() as connection:
        connection.execute(insert(STATES).values(asdict(state)))
        write_run(connection, run, sequence)


def add_anchor(database: Database, run: str, *, number: int, anchor: Anchor) -> None:
    size = None if anchor.size is None else anchor.size.model_dump()
    row = {"run": run, "round": number, "kernel": list(anchor.kernel), "source": anchor.source, "size": size}
    with database.writing() as connection:
        connection.execute(insert(ANCHORS).values(row).on_conflict_do_nothing())


def drop_before(database: Database, run: str, *, oldest: int) -> list[str]:
    """Forget the blobs that serve no round from `oldest` of `run` on; returns the files that may go.

    What stays: each client's last update up to `oldest`, every later one, and the states from `oldest` on.
    """
    others = UPDATES.alias()
    served = (others.c.run == run) & (others.c.client == UPDATES.c.client) & (others.c.round <= oldest)
    last = select(func.max(others.c.round)).where(served).scalar_subquery()
    with database.writing() as connection:
        updates = _forget(connection, UPDATES, (UPDATES.c.run != run) | (UPDATES.c.round < last))
        return updates + _forget(connection, STATES, (STATES.c.run != run) | (STATES.c.round < oldest))


def _forget(connection: Connection, table: Table, old: ColumnElement[bool]) -> list[str]:
    there = old & table.c.blob.is_not(None)
    names = list(connection.scalars(select(table.c.blob).where(there)))
    if names:
        connection.execute(update(table).where(there).values(blob=None))
    return names


def write_run(connection: Connection, run: Run, sequence: int) -> None:
    """A run as it stands, within the caller's transaction."""
    pledge = None if run.pledge is None else run.pledge.model_dump(mode="json")
    row = {"deadline": run.deadline, "phase": run.phase, "round": run.round, "reason": run.reason, "pledge": pledge}
    first = {
        "number": int(run.name.removeprefix("run-")),
        "name": run.name,
        "request": run.request.model_dump(mode="json"),
        "started_at": run.started_at,
    }
    connection.execute(insert(RUNS).values(first | row).on_conflict_do_update(["number"], set_=row))
    connection.execute(update(FEDERATION).values(sequence=sequence))
    if run.round:
        _write_round(connection, run)
    if run.pledge is not None:
        _forget_exchanges(connection, run)
    if run.exchange is not None:
        _write_exchange(connection, run.exchange)


def _forget_exchanges(connection: Connection, run: Run) -> None:
    """Messages of rounds that are over: shares in them restore secrets that nobody needs any more."""
    for table in (SECURE_MESSAGES, SECURE_ROUNDS):
        here = (table.c.run == run.name) & (table.c.round == run.round)
        connection.execute(delete(table).where(~here) if run.exchange is not None else delete(table))


def _write_exchange(connection: Connection, exchange: SecureRound) -> None:
    terms = exchange.terms
    row = {"run": terms.run, "round": terms.round, "phase": exchange.phase, "terms": terms.model_dump(mode="json")}
    statement = insert(SECURE_ROUNDS).values(row)
    connection.execute(statement.on_conflict_do_update(["run", "round"], set_={"phase": exchange.phase}))
    if exchange.phase in ("consents", "answers"):
        _write_sum(connection, exchange)


def _write_sum(connection: Connection, exchange: SecureRound) -> None:
    """Before any client has agreed to it: what comes of these members may be known from now on."""
    common = exchange.terms.common
    row = {"start": common.start, "method": common.method, "seed": common.seed}
    held = row | {"run": exchange.terms.run, "members": list(exchange.survivors)}
    connection.execute(insert(SUMS).values(held).on_conflict_do_nothing())


def _write_round(connection: Connection, run: Run) -> None:
    # A finished run's last round was aggregated; "finished" is said of runs.
    changed = {"phase": "aggregated" if run.phase == "finished" else run.phase, "closed_at": run.closed_at}
    row = {"run": run.name, "number": run.round, "opened_at": run.opened_at}
    statement = insert(ROUNDS).values(row | changed)
    connection.execute(statement.on_conflict_do_update(["run", "number"], set_=changed))
