"""PostgreSQL database for one aggregator at a time; `shared_postgresql` is the one for several workers.

All writes go through one connection, which holds an advisory lock for as long as it lives. So the writer owns the
database, and there is one transaction at a time, as in SQLite. When the connection is lost, `writing` is refused
until `resume` has the lock on a new one: by then the server has settled what the old one was about to commit, and
nothing of this process can follow what another aggregator wrote meanwhile.

The password is in the URL alone; driver messages about a failed connection are shown without it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, InvalidatePoolError, SQLAlchemyError

from aggregator_service.storage.disk import LostCommitError
from aggregator_service.storage.engines.engine import TableEngine
from aggregator_service.storage.engines.pipelined_session import is_connected
from aggregator_service.storage.tables import METADATA
from shared.errors import SettingsError, UnavailableError
from shared.timeouts import (
    DATABASE_ANSWER_SECONDS,
    DATABASE_PROBE_SECONDS,
    DATABASE_SECONDS,
    DATABASE_SILENCE_SECONDS,
)

DRIVER = "postgresql+psycopg"
EXAMPLE = f"{DRIVER}://user:password@host/name"
HOST = re.compile(r"[A-Za-z0-9._:,-]*")
RESERVED = {"password", "options", "passfile"}  # parameters that the URL's query must not have
OWNER = 0x4C50_5346_6564  # "LPSFed": the advisory lock of the writer, or of the worker that leads
TURN = OWNER + 1  # the lock of the worker that changes a run
ALONE = OWNER + 4  # the lock of one aggregator alone, which each worker's session shares
ARRIVING = OWNER + 5  # the lock of the record of arrivals, which workers that add to it share
REGISTERING = OWNER + 7  # the lock of the worker that changes the registry of silos
MOST_CONNECTIONS = 15
BOUNDS = {
    "synchronous_commit": "on",  # a commit survives the end of the server, whatever its own setting
    "lock_timeout": f"{DATABASE_SECONDS:g}s",
    "statement_timeout": f"{DATABASE_ANSWER_SECONDS:g}s",
    "idle_in_transaction_session_timeout": f"{DATABASE_ANSWER_SECONDS:g}s",
    # With these the server notices that this machine is gone, and gives the lock to the next.
    "tcp_keepalives_idle": f"{DATABASE_SILENCE_SECONDS:g}",
    "tcp_keepalives_interval": f"{DATABASE_PROBE_SECONDS:g}",
    "tcp_keepalives_count": "3",
}
REACHING = {
    "connect_timeout": round(DATABASE_SECONDS),
    "options": " ".join(f"-c {name}={value}" for name, value in BOUNDS.items()),
    "application_name": "lpsfed-aggregator",
    "client_encoding": "utf8",
    "keepalives_idle": round(DATABASE_SILENCE_SECONDS),
    "keepalives_interval": round(DATABASE_PROBE_SECONDS),
    "keepalives_count": 3,
    "tcp_user_timeout": round(1000 * DATABASE_ANSWER_SECONDS),
}
"""Connection options of libpq, which limit every wait for the network."""


def read_url(given: str) -> URL:
    """Parses the URL of a PostgreSQL database.

    Raises ValueError, without the given text, for anything else.
    """
    try:
        url = make_url(given)
    except (SQLAlchemyError, ValueError):
        raise ValueError(f"expected a URL such as {EXAMPLE}, got something else") from None
    if url.drivername not in (DRIVER, "postgresql") or not url.database:
        raise ValueError(f"expected a URL such as {EXAMPLE}, got another kind or no name of a database")
    if not HOST.fullmatch(url.host or ""):
        raise ValueError(
            "expected the host's name after the '@'; in a password '@', '/' and ':' are written %40, %2F, %3A"
        )
    if given_twice := sorted(RESERVED & url.query.keys()):
        raise ValueError(f"expected a URL without {', '.join(given_twice)} after the '?'")
    return url.set(drivername=DRIVER)


class PostgreSQL(TableEngine):
    """Database on a server, owned by this process from the start.

    Raises SettingsError if the server refuses the login or another aggregator owns it; UnavailableError without an
    answer.
    """

    setting = "database"
    shared = False
    application = REACHING["application_name"]

    def __init__(self, url: URL) -> None:
        self._turn = threading.Lock()
        self._owner: Connection | None = None
        try:
            self.pool = create_engine(
                url,
                connect_args=REACHING | {"application_name": self.application},
                hide_parameters=True,
                max_overflow=0,
                pool_size=MOST_CONNECTIONS,
                pool_timeout=DATABASE_SECONDS,
                pool_use_lifo=True,  # statements are prepared in few sessions
            )
            event.listen(self.pool, "checkout", _require_connected)
        except ModuleNotFoundError:
            raise SettingsError("database: expected the extra 'postgres' to be installed, got no driver") from None
        try:
            self.resume()
        except DBAPIError as error:
            self.close()
            raise _describe_start(error, url.password) from None

    def close(self) -> None:
        self._release_lock()
        self.pool.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self.pool.connect() as connection:
            connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        with self._hold_write_lock():
            if self._owner is None:
                raise ConnectionError("the connection that owned the database was lost")
            try:
                with commit(self._owner) as connection:
                    yield connection
            finally:
                if self._owner.invalidated:
                    self._release_lock()

    def resume(self) -> None:
        with self._hold_write_lock():
            if self._owner is None:
                self._owner = self._take()

    def require_usable(self, connection: Connection) -> None:
        if (found := connection.scalar(text("SHOW server_encoding"))) != "UTF8":
            raise SettingsError(f"database: expected one with the encoding UTF8, got {found}")

    def save_backup(self, connection: Connection, newest: str) -> None:
        """Does nothing: the server's operator makes backups."""

    def create_tables(self, connection: Connection) -> str:
        """Creates all tables at once; the revisions up to 0010 are for SQLite files only."""
        METADATA.create_all(connection)
        return "head"

    def stamp_tables(self, connection: Connection) -> None:
        """Does nothing: the revision is the mark."""

    @contextmanager
    def _hold_write_lock(self) -> Iterator[None]:
        if not self._turn.acquire(timeout=DATABASE_SECONDS):
            raise TimeoutError("another transaction has not ended")
        try:
            yield
        finally:
            self._turn.release()

    def _take(self) -> Connection:
        """Returns a connection that holds the lock, also after a process that was just killed."""
        connection = self.pool.connect()
        try:
            with connection.begin():
                for key in (OWNER, TURN, ALONE):
                    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": key})
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        return connection

    def _release_lock(self) -> None:
        """Closes the connection, and releases the lock with it."""
        connection, self._owner = self._owner, None
        if connection is not None:
            with suppress(SQLAlchemyError):
                connection.invalidate()
                connection.close()


def _require_connected(driver: Any, record: object, borrowed: object) -> None:
    """Lets the pool replace its lost sessions."""
    del record, borrowed
    if not is_connected(driver):
        raise InvalidatePoolError


@contextmanager
def commit(connection: Connection) -> Iterator[Connection]:
    """Opens a transaction; raises LostCommitError if the connection breaks during its commit."""
    with connection.begin() as transaction:
        yield connection
        try:
            transaction.commit()
        except DBAPIError as error:
            if connection.invalidated:
                raise LostCommitError("the connection was lost") from error
            raise


def _describe_start(error: DBAPIError, password: Any) -> SettingsError | UnavailableError:
    """Describes a failed first connection by the first line of its message."""
    if type(error.orig).__name__ == "LockNotAvailable":
        return SettingsError("database: another aggregator is using it")
    words = str(error.orig).partition("\n")[0]
    if password:
        words = words.replace(str(password), "***")
    kind = SettingsError if "FATAL" in words else UnavailableError
    return kind(f"database: expected a server that takes this connection, got: {words}")
