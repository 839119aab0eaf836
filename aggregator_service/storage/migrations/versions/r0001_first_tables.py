"""The tables that a federation began with.

Each is made only where it is missing: a database from before the revisions has them, and one whose making was cut off
has some of them.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import JSON, Column, Float, ForeignKey, ForeignKeyConstraint, Integer, String
from sqlalchemy.schema import SchemaItem

revision = "0001"
down_revision = None


def upgrade() -> None:
    _federation_and_clients()
    _runs()
    _results()


def _federation_and_clients() -> None:
    _create(
        "federation",
        Column("id", Integer, primary_key=True),
        Column("declaration", JSON, nullable=False),
        Column("sequence", Integer, nullable=False),
    )
    _create(
        "clients",
        Column("name", String, primary_key=True),
        Column("secret_hash", String, nullable=False, unique=True),
        Column("declaration", JSON, nullable=False),
        Column("counts", JSON),
        Column("joined_at", Float, nullable=False),
    )


def _runs() -> None:
    _create(
        "runs",
        Column("number", Integer, primary_key=True),
        Column("name", String, nullable=False, unique=True),
        Column("request", JSON, nullable=False),
        Column("started_at", Float, nullable=False),
        Column("deadline", Float, nullable=False),
        Column("phase", String, nullable=False),
        Column("round", Integer, nullable=False),
        Column("reason", String),
    )
    _create(
        "enrolments",
        Column("run", String, ForeignKey("runs.name"), primary_key=True),
        Column("client", String, ForeignKey("clients.name"), primary_key=True),
        Column("since_round", Integer, nullable=False),
    )
    _create(
        "rounds",
        Column("run", String, ForeignKey("runs.name"), primary_key=True),
        Column("number", Integer, primary_key=True),
        Column("phase", String, nullable=False),
        Column("opened_at", Float, nullable=False),
        Column("closed_at", Float),
    )


def _results() -> None:
    _create(
        "updates",
        Column("run", String, primary_key=True),
        Column("round", Integer, primary_key=True),
        Column("client", String, ForeignKey("clients.name"), primary_key=True),
        Column("digest", String, nullable=False),
        Column("size", Integer, nullable=False),
        Column("received_at", Float, nullable=False),
        Column("scalars", JSON, nullable=False),
        Column("blob", String),
        ForeignKeyConstraint(["run", "round"], ["rounds.run", "rounds.number"]),
    )
    _create(
        "states",
        Column("run", String, primary_key=True),
        Column("round", Integer, primary_key=True),
        Column("digest", String, nullable=False),
        Column("latest", JSON, nullable=False),
        Column("blob", String),
        ForeignKeyConstraint(["run", "round"], ["rounds.run", "rounds.number"]),
    )
    _create(
        "anchors",
        Column("run", String, ForeignKey("runs.name"), primary_key=True),
        Column("round", Integer, primary_key=True),
        Column("kernel", JSON, nullable=False),
        Column("source", String, nullable=False),
    )


def _create(name: str, *items: SchemaItem) -> None:
    op.create_table(name, *items, if_not_exists=True)
