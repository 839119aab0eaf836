"""A state directory, or a server -> the database of one federation, of the newest revision.

An older revision becomes the newest in one transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Table, insert, inspect, select, update
from sqlalchemy.dialects import postgresql, sqlite

from aggregator_service.storage.disk import Disk
from aggregator_service.storage.engines.engine import TableEngine
from aggregator_service.storage.engines.postgresql import PostgreSQL
from aggregator_service.storage.engines.sqlite import SQLite
from aggregator_service.storage.tables import FEDERATION
from shared.errors import SettingsError
from shared.files import lock_directory
from shared.method.declaration import Declaration
from shared.sums.sum import BASIS

MIGRATIONS = Path(__file__).parent / "migrations"
_ALONE = threading.Lock()  # what a revision works on is one variable of the process


class Database:
    """The database of one federation: `reading` and `writing` are one transaction each.

    It lies in the state directory, or on the server that `url` names. Opening it brings its tables to the newest
    revision. SettingsError where it belongs to another federation, is used by another aggregator, or is of a revision
    that this code does not know; DamagedError where it is found broken.
    """

    def __init__(self, directory: Path, declaration: Declaration, url: URL | None = None) -> None:
        self.disk = Disk()
        self._owner = lock_directory(directory)
        try:
            self.engine: TableEngine = SQLite(directory) if url is None else PostgreSQL(url)
        except BaseException:
            self._owner.close()
            raise
        try:
            self._upgrade_tables()
            self._require_same_federation(declaration)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.engine.close()
        self._owner.close()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self.disk.translate_errors("a database that can be read"), self.engine.reading() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """UnsettledError where the database was lost while it committed."""
        with self.disk.translate_errors("a database that can be written"), self.engine.writing() as connection:
            yield connection

    def probe(self) -> None:
        """One transaction that writes and changes nothing. UnavailableError while the database refuses. One that was
        lost is this process's again after it, and holds whatever it held when it was lost."""
        with self.disk.translate_errors("a database that can be reached"):
            self.engine.resume()
        with self.writing() as connection:
            connection.execute(update(FEDERATION).values(sequence=FEDERATION.c.sequence))

    def _upgrade_tables(self) -> None:
        revisions = _known_revisions()
        with self.reading() as connection:
            self.engine.require_usable(connection)
            newest = _due_revision(connection, revisions, self.engine.setting)
            if newest is not None:
                self.engine.save_backup(connection, newest)
        if newest is not None:
            with self.writing() as connection:
                _run_revisions(connection, revisions, self.engine)

    def _require_same_federation(self, declaration: Declaration) -> None:
        """A database belongs to one federation for good."""
        with self.writing() as connection:
            held = connection.scalar(select(FEDERATION.c.declaration))
            if held is None:
                row = {"id": 1, "declaration": declaration.model_dump(mode="json"), "sequence": 0}
                connection.execute(insert(FEDERATION).values(row))
            elif (kept := Declaration.model_validate(held)) != declaration:  # an older row has fewer fields
                words = "it holds a federation with another strategy, width, layers or sums, or other in being secure"
                raise SettingsError(f"{self.engine.setting}: {words}{_describe_added_sums(kept, declaration)}")


def _describe_added_sums(kept: Declaration, given: Declaration) -> str:
    """Says by which settings a federation goes on without the sums that it lacks; "" if it differs otherwise too."""
    added = given.sums.keys() - kept.sums.keys()
    others = {part: one for part, one in given.sums.items() if part not in added}
    if not added or given.model_copy(update={"sums": others}) != kept:
        return ""
    names = ("BASIS" if part == BASIS else f"SUMS__{part.upper()}" for part in sorted(added))
    return f"; to go on without the sums that it lacks, set {', '.join(f'METHOD__{name}__KIND=off' for name in names)}"


def insert_or_update(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An insert that can say what becomes of a row which is there already: each database has one of its own."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def _known_revisions() -> ScriptDirectory:
    return ScriptDirectory(str(MIGRATIONS), version_locations=[str(MIGRATIONS)])


def _due_revision(connection: Connection, revisions: ScriptDirectory, setting: str) -> str | None:
    """The revision that this database has to become; None where it is the newest.

    SettingsError for one that this code does not know: of a newer service, of one that is too old, or somebody else's.
    """
    newest, *older = [one.revision for one in revisions.walk_revisions()]
    held = MigrationContext.configure(connection).get_current_revision()
    if held == newest:
        return None
    if held in older or (held is None and not inspect(connection).get_table_names()):
        return newest
    expected = f"expected a database of one of the revisions {', '.join([*older[::-1], newest])}"
    if held is not None and held > newest:
        raise SettingsError(f"{setting}: {expected}, got {held}; a newer version of this service has written it")
    words = f"got {held or 'one from before the revisions'}; nothing was changed"
    raise SettingsError(f"{setting}: {expected}, {words}. First open it with an earlier version that knows it")


def _run_revisions(connection: Connection, revisions: ScriptDirectory, engine: TableEngine) -> None:
    """Make the database the newest revision within the transaction that is open on it."""
    context = MigrationContext.configure(connection)
    held = context.get_current_revision() or engine.create_tables(connection)
    with _ALONE, Operations.context(context):
        for one in reversed(list(revisions.iterate_revisions("head", held))):
            one.module.upgrade()
    context.stamp(revisions, "head")
    engine.stamp_tables(connection)
