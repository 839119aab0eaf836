"""The aggregator's own record of what arrived. The last databases from before the revisions have it already."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Float, ForeignKey, Integer, String

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "arrivals",
        Column("sequence", Integer, primary_key=True),
        Column("time", Float, nullable=False),
        Column("client", String, ForeignKey("clients.name"), nullable=False),
        Column("call", String, nullable=False),
        Column("run", String),
        Column("round", Integer),
        Column("size", Integer, nullable=False),
        Column("digest", String, nullable=False),
        Column("status", Integer, nullable=False),
        Column("code", String),
        if_not_exists=True,
    )
    op.create_index("arrivals_by_client", "arrivals", ["client", "status"], if_not_exists=True)
