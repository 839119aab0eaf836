"""Rows of the database -> runs, clients, updates and states as the rest of the service knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select

from aggregator_service.rounds.pledge import Pledge
from aggregator_service.rounds.run import Receipt, Run
from aggregator_service.storage.anchors import Anchor
from aggregator_service.storage.database import Database
from aggregator_service.storage.tables import (
    ANCHORS,
    CLIENTS,
    ENROLMENTS,
    FEDERATION,
    LOSSES,
    QUARANTINES,
    ROUNDS,
    RUNS,
    SECURE_MESSAGES,
    SECURE_ROUNDS,
    STATES,
    SUMS,
    UPDATES,
)
from shared.errors import NotFoundError
from shared.method.declaration import Counts
from shared.method.exchanged import Scalars
from shared.protocol.schemas import Cause, RunIn
from shared.protocol.secure.server import SecureRound


@dataclass(frozen=True)
class Client:
    """One that has joined. Whose key its name is, the folder of keys says."""

    name: str
    counts: Counts | None
    joined_at: float


@dataclass(frozen=True)
class HeldUpdate:
    """An accepted update; `blob` is None once retention has deleted its content."""

    receipt: Receipt
    scalars: Scalars
    blob: str | None


@dataclass(frozen=True)
class HeldState:
    """The aggregator's memory after a round."""

    run: str
    round: int
    digest: str
    latest: dict[str, Scalars]
    blob: str | None


def sequence(database: Database) -> int:
    with database.reading() as connection:
        return int(connection.execute(select(FEDERATION.c.sequence)).scalar_one())


def clients(database: Database) -> dict[str, Client]:
    with database.reading() as connection:
        return {row.name: _client(row) for row in connection.execute(select(CLIENTS))}


def run(database: Database, name: str | None = None) -> Run | None:
    """The named run, or the newest."""
    chosen = select(RUNS).order_by(RUNS.c.number.desc()).limit(1)
    with database.reading() as connection:
        row = connection.execute(chosen if name is None else chosen.where(RUNS.c.name == name)).first()
        return None if row is None else _run(connection, row)


def update(database: Database, run: str, *, number: int, client: str) -> HeldUpdate | None:
    """The client's update of exactly this round."""
    held = last_update(database, run, number=number, client=client)
    return held if held is not None and held.receipt.round == number else None


def last_update(database: Database, run: str, *, number: int, client: str) -> HeldUpdate | None:
    """The client's last accepted update in rounds up to `number`."""
    mine = (UPDATES.c.run == run) & (UPDATES.c.client == client) & (UPDATES.c.round <= number)
    with database.reading() as connection:
        row = connection.execute(select(UPDATES).where(mine).order_by(UPDATES.c.round.desc()).limit(1)).first()
    return None if row is None else _update(row)


def updates(database: Database, run: str, *, number: int) -> list[HeldUpdate]:
    """The round's updates in the order of client names."""
    with database.reading() as connection:
        return _updates(connection, run, number)


def state(database: Database, run: str, *, number: int) -> HeldState:
    query = select(STATES).where((STATES.c.run == run) & (STATES.c.round == number))
    with database.reading() as connection:
        row = connection.execute(query).first()
    if row is None:
        raise NotFoundError(f"there is no aggregated round {number} of {run}")
    return HeldState(**row._mapping)


def anchor(database: Database, run: str, *, number: int) -> Anchor | None:
    query = select(ANCHORS).where((ANCHORS.c.run == run) & (ANCHORS.c.round == number))
    with database.reading() as connection:
        row = connection.execute(query).first()
    if row is None:
        return None
    return Anchor(tuple(row.kernel), row.source, None if row.size is None else Counts(**row.size))


def members_summed(database: Database, run: str, *, start: str) -> tuple[str, ...] | None:
    """Whose sum another run has uncovered that began there."""
    with database.reading() as connection:
        found = connection.scalar(select(SUMS.c.members).where((SUMS.c.start == start) & (SUMS.c.run != run)))
    return None if found is None else tuple(found)


def blobs(database: Database) -> set[str]:
    """Every file that a row speaks of."""
    with database.reading() as connection:
        return {name for table in (UPDATES, STATES) for name in connection.scalars(select(table.c.blob)) if name}


def _client(row: Row[Any]) -> Client:
    counts = None if row.counts is None else Counts(**row.counts)
    return Client(row.name, counts, row.joined_at)


def _update(row: Row[Any]) -> HeldUpdate:
    receipt = Receipt(row.run, row.round, row.client, row.digest, row.size, row.received_at)
    return HeldUpdate(receipt, row.scalars, row.blob)


def _updates(connection: Connection, run: str, number: int) -> list[HeldUpdate]:
    query = select(UPDATES).where((UPDATES.c.run == run) & (UPDATES.c.round == number)).order_by(UPDATES.c.client)
    return [_update(row) for row in connection.execute(query)]


def _run(connection: Connection, row: Row[Any]) -> Run:
    enrolled = connection.scalars(select(ENROLMENTS.c.client).where(ENROLMENTS.c.run == row.name))
    current = select(ROUNDS).where((ROUNDS.c.run == row.name) & (ROUNDS.c.number == row.round))
    opened = connection.execute(current).first()
    lost = select(LOSSES.c.client).where((LOSSES.c.run == row.name) & (LOSSES.c.round == row.round))
    return Run(
        name=row.name,
        request=RunIn.model_validate(row.request),
        started_at=row.started_at,
        deadline=row.deadline,
        clients=frozenset(enrolled),
        phase=row.phase,
        round=row.round,
        opened_at=opened.opened_at if opened else 0.0,
        closed_at=opened.closed_at if opened else None,
        reason=row.reason,
        receipts={held.receipt.client: held.receipt for held in _updates(connection, row.name, row.round)},
        lost=frozenset(connection.scalars(lost)),
        quarantined=causes(connection),
        readmitted=_readmitted(connection, opened.opened_at) if opened else frozenset(),
        pledge=None if row.pledge is None else Pledge.model_validate(row.pledge),
        exchange=exchange(connection, row.name, row.round),
    )


def causes(connection: Connection) -> dict[str, Cause]:
    """Who of the federation is shut out now, and why."""
    rows = connection.execute(select(QUARANTINES).where(QUARANTINES.c.lifted_at.is_(None)))
    return {row.client: row.cause for row in rows}


def _readmitted(connection: Connection, since: float) -> frozenset[str]:
    """Who was let in again since then."""
    return frozenset(connection.scalars(select(QUARANTINES.c.client).where(QUARANTINES.c.lifted_at >= since)))


def exchange(connection: Connection, run: str, number: int) -> SecureRound | None:
    """A secure round as it stands; None for an open one, and for one whose mean is stored."""
    here = (SECURE_ROUNDS.c.run == run) & (SECURE_ROUNDS.c.round == number)
    held = connection.execute(select(SECURE_ROUNDS).where(here)).first()
    if held is None:
        return None
    came: dict[str, dict[str, Any]] = {}
    theirs = (SECURE_MESSAGES.c.run == run) & (SECURE_MESSAGES.c.round == number)
    for row in connection.execute(select(SECURE_MESSAGES).where(theirs)):
        came.setdefault(row.phase, {})[row.client] = row.message
    return SecureRound.model_validate({"terms": held.terms, "phase": held.phase, **came})
