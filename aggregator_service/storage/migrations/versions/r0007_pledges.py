"""Secure runs: what each is held on, and whose sums began where; anchors with their size.

A secure run of an earlier version cannot go on: its clients neither sign what they say nor compare what they were told.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import JSON, Column, ForeignKey, Integer, String

revision = "0007"
down_revision = "0006"

REASON = "it was begun under an earlier version of secure aggregation; start a new run"


def upgrade() -> None:
    op.add_column("runs", Column("pledge", JSON))
    op.add_column("anchors", Column("size", JSON))
    op.create_table(
        "sums",
        Column("start", String, primary_key=True),
        Column("method", String, nullable=False),
        Column("seed", Integer, nullable=False),
        Column("run", String, ForeignKey("runs.name"), nullable=False),
        Column("members", JSON, nullable=False),
    )
    secure = "EXISTS (SELECT 1 FROM federation WHERE json_extract(declaration, '$.secure'))"
    active = f"phase NOT IN ('finished', 'failed') AND {secure}"
    op.execute(f"UPDATE runs SET phase = 'failed', reason = '{REASON}' WHERE {active}")
    op.execute("DELETE FROM secure_messages")
    op.execute("DELETE FROM secure_rounds")
