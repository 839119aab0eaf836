"""Clients without the hash of a secret: they sign with a key that the operator has registered.

SQLite drops no column that has an index of its own, so the table is made anew. Rows of others point at its rows; what
they miss meanwhile is looked for at the end of the transaction, when it is all there again.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import JSON, Column, Float, String

revision = "0004"
down_revision = "0003"

KEPT = "name, declaration, counts, joined_at"


def upgrade() -> None:
    op.execute("PRAGMA defer_foreign_keys=ON")
    op.execute(f"CREATE TEMPORARY TABLE kept AS SELECT {KEPT} FROM clients")
    op.drop_table("clients")
    op.create_table(
        "clients",
        Column("name", String, primary_key=True),
        Column("declaration", JSON, nullable=False),
        Column("counts", JSON),
        Column("joined_at", Float, nullable=False),
    )
    op.execute(f"INSERT INTO clients ({KEPT}) SELECT {KEPT} FROM kept")
    op.drop_table("kept")
