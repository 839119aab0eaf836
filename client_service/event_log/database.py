"""SQLite database of posted events: schema, versions and transactions."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from client_service.data.ids import normalise_id
from client_service.event_log.messages import ItemIn
from shared.errors import DataError, UnavailableError
from shared.files import make_private_folder

EVENT_BYTES, USER_BYTES = 16, 32


@dataclass(frozen=True)
class LoggedInteraction:
    """Posted interaction as the log has it.

    `time`: seconds since 1970, UTC.
    """

    sequence: int
    user: str
    item: str
    time: int
    rating: float | None


@dataclass(frozen=True)
class LogSnapshot:
    """Snapshot of the log without interactions: item metadata, erased users, counters.

    items: metadata of items that were posted. erased: marks of erased users, made with `key`. rewritten: how often
    interactions were deleted, after which a reader reads all again. forgotten: its value at the last erasure whose
    mark was deleted, because the shard has no such user any more. absorbed: how often a shard has absorbed the log;
    shard: digest of the last that did, "" before. changed: version of the items, which grows with each post; -1: not
    read.
    """

    items: dict[str, ItemIn] = field(default_factory=dict)
    erased: frozenset[bytes] = frozenset()
    key: bytes = b""
    rewritten: int = 0
    absorbed: int = 0
    shard: str = ""
    changed: int = -1
    forgotten: int = 0

    def erases(self, user: str) -> bool:
        """Tells whether a user is erased, by either spelling of the id."""
        marks = {hash_user(one, self.key) for one in (user, normalise_id(user))} if self.erased else set()
        return not marks.isdisjoint(self.erased)


@dataclass(frozen=True)
class AbsorbedBatch:
    """Content of the log that a shard is to absorb.

    `upto`: last sequence number that any interaction had by then.
    """

    interactions: list[LoggedInteraction]
    snapshot: LogSnapshot
    upto: int


@dataclass(frozen=True)
class ErasureReceipt:
    """Receipt of an erasure, without the id.

    `asked`, `done`: seconds since 1970, UTC; None: not yet.
    """

    receipt: str
    asked: int
    done: int | None


def hash_user(user: str, key: bytes) -> bytes:
    """Computes the mark of an erased user.

    Without the key the mark reveals nothing. With the key it can be compared with the mark of a given id.
    """
    return hashlib.blake2b(user.encode(), key=key, digest_size=USER_BYTES).digest()


def hash_event(event: str, key: bytes) -> bytes:
    """Computes the mark of an event's id, which may contain a user's."""
    return hashlib.blake2b(event.encode(), key=key, digest_size=EVENT_BYTES, person=b"event").digest()


FOLDER = "feedback"  # of the state directory: a replica elsewhere is given it, and not the ledger and the keys beside
EARLIER_NAME = "feedback.sqlite"  # where earlier versions kept it
NAME = f"{FOLDER}/{EARLIER_NAME}"
# Ending of an earlier version's rollback journal, which stays if a process was killed in a transaction.
JOURNAL = "-journal"
WRITE_AHEAD_LOG = "-wal"  # ending of the write-ahead log beside the file: writes not yet moved into it
VERSION = 3
PRAGMAS = ("journal_mode = WAL", "synchronous = EXTRA", "secure_delete = ON", "temp_store = MEMORY")
BUSY_SECONDS = 10.0
KEY_BYTES = 32
READER_CACHE = 512  # KiB of pages that the reading connection caches
TABLES = """
CREATE TABLE interactions (
    sequence INTEGER PRIMARY KEY, user TEXT NOT NULL, item TEXT NOT NULL, time INTEGER NOT NULL, rating REAL
);
CREATE INDEX interactions_of_user ON interactions (user);
CREATE TABLE accepted (event BLOB PRIMARY KEY, sequence INTEGER NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE items (item TEXT PRIMARY KEY, facts TEXT NOT NULL, changed INTEGER NOT NULL);
CREATE INDEX items_changed ON items (changed);
CREATE TABLE erased (mark BLOB PRIMARY KEY, number INTEGER NOT NULL);
CREATE TABLE erasures (receipt TEXT PRIMARY KEY, asked INTEGER NOT NULL, done INTEGER, mark BLOB);
CREATE TABLE stale (shard TEXT PRIMARY KEY);
CREATE TABLE place (
    key BLOB NOT NULL, last INTEGER NOT NULL DEFAULT 0, held INTEGER NOT NULL DEFAULT 0,
    handed INTEGER NOT NULL DEFAULT 0, looked INTEGER NOT NULL DEFAULT 0, rewritten INTEGER NOT NULL DEFAULT 0,
    absorbed INTEGER NOT NULL DEFAULT 0, shard TEXT NOT NULL DEFAULT '', told INTEGER NOT NULL DEFAULT 0,
    changed INTEGER NOT NULL DEFAULT 0, forgotten INTEGER NOT NULL DEFAULT 0,
    loose INTEGER NOT NULL DEFAULT 0
);
"""
"""place, one row: `last` sequence number; interactions `held`; up to which one a shard may have them (`handed`), up to
which one has looked (`looked`); items `told` of; is the file to be compacted (`loose`)?
The others: see `LogSnapshot`."""
EARLIER_TABLES = ("interactions", "items", "erased", "erasures", "stale", "place")
MIGRATION = """
INSERT INTO interactions SELECT sequence, user, item, time, rating FROM earlier_interactions;
INSERT INTO accepted
    SELECT hash_event(event), sequence, CAST(strftime('%s', 'now') AS INTEGER) FROM earlier_interactions;
INSERT INTO items SELECT item, facts, 0 FROM earlier_items;
INSERT INTO erased SELECT mark, 0 FROM earlier_erased;
INSERT INTO place (key, last, held, told) SELECT
    key, (SELECT coalesce(max(sequence), 0) FROM interactions), (SELECT count(*) FROM interactions),
    (SELECT count(*) FROM items) FROM earlier_place;
"""


class EventDatabase:
    """Open database of posted events.

    writing: False for a process that only reads. Raises DataError for another file or version.
    """

    def __init__(self, folder: Path, *, writing: bool) -> None:
        self.path, self._lock = folder / NAME, threading.Lock()
        self._reader_lock = threading.Lock()
        try:
            if writing:
                _prepare_folder(folder)
            self._rows = self._connect("rwc" if writing else "ro")
            self._prepare(writing=writing)
            self._reader = self._connect("ro")  # a read of its own never waits for a write of this process
            self._reader.execute(f"PRAGMA cache_size = -{READER_CACHE}")
            # A connection of its own, so that `change_number` never waits for a read.
            self._watcher_lock, self._watcher = threading.Lock(), self._connect("ro")
        except sqlite3.Error as error:
            raise DataError(f"{self.path}: expected a database of interactions ({_error_name(error)})") from None
        except OSError as error:
            raise DataError(f"{self.path}: expected a folder for the log of interactions ({error.strerror})") from None

    def close(self) -> None:
        with self._lock, self._reader_lock, self._watcher_lock:
            self._watcher.close()
            self._reader.close()
            self._rows.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Opens a transaction that only reads, on a consistent snapshot.

        No other process changes what it reads before it ends.
        """
        with self._translate_errors(), self._reader_lock, _open_transaction(self._reader, "BEGIN"):
            yield self._reader

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Opens a transaction that writes: all or nothing, durable once it ends."""
        with self._translate_errors(), self._lock, _open_transaction(self._rows, "BEGIN IMMEDIATE"):
            yield self._rows

    def count_changes(self) -> tuple[int, int]:
        """Reads `rewritten` and `changed`: see `LogSnapshot`."""
        with self.reading() as rows:
            rewritten, changed = rows.execute("SELECT rewritten, changed FROM place").fetchone()
            return rewritten, changed

    def change_number(self) -> int:
        """Returns a number that changes with every write of any process.

        A call takes some 3 microseconds.
        """
        try:
            with self._watcher_lock:  # a connection that one thread uses must not be closed by another
                (found,) = self._watcher.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error as error:
            raise _unavailable(error) from None
        return int(found)

    def compact(self) -> None:
        """Removes the remains of deleted rows from the files.

        Raises UnavailableError if that cannot be done now.
        """
        with self._translate_errors(), self._lock:
            (loose,) = self._rows.execute("SELECT loose FROM place").fetchone()
            if loose:
                self._rows.execute("VACUUM")
                self._empty_log()
                self._rows.execute("UPDATE place SET loose = 0")

    def _empty_log(self) -> None:
        """Moves the write-ahead log into the file and truncates the log."""
        (busy, _, _) = self._rows.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise UnavailableError("the log of interactions cannot be compacted now: another process is reading it")

    def _prepare(self, *, writing: bool) -> None:
        (found,) = self._rows.execute("PRAGMA user_version").fetchone()
        if not 0 <= found <= VERSION or (found < VERSION and not writing):
            raise DataError(f"{self.path}: expected version {VERSION}, got {found}")
        if not writing:
            return
        for pragma in PRAGMAS:
            self._rows.execute(f"PRAGMA {pragma}")
        if found < VERSION:
            with _open_transaction(self._rows, "BEGIN IMMEDIATE"):
                # Another process may have migrated the file meanwhile.
                (found,) = self._rows.execute("PRAGMA user_version").fetchone()
                if 0 < found < VERSION:
                    self._migrate()
                elif not found:
                    self._create_tables()
                self._rows.execute(f"PRAGMA user_version = {VERSION}")
        if self._rows.execute("SELECT count(*) FROM place").fetchone() != (1,):
            raise DataError(f"{self.path}: expected one row in the table place, got another number: put a copy back")
        self._respell_ids()

    def _respell_ids(self) -> None:
        """Normalises ids that an earlier version stored in another spelling."""
        self._rows.create_function("spelled", 1, normalise_id, deterministic=True)
        self._rows.create_function("is_spelled", 1, lambda text: normalise_id(text) == text, deterministic=True)
        with _open_transaction(self._rows, "BEGIN IMMEDIATE"):
            for table, column in (("interactions", "user"), ("interactions", "item"), ("items", "item")):
                odd = f"({column} GLOB '*.0' OR {column} GLOB '*[^!-~]*') AND NOT is_spelled({column})"
                self._rows.execute(f"UPDATE OR IGNORE {table} SET {column} = spelled({column}) WHERE {odd}")

    def _create_tables(self) -> None:
        self._execute_statements(TABLES)
        self._rows.execute("INSERT INTO place (key) VALUES (?)", [secrets.token_bytes(KEY_BYTES)])

    def _migrate(self) -> None:
        """Migrates the tables of an earlier version, which stored ids of events unhashed."""
        names = {name for (name,) in self._rows.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        old = [name for name in EARLIER_TABLES if name in names]
        (key,) = self._rows.execute("SELECT key FROM place").fetchone()
        self._rows.create_function("hash_event", 1, partial(hash_event, key=key))
        self._rows.execute("DROP INDEX interactions_of_user")
        self._execute_statements(
            "".join(f"ALTER TABLE {name} RENAME TO earlier_{name};" for name in old) + TABLES + MIGRATION
        )
        for name in {"erasures", "stale"} & names:
            self._rows.execute(f"INSERT INTO {name} SELECT * FROM earlier_{name}")
        self._execute_statements("".join(f"DROP TABLE earlier_{name};" for name in old) + "UPDATE place SET loose = 1;")

    def _execute_statements(self, script: str) -> None:
        """Runs statements within the open transaction, which `executescript` would end."""
        for statement in filter(str.strip, script.split(";")):
            self._rows.execute(statement)

    def _connect(self, mode: str) -> sqlite3.Connection:
        address = f"{self.path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raises UnavailableError instead of errors of SQLite, whose messages may quote a row."""
        try:
            yield
        except sqlite3.Error as error:
            raise _unavailable(error) from None


def _unavailable(error: sqlite3.Error) -> UnavailableError:
    return UnavailableError(f"the log of interactions cannot be used now ({_error_name(error)})")


@contextmanager
def _open_transaction(rows: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Commits a transaction at its end, or rolls it back after an error."""
    rows.execute(begin)
    try:
        yield
        rows.execute("COMMIT")
    except BaseException:
        if rows.in_transaction:
            rows.execute("ROLLBACK")
        raise


def has_log(folder: Path) -> bool:
    """Tells whether a state directory has a log of this or an earlier version."""
    return (folder / NAME).is_file() or (folder / EARLIER_NAME).is_file()


def _prepare_folder(folder: Path) -> None:
    """Makes the folder, and moves the files of an earlier version into it.

    The journal first: without it the rows of a process that was killed are not complete.
    """
    make_private_folder(folder / FOLDER)
    for end in (JOURNAL, ""):
        earlier = folder / f"{EARLIER_NAME}{end}"
        if earlier.is_file() and not (folder / NAME).exists():
            with suppress(FileNotFoundError):  # another process has moved it already
                earlier.replace(folder / f"{NAME}{end}")


def _error_name(error: sqlite3.Error) -> str:
    """Returns SQLite's name of an error, or the name of its class."""
    return str(getattr(error, "sqlite_errorname", type(error).__name__))
