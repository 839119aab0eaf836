"""A database of any earlier revision -> the newest one, in one transaction, beside a copy of what it was before."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from aggregator_service.storage.disk import sync_directory
from shared.errors import SettingsError

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION = 2  # PRAGMA user_version of a database with revisions: the service from before them, at 1, refuses it
COPY, PART = ".before-", ".part"
_ALONE = threading.Lock()  # what a revision works on is one variable of the process


def due_revision(connection: Connection) -> str | None:
    """The revision that this database has to become; None where it is the newest.

    SettingsError for one that this code does not know: of a newer service, or somebody else's.
    """
    version = connection.scalar(text("PRAGMA user_version"))
    if version not in range(VERSION + 1):
        raise SettingsError(f"state_directory: expected a database of version {VERSION} or older, got {version}")
    script, held = (
        ScriptDirectory.from_config(_alembic_config()),
        MigrationContext.configure(connection).get_current_revision(),
    )
    newest = script.get_current_head()
    if held is not None and held not in {one.revision for one in script.walk_revisions()}:
        expected = f"expected a database of revision {newest} or older, got {held}"
        raise SettingsError(f"state_directory: {expected}; a newer version of this service has written it")
    return None if held == newest else newest


def upgrade_tables(connection: Connection) -> None:
    """Make it the newest revision within the transaction that is open on it."""
    config = _alembic_config()
    config.attributes["connection"] = connection
    with _ALONE:
        command.upgrade(config, "head")
    connection.execute(text(f"PRAGMA user_version={VERSION}"))


def copy_database(connection: Connection, file: Path, newest: str) -> None:
    """Keep what a database with tables holds before it becomes `newest`, in one file beside it that is there whole or
    not at all. Of several copies the last one stays: whoever goes back to the version before puts it in place."""
    for part in file.parent.glob(f"{file.name}{COPY}*{PART}"):  # of a start that was cut off
        part.unlink()
    if not inspect(connection).get_table_names():
        return
    kept = file.with_name(f"{file.name}{COPY}{newest}")
    _write_copy(connection, kept.with_name(kept.name + PART))
    kept.with_name(kept.name + PART).rename(kept)
    sync_directory(file.parent)
    for older in set(file.parent.glob(f"{file.name}{COPY}*")) - {kept}:
        older.unlink()


def _write_copy(connection: Connection, part: Path) -> None:
    source = connection.connection.driver_connection
    assert isinstance(source, sqlite3.Connection)
    try:
        with closing(sqlite3.connect(part)) as target:
            source.backup(target)
        with part.open("rb") as written:
            os.fsync(written.fileno())
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config
