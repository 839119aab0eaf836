"""SQLite database in a state directory, where a commit survives a power cut.

The lock of the state directory keeps other processes away; SQLite itself allows one write at a time.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event, inspect, text

from aggregator_service.storage.engines.engine import TableEngine
from shared.errors import DamagedError, SettingsError
from shared.files import sync_path
from shared.timeouts import DATABASE_SECONDS

NAME = "aggregator.sqlite"
CACHE = "cache_size=-256"  # KiB of each connection; by itself it would grow to 2 MiB with the file, in every one
WAITING = f"busy_timeout={DATABASE_SECONDS * 1000:.0f}"
LOG = f"journal_size_limit={16 << 20}"  # bytes that the write-ahead log keeps once no reader holds it any more
PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", WAITING, CACHE, LOG)
VERSION = 2  # PRAGMA user_version of a database with revisions: the service from before them, at 1, refuses it
COPY, PART = ".before-", ".part"


class SQLite(TableEngine):
    """Database in a state directory, which this process has locked."""

    setting = "state_directory"
    shared = False

    def __init__(self, directory: Path) -> None:
        self._file = directory / NAME
        self.pool = create_engine(URL.create("sqlite", database=str(self._file)))
        event.listen(self.pool, "connect", _prepare_connection)

    def close(self) -> None:
        self.pool.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self.pool.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        with self.pool.begin() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")  # a reader that turns writer could find others in between
            yield connection

    def resume(self) -> None:
        """Does nothing: a file is not lost while its directory is locked."""

    def require_usable(self, connection: Connection) -> None:
        """Raises DamagedError for a broken database, SettingsError for one of a newer service."""
        if (found := connection.scalar(text("PRAGMA quick_check(1)"))) != "ok":
            raise DamagedError(f"state_directory: expected a sound database, SQLite found: {found}")
        version = connection.scalar(text("PRAGMA user_version"))
        if version not in range(VERSION + 1):
            raise SettingsError(f"state_directory: expected a database of version {VERSION} or older, got {version}")

    def save_backup(self, connection: Connection, newest: str) -> None:
        """Copies the database to one file beside it before an upgrade.

        The copy is complete or not there. Only the newest copy stays; it is put back to return to the earlier
        version.
        """
        file = self._file
        for part in file.parent.glob(f"{file.name}{COPY}*{PART}"):  # left by an interrupted start
            part.unlink()
        if not inspect(connection).get_table_names():
            return
        kept = file.with_name(f"{file.name}{COPY}{newest}")
        part = kept.with_name(kept.name + PART)
        _write_copy(connection, part)
        part.rename(kept)
        sync_path(file.parent)
        for older in set(file.parent.glob(f"{file.name}{COPY}*")) - {kept}:
            older.unlink()

    def create_tables(self, connection: Connection) -> str:
        """Returns the empty revision: the revisions create all tables."""
        del connection
        return "base"

    def stamp_tables(self, connection: Connection) -> None:
        connection.execute(text(f"PRAGMA user_version={VERSION}"))


def _prepare_connection(connection: Any, record: object) -> None:
    """Lets `reading` and `writing` begin transactions themselves.

    The driver would only begin one at the first change.
    """
    del record
    connection.isolation_level = None
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


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
