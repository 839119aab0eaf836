"""Digests of the parts of an update's body, by which workers check ranges of it."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, LargeBinary

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("updates", Column("parts", LargeBinary))
