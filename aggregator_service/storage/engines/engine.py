"""What the databases that can hold the tables differ in."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import Connection


class TableEngine(Protocol):
    """One database, which no other process works on while this is open.

    `reading` sees one moment. Of `writing` there is one at a time; what it has committed survives a power cut. Both
    wait within bounds, and raise what the driver raises, or an OSError, where the database refuses.
    """

    setting: str
    """The name of the setting that says where it is: errors begin with it."""

    def reading(self) -> AbstractContextManager[Connection]: ...

    def writing(self) -> AbstractContextManager[Connection]: ...

    def resume(self) -> None:
        """Take it again for this process where it was lost. Until then `writing` is refused."""

    def require_usable(self, connection: Connection) -> None:
        """DamagedError or SettingsError for a database that is broken, or of a kind that cannot hold the tables."""

    def save_backup(self, connection: Connection, newest: str) -> None:
        """Keep what it holds before its tables become the revision `newest`, where that can be done from here."""

    def create_tables(self, connection: Connection) -> str:
        """Make what a fresh database begins with -> the revision that this is."""

    def stamp_tables(self, connection: Connection) -> None:
        """Say of a database whose tables are the newest that it has revisions."""

    def close(self) -> None: ...
