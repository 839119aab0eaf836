"""Interface of the databases that can hold the tables."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from sqlalchemy import Connection


class TableEngine(Protocol):
    """One database, which no other process uses while this is open, unless it is shared.

    `reading` sees one snapshot. Only one `writing` runs at a time, and its commit survives a power cut. Both have
    timeouts, and raise the driver's errors, or an OSError, where the database refuses.
    """

    setting: str
    """The name of the setting that says where it is: errors begin with it."""

    shared: bool
    """Whether other workers use it at the same time: then `writing` needs a `turn`."""

    def reading(self) -> AbstractContextManager[Connection]: ...

    def writing(self) -> AbstractContextManager[Connection]: ...

    def recording(self) -> AbstractContextManager[Connection]:
        """Opens a transaction that adds rows which no transition of a run depends on.

        By default one that writes.
        """
        return self.writing()

    def turn(self) -> AbstractContextManager[None]:
        """Keeps other workers of a shared database from changing anything meanwhile.

        By default there are none.
        """
        return nullcontext()

    def resume(self) -> None:
        """Reconnects a lost database for this process; until then `writing` is refused."""

    def require_usable(self, connection: Connection) -> None:
        """Raises DamagedError or SettingsError for a broken or unsuitable database."""

    def save_backup(self, connection: Connection, newest: str) -> None:
        """Saves a copy before the tables are upgraded to revision `newest`, where possible."""

    def create_tables(self, connection: Connection) -> str:
        """Creates the first tables of a fresh database; returns their revision."""

    def stamp_tables(self, connection: Connection) -> None:
        """Marks a database with the newest tables as one that has revisions."""

    def close(self) -> None: ...
