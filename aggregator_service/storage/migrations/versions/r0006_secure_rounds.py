"""Secure rounds: the phase of each, and what its clients have sent for one another."""

from __future__ import annotations

from alembic import op
from sqlalchemy import JSON, Column, ForeignKey, ForeignKeyConstraint, Integer, String

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "secure_rounds",
        Column("run", String, primary_key=True),
        Column("round", Integer, primary_key=True),
        Column("phase", String, nullable=False),
        Column("terms", JSON, nullable=False),
        ForeignKeyConstraint(["run", "round"], ["rounds.run", "rounds.number"]),
    )
    op.create_table(
        "secure_messages",
        Column("run", String, primary_key=True),
        Column("round", Integer, primary_key=True),
        Column("phase", String, primary_key=True),
        Column("client", String, ForeignKey("clients.name"), primary_key=True),
        Column("message", JSON, nullable=False),
        ForeignKeyConstraint(["run", "round"], ["rounds.run", "rounds.number"]),
    )
