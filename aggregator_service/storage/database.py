"""A state directory -> the SQLite database in it, of the newest revision, where a commit survives a power cut.

An older revision becomes the newest in one transaction, beside a copy of what it was before.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, create_engine, event, insert, inspect, select, text, update

from aggregator_service.storage.disk import Disk, sync_directory
from aggregator_service.storage.tables import FEDERATION
from shared.errors import DamagedError, SettingsError
from shared.method.declaration import Declaration
from shared.ownership import lock_directory
from shared.timeouts import DATABASE_SECONDS

NAME = "aggregator.sqlite"
CACHE = "cache_size=-256"  # KiB of each connection; by itself it would grow to 2 MiB with the file, in every one
WAITING = f"busy_timeout={DATABASE_SECONDS * 1000:.0f}"
PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", WAITING, CACHE)
MIGRATIONS = Path(__file__).parent / "migrations"
VERSION = 2  # PRAGMA user_version of a database with revisions: the service from before them, at 1, refuses it
COPY, PART = ".before-", ".part"
_ALONE = threading.Lock()  # what a revision works on is one variable of the process


class Database:
    """The database of one federation: `reading` and `writing` are one transaction each.

    Opening it brings its tables to the newest revision. SettingsError where it belongs to another federation, or is of
    a revision that this code does not know; DamagedError where SQLite finds it broken.
    """

    def __init__(self, directory: Path, declaration: Declaration) -> None:
        self.disk = Disk()
        self._owner = lock_directory(directory)
        file = directory / NAME
        self._engine = create_engine(URL.create("sqlite", database=str(file)))
        event.listen(self._engine, "connect", _prepare_connection)
        try:
            self._upgrade_tables(file)
            self._require_same_federation(declaration)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._engine.dispose()
        self._owner.close()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self.disk.translate_refusal("a database that can be read"), self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        with self.disk.translate_refusal("a database that can be written"), self._engine.begin() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")  # a reader that turns writer could find others in between
            yield connection

    def probe(self) -> None:
        """One transaction that writes and changes nothing. UnavailableError while the disk refuses."""
        with self.writing() as connection:
            connection.execute(update(FEDERATION).values(sequence=FEDERATION.c.sequence))

    def _upgrade_tables(self, file: Path) -> None:
        revisions = _known_revisions()
        with self.reading() as connection:
            if (found := connection.scalar(text("PRAGMA quick_check(1)"))) != "ok":
                raise DamagedError(f"state_directory: expected a sound database, SQLite found: {found}")
            newest = _due_revision(connection, revisions)
            if newest is not None:
                _copy_database(connection, file, newest)
        if newest is not None:
            with self.writing() as connection:
                _run_revisions(connection, revisions)

    def _require_same_federation(self, declaration: Declaration) -> None:
        """A directory belongs to one federation for good."""
        with self.writing() as connection:
            held = connection.scalar(select(FEDERATION.c.declaration))
            if held is None:
                row = {"id": 1, "declaration": declaration.model_dump(mode="json"), "sequence": 0}
                connection.execute(insert(FEDERATION).values(row))
            elif Declaration.model_validate(held) != declaration:  # an older row has fewer fields
                words = "it holds a federation with another strategy, width or layers, or other in being secure"
                raise SettingsError(f"state_directory: {words}")


def _prepare_connection(connection: Any, record: object) -> None:
    """`reading` and `writing` begin transactions themselves: the driver would begin one at the first change only."""
    del record
    connection.isolation_level = None
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _known_revisions() -> ScriptDirectory:
    return ScriptDirectory(str(MIGRATIONS), version_locations=[str(MIGRATIONS)])


def _due_revision(connection: Connection, revisions: ScriptDirectory) -> str | None:
    """The revision that this database has to become; None where it is the newest.

    SettingsError for one that this code does not know: of a newer service, of one that is too old, or somebody else's.
    """
    version = connection.scalar(text("PRAGMA user_version"))
    if version not in range(VERSION + 1):
        raise SettingsError(f"state_directory: expected a database of version {VERSION} or older, got {version}")
    newest, *older = [one.revision for one in revisions.walk_revisions()]
    held = MigrationContext.configure(connection).get_current_revision()
    if held == newest:
        return None
    if held in older or (held is None and not inspect(connection).get_table_names()):
        return newest
    expected = f"expected a database of one of the revisions {', '.join([*older[::-1], newest])}"
    if held is not None and held > newest:
        raise SettingsError(f"state_directory: {expected}, got {held}; a newer version of this service has written it")
    words = f"got {held or 'one from before the revisions'}; nothing was changed"
    raise SettingsError(f"state_directory: {expected}, {words}. First open it with an earlier version that knows it")


def _run_revisions(connection: Connection, revisions: ScriptDirectory) -> None:
    """Make the database the newest revision within the transaction that is open on it."""
    context = MigrationContext.configure(connection)
    held = context.get_current_revision() or "base"
    with _ALONE, Operations.context(context):
        for one in reversed(list(revisions.iterate_revisions("head", held))):
            one.module.upgrade()
    context.stamp(revisions, "head")
    connection.execute(text(f"PRAGMA user_version={VERSION}"))


def _copy_database(connection: Connection, file: Path, newest: str) -> None:
    """Keep what a database with tables holds before it becomes `newest`, in one file beside it that is there whole or
    not at all. Of several copies the last one stays: whoever goes back to the version before puts it in place."""
    for part in file.parent.glob(f"{file.name}{COPY}*{PART}"):  # of a start that was cut off
        part.unlink()
    if not inspect(connection).get_table_names():
        return
    kept = file.with_name(f"{file.name}{COPY}{newest}")
    part = kept.with_name(kept.name + PART)
    _write_copy(connection, part)
    part.rename(kept)
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
