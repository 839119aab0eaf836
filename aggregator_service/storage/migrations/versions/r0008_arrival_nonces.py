"""The nonce of each request that arrived: by it the ledger of its client can be held to what it was."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, String

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("arrivals", Column("nonce", String))
