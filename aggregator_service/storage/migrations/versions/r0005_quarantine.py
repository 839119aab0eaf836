"""Clients that are shut out, by whom and why; and how many of a client's updates a run has refused."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Float, ForeignKey, Integer, String

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "quarantines",
        Column("sequence", Integer, primary_key=True),
        Column("client", String, ForeignKey("clients.name"), nullable=False),
        Column("cause", String, nullable=False),
        Column("reason", String, nullable=False),
        Column("run", String),
        Column("round", Integer),
        Column("since", Float, nullable=False),
        Column("lifted_at", Float),
    )
    op.create_index("quarantines_by_client", "quarantines", ["client", "lifted_at"])
    op.create_table(
        "refusals",
        Column("run", String, ForeignKey("runs.name"), primary_key=True),
        Column("client", String, ForeignKey("clients.name"), primary_key=True),
        Column("refused", Integer, nullable=False),
    )
