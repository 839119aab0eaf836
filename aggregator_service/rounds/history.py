"""Rows of the database -> the operator's view of a run: who sent what, who is missing, rho and its standing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, select

from aggregator_service.rounds import secure_phases
from aggregator_service.rounds.pledge import Pledge, select_awaited
from aggregator_service.storage import records
from aggregator_service.storage.database import Database
from aggregator_service.storage.tables import ENROLMENTS, QUARANTINES, ROUNDS, RUNS, STATES, UPDATES
from shared.errors import NotFoundError
from shared.method.exchanged import Scalars
from shared.protocol.schemas import ParticipantOut, RoundOut, RunHistoryOut, RunIn, SecureOut
from shared.protocol.secure.server import PHASES, SecureRound
from shared.strategies.lpsfed import similarities


def instant(seconds: float) -> str:
    """Seconds since the epoch as UTC, ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def run_histories(database: Database) -> list[RunHistoryOut]:
    """Every run, oldest first, without its rounds."""
    with database.reading() as connection:
        return [_head(row) for row in connection.execute(select(RUNS).order_by(RUNS.c.number))]


def run_history(database: Database, name: str) -> RunHistoryOut:
    """A run with all its rounds."""
    with database.reading() as connection:
        row = connection.execute(select(RUNS).where(RUNS.c.name == name)).first()
        if row is None:
            raise NotFoundError(f"there is no run {name!r}")
        head = _head(row)
        pledge = None if row.pledge is None else Pledge.model_validate(row.pledge)
        rounds = _rounds(connection, head, pledge)
        enrolled = connection.scalars(select(ENROLMENTS.c.client).where(ENROLMENTS.c.run == name))
        missing = rounds[-1].missing if row.phase == "open" else ()
        return head.model_copy(update={"rounds": rounds, "enrolled": tuple(sorted(enrolled)), "missing": missing})


def _head(row: Row[Any]) -> RunHistoryOut:
    return RunHistoryOut(
        run=row.name,
        phase=row.phase,
        reason=row.reason,
        request=RunIn.model_validate(row.request),
        started_at=instant(row.started_at),
        deadline_at=instant(row.deadline) if row.phase in ("waiting", "open") else None,
    )


def _rounds(connection: Connection, head: RunHistoryOut, pledge: Pledge | None) -> tuple[RoundOut, ...]:
    name, floor = head.run, head.request.method.similarity_floor
    enrolled = connection.execute(select(ENROLMENTS).where(ENROLMENTS.c.run == name)).all()
    since = {row.client: row.since_round for row in enrolled}
    if pledge is not None:
        awaited = select_awaited(pledge, frozenset(since), changing_members=head.request.changing_members)
        since = {client: first for client, first in since.items() if first == 1 or client in awaited}
    sent = _participants(connection, name, _near(connection, name, floor))
    times = _shut_out(connection)
    views = []
    for row in connection.execute(select(ROUNDS).where(ROUNDS.c.run == name).order_by(ROUNDS.c.number)):
        expected = sorted(client for client, first in since.items() if first <= row.number)
        absent = {client: _absent(client, row, times.get(client, ())) for client in expected}
        exchange = records.exchange(connection, name, row.number) if row.phase == "open" else None
        views.append(_round(row, absent | sent.get(row.number, {}), exchange))
    return tuple(views)


def _round(row: Row[Any], everybody: Mapping[str, ParticipantOut], exchange: SecureRound | None) -> RoundOut:
    participants = tuple(everybody[client] for client in sorted(everybody))
    awaited = [one.client for one in participants if not one.quarantined]
    return RoundOut(
        number=row.number,
        phase=row.phase,
        secure=None if exchange is None else _secure(exchange, awaited),
        opened_at=instant(row.opened_at),
        closed_at=None if row.closed_at is None else instant(row.closed_at),
        missing=tuple(one.client for one in participants if not (one.received or one.quarantined)),
        participants=participants,
    )


def _secure(exchange: SecureRound, awaited: Sequence[str]) -> SecureOut:
    return SecureOut(
        step=exchange.phase,
        threshold=exchange.terms.threshold,
        came={phase: len(exchange.collected(phase)) for phase in PHASES},
        waiting_for=secure_phases.expected(exchange, awaited),
        expelled=tuple(sorted(exchange.expelled)),
    )


def _shut_out(connection: Connection) -> dict[str, list[Row[Any]]]:
    """Every time that a client was quarantined, by client."""
    by_client: dict[str, list[Row[Any]]] = {}
    for row in connection.execute(select(QUARANTINES)):
        by_client.setdefault(row.client, []).append(row)
    return by_client


def _absent(client: str, number: Row[Any], times: Sequence[Row[Any]]) -> ParticipantOut:
    """One without an update in a round: quarantined if it was so when the round was closed, or is, of one at hand."""
    closed_at = math.inf if number.closed_at is None else number.closed_at
    quarantined = any(one.since <= closed_at and (one.lifted_at or math.inf) >= closed_at for one in times)
    return ParticipantOut(client=client, received=False, quarantined=quarantined)


def _near(connection: Connection, name: str, floor: float) -> dict[int, dict[str, float]]:
    """rhobar (Eq. 12) by round and client, where the strategy sends rho."""
    rows = connection.execute(select(STATES.c.round, STATES.c.latest).where(STATES.c.run == name))
    return {row.round: similarities(row.latest, floor) for row in rows if _has_rho(row.latest)}


def _has_rho(latest: Mapping[str, Scalars]) -> bool:
    return any("rho" in scalars for scalars in latest.values())


def _participants(
    connection: Connection, name: str, near: Mapping[int, Mapping[str, float]]
) -> dict[int, dict[str, ParticipantOut]]:
    by_round: dict[int, dict[str, ParticipantOut]] = {}
    for row in connection.execute(select(UPDATES).where(UPDATES.c.run == name)):
        by_round.setdefault(row.round, {})[row.client] = ParticipantOut(
            client=row.client,
            received=True,
            size=row.size,
            digest=row.digest,
            received_at=instant(row.received_at),
            rho=row.scalars.get("rho"),
            rhobar=near.get(row.round, {}).get(row.client),
        )
    return by_round
