"""An open transaction -> the revisions that are due, run in it. alembic itself loads this file."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
