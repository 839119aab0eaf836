"""One JSON document per run, instead of rows in five tables.

It replaces `runs`, `enrolments`, `rounds`, `losses` and `secure_rounds`. `states` get the times when their rounds
opened and closed. SQLite drops neither columns that others refer to nor foreign keys, so the tables are created anew.
"""

from __future__ import annotations

import json
from typing import Any

from alembic import op
from sqlalchemy import JSON, Column, Connection, Float, ForeignKey, Integer, String, text
from sqlalchemy.schema import SchemaItem

revision = "0010"
down_revision = "0009"

UPDATES = "run, round, client, digest, size, received_at, scalars, blob"
MESSAGES = "run, round, phase, client, message"
IN_THE_DOCUMENT = ("secure_rounds", "losses", "enrolments", "rounds")


def upgrade() -> None:
    op.execute("PRAGMA defer_foreign_keys=ON")
    connection = op.get_bind()
    documents = [_document(connection, row) for row in _rows(connection, "SELECT * FROM runs")]
    closed = _rows(
        connection,
        "SELECT states.*, opened_at, closed_at FROM states JOIN rounds ON rounds.run = states.run AND number = round",
    )
    op.execute(f"CREATE TEMPORARY TABLE kept_updates AS SELECT {UPDATES} FROM updates")
    op.execute(f"CREATE TEMPORARY TABLE kept_messages AS SELECT {MESSAGES} FROM secure_messages")
    for table in ("updates", "states", "secure_messages", *IN_THE_DOCUMENT, "runs"):
        op.drop_table(table)
    _create_runs(documents)
    _create_updates()
    _create_states(closed)
    _create_messages()


def _rows(connection: Connection, query: str, **values: object) -> list[dict[str, Any]]:
    return [dict(row._mapping) for row in connection.execute(text(query), values)]


def _document(connection: Connection, row: dict[str, Any]) -> dict[str, Any]:
    """Returns the row of `runs` with version 1 of its document."""
    name, number = row["name"], row["round"]

    def select(query: str) -> list[dict[str, Any]]:
        return _rows(connection, query, run=name, number=number)

    opened = select("SELECT * FROM rounds WHERE run = :run AND number = :number") or [{}]
    opened_at = opened[0].get("opened_at", 0.0)
    exchange = select("SELECT phase, terms FROM secure_rounds WHERE run = :run AND round = :number")
    run = {
        "name": name,
        "request": json.loads(row["request"]),
        "started_at": row["started_at"],
        "deadline": row["deadline"],
        "enrolled": {
            each["client"]: each["since_round"]
            for each in select("SELECT * FROM enrolments WHERE run = :run ORDER BY client")
        },
        "phase": row["phase"],
        "round": number,
        "opened_at": opened_at,
        "closed_at": opened[0].get("closed_at"),
        "reason": row["reason"],
        "lost": [each["client"] for each in select("SELECT client FROM losses WHERE run = :run AND round = :number")],
        "quarantined": {
            each["client"]: each["cause"] for each in select("SELECT * FROM quarantines WHERE lifted_at IS NULL")
        },
        "readmitted": _readmitted(connection, opened_at) if number else [],
        "pledge": None if row["pledge"] is None else json.loads(row["pledge"]),
        "exchange": {"phase": exchange[0]["phase"], "terms": json.loads(exchange[0]["terms"])} if exchange else None,
    }
    return {"number": row["number"], "name": name, "document": json.dumps({"version": 1, "run": run})}


def _readmitted(connection: Connection, since: float) -> list[str]:
    """Returns clients whose quarantine was lifted since the current round opened."""
    rows = _rows(connection, "SELECT DISTINCT client FROM quarantines WHERE lifted_at >= :since", since=since)
    return [row["client"] for row in rows]


def _create_runs(documents: list[dict[str, Any]]) -> None:
    runs = op.create_table(
        "runs",
        Column("number", Integer, primary_key=True),
        Column("name", String, nullable=False, unique=True),
        Column("document", String, nullable=False),
    )
    op.bulk_insert(runs, documents)


def _in_round(*columns: SchemaItem) -> tuple[SchemaItem, ...]:
    run = Column("run", String, ForeignKey("runs.name"), primary_key=True)
    return run, Column("round", Integer, primary_key=True), *columns


def _client() -> SchemaItem:
    return Column("client", String, ForeignKey("clients.name"), primary_key=True)


def _create_updates() -> None:
    op.create_table(
        "updates",
        *_in_round(
            _client(),
            Column("digest", String, nullable=False),
            Column("size", Integer, nullable=False),
            Column("received_at", Float, nullable=False),
            Column("scalars", JSON, nullable=False),
            Column("blob", String),
        ),
    )
    op.execute(f"INSERT INTO updates ({UPDATES}) SELECT {UPDATES} FROM kept_updates")
    op.drop_table("kept_updates")


def _create_states(closed: list[dict[str, Any]]) -> None:
    states = op.create_table(
        "states",
        *_in_round(
            Column("digest", String, nullable=False),
            Column("latest", JSON, nullable=False),
            Column("blob", String),
            Column("opened_at", Float, nullable=False),
            Column("closed_at", Float, nullable=False),
        ),
    )
    op.bulk_insert(states, [row | {"latest": json.loads(row["latest"])} for row in closed])


def _create_messages() -> None:
    op.create_table(
        "secure_messages",
        *_in_round(Column("phase", String, primary_key=True), _client(), Column("message", JSON, nullable=False)),
    )
    op.execute(f"INSERT INTO secure_messages ({MESSAGES}) SELECT {MESSAGES} FROM kept_messages")
    op.drop_table("kept_messages")
