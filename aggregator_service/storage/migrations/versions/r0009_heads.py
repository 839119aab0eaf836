"""What each request's head was, and rows of registered clients that have never joined.

SQLite drops no constraint, so the table is made anew.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import JSON, Column, Float, Integer, String

revision = "0009"
down_revision = "0008"

KEPT = "sequence, time, client, call, run, round, size, digest, status, code, nonce"


def upgrade() -> None:
    op.execute(f"CREATE TEMPORARY TABLE kept AS SELECT {KEPT} FROM arrivals")
    op.drop_table("arrivals")
    op.create_table(
        "arrivals",
        Column("sequence", Integer, primary_key=True),
        Column("time", Float, nullable=False),
        Column("client", String, nullable=False),
        Column("call", String, nullable=False),
        Column("run", String),
        Column("round", Integer),
        Column("size", Integer, nullable=False),
        Column("digest", String, nullable=False),
        Column("status", Integer, nullable=False),
        Column("code", String),
        Column("nonce", String),
        Column("head", JSON),
    )
    op.create_index("arrivals_by_client", "arrivals", ["client", "status"])
    op.execute(f"INSERT INTO arrivals ({KEPT}) SELECT {KEPT} FROM kept")
    op.drop_table("kept")
