"""Accepted updates that the disk has damaged, and that were asked for again."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Float, ForeignKey, ForeignKeyConstraint, Integer, String

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "losses",
        Column("run", String, primary_key=True),
        Column("round", Integer, primary_key=True),
        Column("client", String, ForeignKey("clients.name"), primary_key=True),
        Column("digest", String, nullable=False),
        Column("found_at", Float, nullable=False),
        ForeignKeyConstraint(["run", "round"], ["rounds.run", "rounds.number"]),
    )
