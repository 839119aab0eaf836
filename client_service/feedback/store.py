"""Interactions and items that applications have told -> a database in the state directory, a transaction a call.

The rollback journal, and not a write-ahead log: who may only read the folder can read it too. Deleted rows are
overwritten with zeros, and an erasure ends in a compaction, so that no file holds what is erased.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from client_service.feedback.messages import InteractionIn, ItemIn, seconds_of
from shared.errors import ConflictError, DataError, UnavailableError

NAME = "feedback.sqlite"
VERSION = 2
BUSY_SECONDS = 10.0
MOST = 1_000_000  # interactions: some 400 MB of memory
ENDS = "SELECT coalesce(min(sequence), 1), coalesce(max(sequence), 0) FROM interactions"
TABLES = """
CREATE TABLE interactions (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL UNIQUE,
    user TEXT NOT NULL, item TEXT NOT NULL, time INTEGER NOT NULL, rating REAL
);
CREATE INDEX interactions_of_user ON interactions (user);
CREATE TABLE items (item TEXT PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE erased (mark BLOB PRIMARY KEY);
CREATE TABLE place (key BLOB NOT NULL, rewritten INTEGER NOT NULL);
"""
LATER_TABLES = f"""
CREATE TABLE erasures (receipt TEXT PRIMARY KEY, asked INTEGER NOT NULL, done INTEGER, mark BLOB);
CREATE TABLE stale (shard TEXT PRIMARY KEY);
ALTER TABLE place ADD COLUMN absorbed INTEGER NOT NULL DEFAULT 0;
PRAGMA user_version = {VERSION};
"""  # since version 2


@dataclass(frozen=True)
class LoggedInteraction:
    """One row. `time`: seconds since 1970, UTC."""

    sequence: int
    user: str
    item: str
    time: int
    rating: float | None


@dataclass(frozen=True)
class Told:
    """All but the interactions: what is known of items; marks of erased users, and the key that they are made with.

    `rewritten`: how often something was taken away or replaced, after which a reader begins anew. `absorbed`: how often
    a shard has absorbed what there was.
    """

    items: dict[str, ItemIn]
    erased: frozenset[bytes]
    key: bytes
    rewritten: int
    absorbed: int = 0


@dataclass(frozen=True)
class ErasureReceipt:
    """Of an erasure, without the id. `asked`, `done`: seconds since 1970, UTC; None: not yet."""

    receipt: str
    asked: int
    done: int | None


class FeedbackStore:
    """The database, open. `most`: interactions that it may hold; `writing` False: for a process that may only read."""

    def __init__(self, folder: Path, *, most: int = MOST, writing: bool = True) -> None:
        self.path, self._most, self._lock = folder / NAME, most, threading.Lock()
        mode = "rwc" if writing else "ro"
        try:
            self._rows = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            self._prepare(writing=writing)
        except sqlite3.Error as error:
            raise DataError(f"{self.path}: expected a database of interactions ({error})") from None

    def _prepare(self, *, writing: bool) -> None:
        (found,) = self._rows.execute("PRAGMA user_version").fetchone()
        if not 0 <= found <= VERSION:
            raise DataError(f"{self.path}: expected version {VERSION}, got {found}")
        if writing:
            self._rows.execute("PRAGMA journal_mode = DELETE")
            self._rows.execute("PRAGMA synchronous = EXTRA")
            self._rows.execute("PRAGMA secure_delete = ON")
        if writing and found < VERSION:
            self._rows.executescript(f"BEGIN; {'' if found else TABLES} {LATER_TABLES} COMMIT;")
        if writing and not found:
            with self._transaction():
                self._rows.execute("INSERT INTO place VALUES (?, 0, 0)", [secrets.token_bytes(32)])

    def close(self) -> None:
        with self._lock:
            self._rows.close()

    def append(self, interactions: Sequence[InteractionIn]) -> list[LoggedInteraction]:
        """Those whose event id is new, durable; ConflictError where the log would hold too many."""
        with self._transaction():
            last = self._require_room(len(interactions))
            now = time.time()
            self._rows.executemany(
                "INSERT OR IGNORE INTO interactions (event, user, item, time, rating) VALUES (?, ?, ?, ?, ?)",
                ((one.event, one.user, one.item, _seconds(one, now), one.rating) for one in interactions),
            )
            return list(self._select(last))

    def _require_room(self, more: int) -> int:
        """ConflictError where the log would hold too many; the last sequence number. Rows are counted only where the
        numbers say that there may be too many, because that looks at all of them."""
        first, last = self._rows.execute(ENDS).fetchone()
        if last - first + 1 + more > self._most:
            (held,) = self._rows.execute("SELECT count(*) FROM interactions").fetchone()
            if held + more > self._most:
                words = f"expected at most {self._most} interactions since the shard was written, there are {held}"
                raise ConflictError(f"{words}: let the shard absorb them")
        return int(last)

    def interactions(self, after: int = 0) -> list[LoggedInteraction]:
        """Those with a higher sequence number, in its order."""
        with self._errors(), self._lock:
            return list(self._select(after))

    def _select(self, after: int) -> Iterator[LoggedInteraction]:
        rows = self._rows.execute(
            "SELECT sequence, user, item, time, rating FROM interactions WHERE sequence > ? ORDER BY sequence", [after]
        )
        return (LoggedInteraction(*row) for row in rows)

    def read_told(self) -> Told:
        """What else is known at this moment."""
        with self._errors(), self._lock:
            items = list(self._rows.execute("SELECT rowid, item, CAST(facts AS BLOB) FROM items"))
            marks = frozenset(mark for (mark,) in self._rows.execute("SELECT mark FROM erased"))
            place = self._rows.execute("SELECT key, rewritten, absorbed FROM place").fetchone()
        facts = {item: self._read_facts(row, text) for row, item, text in items}
        return Told(facts, marks, *place)

    def _read_facts(self, row: int, text: bytes) -> ItemIn:
        """DataError for a row that is damaged, which does not say what it holds."""
        try:
            return ItemIn.model_validate_json(text)
        except ValidationError:
            expected = f"expected facts of an item in row {row} of the table of items"
            raise DataError(f"{self.path}: {expected}, got something else") from None

    def count_rewritten(self) -> int:
        """How often something was taken away or replaced."""
        with self._errors(), self._lock:
            (found,) = self._rows.execute("SELECT rewritten FROM place").fetchone()
            return int(found)

    def put_item(self, item: str, facts: ItemIn) -> None:
        """Replace what is known of an item; ConflictError for one more than the log may hold."""
        with self._transaction():
            (others,) = self._rows.execute("SELECT count(*) FROM items WHERE item <> ?", [item]).fetchone()
            if others >= self._most:
                raise ConflictError(f"expected at most {self._most} items, got one more")
            self._rows.execute("INSERT OR REPLACE INTO items VALUES (?, ?)", [item, facts.model_dump_json()])
            self._rows.execute("UPDATE place SET rewritten = rewritten + 1")

    def erase_user(self, user: str, *, marked: bool) -> tuple[int, ErasureReceipt]:
        """Take a user's interactions away, from the file too; how many they were, and a receipt for it all.

        `marked`: the shard has this user, and must not be asked any more. The erasure is done once it has forgotten.
        """
        receipt, now = secrets.token_hex(16), int(time.time())
        with self._transaction():
            gone = self._rows.execute("DELETE FROM interactions WHERE user = ?", [user]).rowcount
            (key,) = self._rows.execute("SELECT key FROM place").fetchone()
            mark = mark_of(user, key)
            if marked:
                self._rows.execute("INSERT OR IGNORE INTO erased VALUES (?)", [mark])
            waits = self._rows.execute("SELECT 1 FROM erased WHERE mark = ?", [mark]).fetchone() is not None
            row = [receipt, now, None if waits else now, mark if waits else None]
            self._rows.execute("INSERT INTO erasures VALUES (?, ?, ?, ?)", row)
            self._rows.execute("UPDATE place SET rewritten = rewritten + 1")
        self._compact()
        return gone, ErasureReceipt(receipt, now, None if waits else now)

    def read_receipt(self, receipt: str) -> ErasureReceipt | None:
        """None for one that this silo has not given."""
        with self._errors(), self._lock:
            row = self._rows.execute("SELECT receipt, asked, done FROM erasures WHERE receipt = ?", [receipt])
            found = row.fetchone()
        return None if found is None else ErasureReceipt(*found)

    def holds_liked(self, count: int, least_rating: float) -> bool:
        """Are there so many interactions that a shard would absorb?"""
        with self._errors(), self._lock:
            first, last = self._rows.execute(ENDS).fetchone()
            if last - first + 1 < count:  # without looking at all of them
                return False
            liked = "SELECT count(*) FROM interactions WHERE rating IS NULL OR rating >= ?"
            (found,) = self._rows.execute(liked, [least_rating]).fetchone()
            return bool(found >= count)

    def has_open_erasures(self) -> bool:
        """Are there some that are not done?"""
        with self._errors(), self._lock:
            return self._rows.execute("SELECT 1 FROM erasures WHERE done IS NULL").fetchone() is not None

    def note_stale(self, shard: str) -> None:
        """What was computed from this content of the shard, by its digest, is to be removed."""
        with self._transaction():
            self._rows.execute("INSERT OR IGNORE INTO stale VALUES (?)", [shard])

    def read_stale(self) -> tuple[str, ...]:
        """Digests of shards of which something may be left."""
        with self._errors(), self._lock:
            return tuple(shard for (shard,) in self._rows.execute("SELECT shard FROM stale"))

    def complete_erasures(self, stale: Iterable[str]) -> int:
        """Nothing of these shards is left: erasures of whom the shard has no more are done. How many became so."""
        with self._transaction():
            self._rows.executemany("DELETE FROM stale WHERE shard = ?", ([shard] for shard in stale))
            done = (
                "UPDATE erasures SET done = ?, mark = NULL WHERE done IS NULL AND mark NOT IN (SELECT mark FROM erased)"
            )
            count = self._rows.execute(done, [int(time.time())]).rowcount
        if count:
            self._compact()
        return count

    def forget_absorbed(self, upto: int, least_rating: float, marks: Iterable[bytes]) -> None:
        """Take away what the shard holds now, or holds no more; later and lower interactions stay."""
        with self._transaction():
            self._rows.execute(
                "DELETE FROM interactions WHERE sequence <= ? AND (rating IS NULL OR rating >= ?)", [upto, least_rating]
            )
            self._rows.executemany("DELETE FROM erased WHERE mark = ?", ([mark] for mark in marks))
            self._rows.execute("UPDATE place SET rewritten = rewritten + 1, absorbed = absorbed + 1")
        self._compact()

    def _compact(self) -> None:
        with self._errors(), self._lock:
            self._rows.execute("VACUUM")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors(), self._lock:
            self._rows.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._rows.execute("COMMIT")
            except BaseException:
                if self._rows.in_transaction:
                    self._rows.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """No message of the database leaves here: one may quote a row."""
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", type(error).__name__)  # what Python itself raises has none
            raise UnavailableError(f"the log of interactions cannot be used now ({name})") from None


def mark_of(user: str, key: bytes) -> bytes:
    """What stands for an erased user: without the key it tells nothing, with it whether it is somebody."""
    return hashlib.blake2b(user.encode(), key=key, digest_size=32).digest()


def _seconds(one: InteractionIn, now: float) -> int:
    return int(now) if one.time is None else seconds_of(one.time)
