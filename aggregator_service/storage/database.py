"""A state directory -> the SQLite database in it, prepared so that a commit survives a power cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event, insert, select, text, update

from aggregator_service.storage import revisions
from aggregator_service.storage.disk import Disk
from aggregator_service.storage.tables import FEDERATION
from shared.errors import DamagedError, SettingsError
from shared.method.declaration import Declaration
from shared.ownership import lock_directory
from shared.timeouts import DATABASE_SECONDS

NAME = "aggregator.sqlite"
CACHE = "cache_size=-256"  # KiB of each connection; by itself it would grow to 2 MiB with the file, in every one
WAITING = f"busy_timeout={DATABASE_SECONDS * 1000:.0f}"
PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", WAITING, CACHE)


class Database:
    """The database of one federation: `reading` and `writing` are one transaction each.

    Opening it brings its tables to the newest revision. SettingsError where it belongs to another federation or to a
    newer version of the service, DamagedError where SQLite finds it broken.
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
        with self.reading() as connection:
            if (found := connection.scalar(text("PRAGMA quick_check(1)"))) != "ok":
                raise DamagedError(f"state_directory: expected a sound database, SQLite found: {found}")
            newest = revisions.due_revision(connection)
            if newest is not None:
                revisions.copy_database(connection, file, newest)
        if newest is not None:
            with self.writing() as connection:
                revisions.upgrade_tables(connection)

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
