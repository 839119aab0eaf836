"""Database of one federation, upgraded to the newest revision when it is opened.

The upgrade is one transaction.
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
from aggregator_service.storage.engines.shared_postgresql import TURNS, SharedPostgreSQL
from aggregator_service.storage.engines.sqlite import SQLite
from aggregator_service.storage.tables import FEDERATION
from shared.errors import SettingsError
from shared.files import lock_directory
from shared.method.declaration import Declaration
from shared.sums.sum import BASIS

MIGRATIONS = Path(__file__).parent / "migrations"
_ALONE = threading.Lock()  # revisions share one variable of the process


FIRST_CHOICE = "start it with the --share, --strategy and settings of the method with which it began, or choose another"


class Database:
    """Database of one federation, whose `reading` and `writing` are one transaction each.

    It lies in the state directory, or on the server that `url` names; shared: other workers use it too. Opening it
    brings its tables to the newest revision. Raises SettingsError if it belongs to another federation, is used by
    another aggregator, or has an unknown revision; DamagedError if it is broken.
    """

    def __init__(
        self, directory: Path, declaration: Declaration, url: URL | None = None, *, shared: bool = False
    ) -> None:
        self.disk = Disk()
        self._owner = lock_directory(directory)
        try:
            self.engine = _open_engine(directory, url, shared=shared)
        except BaseException:
            self._owner.close()
            raise
        try:
            with self.disk.translate_errors("a database that can be opened"):
                self._prepare_tables(declaration)
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
        """Opens a writing transaction; raises UnsettledError if the connection broke during its commit."""
        with self.disk.translate_errors("a database that can be written"), self.engine.writing() as connection:
            yield connection

    @contextmanager
    def recording(self) -> Iterator[Connection]:
        """Opens a transaction that adds rows which no transition of a run depends on."""
        with self.disk.translate_errors("a database that can be written"), self.engine.recording() as connection:
            yield connection

    @property
    def workers(self) -> SharedPostgreSQL | None:
        """Engine by which several workers share the database; None for one process alone."""
        return self.engine if isinstance(self.engine, SharedPostgreSQL) else None

    @property
    def on_server(self) -> bool:
        """Whether it lies on a server, and not in the state directory."""
        return isinstance(self.engine, PostgreSQL)

    def probe(self) -> None:
        """Runs a transaction that changes nothing, and takes a lost database again.

        Raises UnavailableError while the database refuses.
        """
        with self.disk.translate_errors("a database that can be reached"):
            self.engine.resume()
        with self.writing() as connection:
            connection.execute(update(FEDERATION).values(sequence=FEDERATION.c.sequence))

    def _prepare_tables(self, declaration: Declaration) -> None:
        """Upgrades and claims the database, in a turn.

        A worker needs that for a change alone, so it also starts while another makes a sum.
        """
        if self.engine.shared and self._holds(declaration):
            return
        with self.engine.turn():
            self._upgrade_tables()
            self._require_same_federation(declaration)

    def _holds(self, declaration: Declaration) -> bool:
        """Tells whether the tables are the newest ones, of this federation."""
        with self.reading() as connection:
            self.engine.require_usable(connection)
            if _due_revision(connection, _known_revisions(), self.engine.setting) is not None:
                return False
            held = connection.scalar(select(FEDERATION.c.declaration))
        return held is not None and Declaration.model_validate(held) == declaration

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
        """Raises SettingsError for a database of another federation."""
        with self.writing() as connection:
            held = connection.scalar(select(FEDERATION.c.declaration))
            if held is None:
                row = {"id": 1, "declaration": declaration.model_dump(mode="json"), "sequence": 0}
                connection.execute(insert(FEDERATION).values(row))
            elif (kept := Declaration.model_validate(held)) != declaration:  # an older row has fewer fields
                words = "it holds a federation with another strategy, width, layers or sums, or other in being secure"
                to_do = _describe_added_sums(kept, declaration) or f"; {FIRST_CHOICE}"
                raise SettingsError(f"{self.engine.setting}: {words}{to_do}")


def _open_engine(directory: Path, url: URL | None, *, shared: bool) -> TableEngine:
    if url is None:
        return SQLite(directory)
    return SharedPostgreSQL(url) if shared else PostgreSQL(url)


def _describe_added_sums(kept: Declaration, given: Declaration) -> str:
    """Returns the settings that continue a federation without the sums that it lacks.

    Empty if it differs in other ways too.
    """
    added = given.sums.keys() - kept.sums.keys()
    others = {part: one for part, one in given.sums.items() if part not in added}
    if not added or given.model_copy(update={"sums": others}) != kept:
        return ""
    names = ("BASIS" if part == BASIS else f"SUMS__{part.upper()}" for part in sorted(added))
    return f"; to go on without the sums that it lacks, set {', '.join(f'METHOD__{name}__KIND=off' for name in names)}"


def insert_or_update(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Returns an insert that can update an existing row, in the database's dialect."""
    return insert_of_dialect(connection.dialect.name, table)


def insert_of_dialect(dialect: str, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Returns an insert that can update an existing row, in a dialect by its name."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def _known_revisions() -> ScriptDirectory:
    return ScriptDirectory(str(MIGRATIONS), version_locations=[str(MIGRATIONS)])


def _due_revision(connection: Connection, revisions: ScriptDirectory, setting: str) -> str | None:
    """Returns the revision to upgrade to; None if the database is the newest.

    Raises SettingsError for an unknown revision: of a newer service, too old, or of another program.
    """
    newest, *older = [one.revision for one in revisions.walk_revisions()]
    held = MigrationContext.configure(connection).get_current_revision()
    if held == newest:
        return None
    if held in older or (held is None and not {*inspect(connection).get_table_names()} - {TURNS.name}):
        return newest
    expected = f"expected a database of one of the revisions {', '.join([*older[::-1], newest])}"
    if held is not None and held > newest:
        raise SettingsError(f"{setting}: {expected}, got {held}; a newer version of this service has written it")
    words = f"got {held or 'one from before the revisions'}; nothing was changed"
    raise SettingsError(f"{setting}: {expected}, {words}. First open it with an earlier version that knows it")


def _run_revisions(connection: Connection, revisions: ScriptDirectory, engine: TableEngine) -> None:
    """Upgrades the database to the newest revision within the open transaction."""
    context = MigrationContext.configure(connection)
    held = context.get_current_revision() or engine.create_tables(connection)
    with _ALONE, Operations.context(context):
        for one in reversed(list(revisions.iterate_revisions("head", held))):
            one.module.upgrade()
    context.stamp(revisions, "head")
    engine.stamp_tables(connection)
