"""Registered keys and open invitations, which several workers share.

In SQLite they stay empty: one process has a folder of keys.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Float, Integer, String

revision = "0011"
down_revision = "0010"

WHOLE = BigInteger().with_variant(Integer, "sqlite")
TEXT = String().with_variant(String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "registered_keys",
        Column("name", TEXT, primary_key=True),
        Column("key", TEXT, unique=True),
        Column("version", WHOLE, nullable=False),
    )
    op.create_index("registered_keys_by_version", "registered_keys", ["version"])
    op.create_table(
        "invitations",
        Column("name", TEXT, primary_key=True),
        Column("digest", TEXT, nullable=False),
        Column("expires", Float, nullable=False),
    )
