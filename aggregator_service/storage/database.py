"""A state directory -> the SQLite database in it, prepared so that a commit survives a power cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, event, insert, select, text
from sqlalchemy.exc import SQLAlchemyError

from aggregator_service.storage.tables import FEDERATION, METADATA
from shared.errors import SettingsError, UnavailableError
from shared.ownership import owned
from shared.schemas import Declaration

PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000")
VERSION = 1  # of the tables; a database of another version is refused, not guessed at


class Database:
    """The database of one federation: `reading` and `writing` are one transaction each."""

    def __init__(self, directory: Path, declaration: Declaration) -> None:
        self._owner = owned(directory)
        self._engine = create_engine(f"sqlite:///{directory / 'aggregator.sqlite'}")
        event.listen(self._engine, "connect", _prepare)
        try:
            self._create(declaration.model_dump(mode="json"))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._engine.dispose()
        self._owner.close()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise UnavailableError(f"the database cannot be read: {type(error).__name__}") from error

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise UnavailableError(f"the database cannot be written: {type(error).__name__}") from error

    def _create(self, declaration: dict[str, Any]) -> None:
        """A directory belongs to one federation for good."""
        with self.writing() as connection:
            if connection.scalar(text("PRAGMA user_version")) not in (0, VERSION):
                raise SettingsError(f"state_directory: expected a database of version {VERSION}")
            connection.execute(text(f"PRAGMA user_version={VERSION}"))
            METADATA.create_all(connection)
            held = connection.scalar(select(FEDERATION.c.declaration))
            if held is None:
                connection.execute(insert(FEDERATION).values(id=1, declaration=declaration, sequence=0))
            elif held != declaration:
                raise SettingsError("state_directory: it holds a federation with another strategy, width or layers")


def _prepare(connection: Any, record: object) -> None:
    del record
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
