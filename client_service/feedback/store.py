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

from client_service.feedback.messages import InteractionIn, ItemIn
from shared.errors import ConflictError, DataError, UnavailableError

NAME = "feedback.sqlite"
VERSION = 1
BUSY_SECONDS = 10.0
MOST = 1_000_000  # interactions: some 400 MB of memory
TABLES = f"""
CREATE TABLE interactions (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL UNIQUE,
    user TEXT NOT NULL, item TEXT NOT NULL, time INTEGER NOT NULL, rating REAL
);
CREATE INDEX interactions_of_user ON interactions (user);
CREATE TABLE items (item TEXT PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE erased (mark BLOB PRIMARY KEY);
CREATE TABLE place (key BLOB NOT NULL, rewritten INTEGER NOT NULL);
PRAGMA user_version = {VERSION};
"""


@dataclass(frozen=True)
class Interaction:
    """One row. `time`: seconds since 1970, UTC."""

    sequence: int
    user: str
    item: str
    time: int
    rating: float | None


@dataclass(frozen=True)
class Told:
    """All but the interactions: what is known of items; marks of erased users, and the key that they are made with.

    `rewritten`: how often something was taken away or replaced, after which a reader begins anew.
    """

    items: dict[str, ItemIn]
    erased: frozenset[bytes]
    key: bytes
    rewritten: int


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
        if found not in (0, VERSION):
            raise DataError(f"{self.path}: expected version {VERSION}, got {found}")
        if writing:
            self._rows.execute("PRAGMA journal_mode = DELETE")
            self._rows.execute("PRAGMA synchronous = EXTRA")
            self._rows.execute("PRAGMA secure_delete = ON")
        if writing and not found:
            self._rows.executescript(f"BEGIN; {TABLES} COMMIT;")
            with self._transaction():
                self._rows.execute("INSERT INTO place VALUES (?, 0)", [secrets.token_bytes(32)])

    def close(self) -> None:
        with self._lock:
            self._rows.close()

    def append(self, interactions: Sequence[InteractionIn]) -> list[Interaction]:
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
        ends = "SELECT coalesce(min(sequence), 1), coalesce(max(sequence), 0) FROM interactions"
        first, last = self._rows.execute(ends).fetchone()
        if last - first + 1 + more > self._most:
            (held,) = self._rows.execute("SELECT count(*) FROM interactions").fetchone()
            if held + more > self._most:
                words = f"expected at most {self._most} interactions since the shard was written, there are {held}"
                raise ConflictError(f"{words}: let the shard absorb them")
        return int(last)

    def interactions(self, after: int = 0) -> list[Interaction]:
        """Those with a higher sequence number, in its order."""
        with self._errors(), self._lock:
            return list(self._select(after))

    def _select(self, after: int) -> Iterator[Interaction]:
        rows = self._rows.execute(
            "SELECT sequence, user, item, time, rating FROM interactions WHERE sequence > ? ORDER BY sequence", [after]
        )
        return (Interaction(*row) for row in rows)

    def read_told(self) -> Told:
        """What else is known at this moment."""
        with self._errors(), self._lock:
            items = dict(self._rows.execute("SELECT item, facts FROM items"))
            marks = frozenset(mark for (mark,) in self._rows.execute("SELECT mark FROM erased"))
            key, rewritten = self._rows.execute("SELECT key, rewritten FROM place").fetchone()
        facts = {item: ItemIn.model_validate_json(text) for item, text in items.items()}
        return Told(facts, marks, key, rewritten)

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

    def erase_user(self, user: str, *, marked: bool) -> int:
        """Take a user's interactions away, from the file too; how many they were. `marked`: the shard has this user,
        and must not be asked any more."""
        with self._transaction():
            gone = self._rows.execute("DELETE FROM interactions WHERE user = ?", [user]).rowcount
            (key,) = self._rows.execute("SELECT key FROM place").fetchone()
            if marked:
                self._rows.execute("INSERT OR IGNORE INTO erased VALUES (?)", [mark_of(user, key)])
            self._rows.execute("UPDATE place SET rewritten = rewritten + 1")
        self._compact()
        return gone

    def forget_absorbed(self, upto: int, least_rating: float, marks: Iterable[bytes]) -> None:
        """Take away what the shard holds now, or holds no more; later and lower interactions stay."""
        with self._transaction():
            self._rows.execute(
                "DELETE FROM interactions WHERE sequence <= ? AND (rating IS NULL OR rating >= ?)", [upto, least_rating]
            )
            self._rows.executemany("DELETE FROM erased WHERE mark = ?", ([mark] for mark in marks))
            self._rows.execute("UPDATE place SET rewritten = rewritten + 1")
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
            raise UnavailableError(f"the log of interactions cannot be used now ({error.sqlite_errorname})") from None


def mark_of(user: str, key: bytes) -> bytes:
    """What stands for an erased user: without the key it tells nothing, with it whether it is somebody."""
    return hashlib.blake2b(user.encode(), key=key, digest_size=32).digest()


def _seconds(one: InteractionIn, now: float) -> int:
    return int(now if one.time is None else one.time.timestamp())
