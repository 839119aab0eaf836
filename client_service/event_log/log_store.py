"""Store of erasures and outdated shards, common to the event logs of all tasks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Generic, TypeVar

from client_service.event_log.database import ErasureReceipt, EventDatabase, hash_user

S = TypeVar("S")
MOST_RECEIPTS = 100_000  # of erasures that are done: some 10 MB
KEPT_DAYS = 400  # for which the receipt of a done erasure is known: longer than a yearly report needs
OLDEST_RECEIPTS = "SELECT receipt FROM erasures WHERE done IS NOT NULL ORDER BY done DESC, rowid DESC LIMIT -1 OFFSET ?"
FORGOTTEN = "done IS NULL AND (mark IS NULL OR mark NOT IN (SELECT mark FROM erased))"


class ErasureRegister:
    """Register of erased users and of receipts without their ids.

    remove: deletes an id from the log's rows; it returns how many rows, and whether a shard that is being written may
    have some.
    """

    def __init__(self, database: EventDatabase, remove: Callable[[Connection, str], tuple[int, bool]]) -> None:
        self._database, self._remove = database, remove

    def erase_user(self, user: str, *, known: bool) -> tuple[int, ErasureReceipt]:
        """Deletes a user or a node from the log; returns the rows and a receipt.

        The receipt is not done yet. known: the shard has this user, or may have. The user is marked then, and also
        where deleted rows were read for a shard that is being written. A later erasure of the same user is marked
        anew: a shard that was to forget the earlier one may have taken in what came in between. While the earlier one
        waits, both have its receipt, so that no more wait than the shard has users.
        """
        receipt, now = secrets.token_hex(16), int(time.time())
        with self._database.transaction() as rows:
            (key,) = rows.execute("SELECT key FROM place").fetchone()
            gone, handed = self._remove(rows, user)
            rows.execute("UPDATE place SET rewritten = rewritten + 1, loose = max(loose, ?)", [gone > 0])
            mark = hash_user(user, key)
            if known or handed:
                rows.execute("INSERT OR REPLACE INTO erased SELECT ?, rewritten FROM place", [mark])
            waits = rows.execute("SELECT 1 FROM erased WHERE mark = ?", [mark]).fetchone() is not None
            open_one = "SELECT receipt, asked FROM erasures WHERE done IS NULL AND mark = ?"
            if waits and (same := rows.execute(open_one, [mark]).fetchone()) is not None:
                receipt, now = same
            else:
                rows.execute("INSERT INTO erasures VALUES (?, ?, NULL, ?)", [receipt, now, mark if waits else None])
        return gone, ErasureReceipt(receipt, now, None)

    def read_receipt(self, receipt: str) -> ErasureReceipt | None:
        """Reads a receipt; None for an unknown or a forgotten one."""
        with self._database.reading() as rows:
            found = rows.execute("SELECT receipt, asked, done FROM erasures WHERE receipt = ?", [receipt]).fetchone()
        return None if found is None else ErasureReceipt(*found)

    def has_open(self) -> bool:
        """Checks if some erasures are not done."""
        with self._database.reading() as rows:
            return rows.execute("SELECT 1 FROM erasures WHERE done IS NULL").fetchone() is not None

    def complete_unknown(self) -> int:
        """Completes erasures of ids that no shard had, and counts them.

        UnavailableError if the log's file cannot be compacted now.
        """
        self._database.compact()
        with self._database.transaction() as rows:
            return _complete(rows, "done IS NULL AND mark IS NULL")

    def complete(self) -> int:
        """Completes erasures of ids that no shard has any more, and counts them.

        No file may be left that was computed from an earlier shard.
        """
        self._database.compact()
        with self._database.transaction() as rows:
            count = _complete(rows, FORGOTTEN)
            rows.execute("UPDATE place SET loose = 1 WHERE ?", [count])  # of their marks
        self._database.compact()
        return count


def _complete(rows: Connection, which: str) -> int:
    """Sets erasures as done, and counts them.

    Old receipts are deleted, and the oldest of very many.
    """
    now = int(time.time())
    count = rows.execute(f"UPDATE erasures SET done = ?, mark = NULL WHERE {which}", [now]).rowcount
    rows.execute("DELETE FROM erasures WHERE done < ?", [now - KEPT_DAYS * 86_400])
    if rows.execute("SELECT count(*) FROM erasures").fetchone()[0] > MOST_RECEIPTS:
        rows.execute(f"DELETE FROM erasures WHERE receipt IN ({OLDEST_RECEIPTS})", [MOST_RECEIPTS])
    return count


@dataclass(frozen=True)
class MergeResult(Generic[S]):
    """Result of a merge of the log into a shard.

    before, after: the shard; the same object if nothing changed. batch: what was read from the log. kept: events that
    stay in the log, by sequence number or id. waiting: number of events that wait, for example for items that the
    federation's catalogue does not list. dropped: number of waiting events without room in the log. forgotten: number
    of users or nodes that were erased from the shard.
    """

    before: S
    after: S
    batch: Any
    kept: Sequence[Any]
    waiting: int
    dropped: int
    forgotten: int


class LogStore:
    """Store of an event log: erasures, and shards of which files may be left.

    `writing` False: for a process that may only read.
    """

    def __init__(
        self, folder: Path, remove: Callable[[Connection, str], tuple[int, bool]], *, writing: bool = True
    ) -> None:
        self._database = EventDatabase(folder, writing=writing)
        self.path, self.erasures = self._database.path, ErasureRegister(self._database, remove)
        self.change_number = self._database.change_number  # a function: its result differs after every write
        self.count_changes = self._database.count_changes

    def close(self) -> None:
        self._database.close()

    def has_new_events(self, count: int, least_rating: float) -> bool:
        """Checks if at least `count` new events wait to be absorbed."""
        raise NotImplementedError

    def delete_absorbed(self, batch: Any, shard: str, kept: Iterable[Any]) -> None:
        """Deletes all events that a shard has absorbed, except `kept`.

        shard: its digest.
        """
        raise NotImplementedError

    def add_stale_shards(self, *shards: str) -> None:
        """Records digests of shards whose derived files are to be removed."""
        with self._database.transaction() as rows:
            rows.executemany("INSERT OR IGNORE INTO stale VALUES (?)", ([shard] for shard in shards))

    def list_stale_shards(self) -> tuple[str, ...]:
        """Lists the digests of shards that may have files left."""
        with self._database.reading() as rows:
            return tuple(shard for (shard,) in rows.execute("SELECT shard FROM stale"))

    def remove_stale_shards(self, shards: Iterable[str]) -> None:
        """Removes digests of shards without files."""
        with self._database.transaction() as rows:
            rows.executemany("DELETE FROM stale WHERE shard = ?", ([shard] for shard in shards))

    def compact(self) -> None:
        """Compacts the database, so that no file has deleted rows.

        Raises UnavailableError if the disk does not allow that.
        """
        self._database.compact()


def record_absorbed(rows: Connection, upto: int, rewritten: int, shard: str) -> None:
    """Records that the shard of a digest has absorbed the log.

    upto: last absorbed number. rewritten: the counter when it was read; marks of erasures up to it are deleted.
    """
    forgotten = [rewritten]
    (last,) = rows.execute("SELECT max(number) FROM erased WHERE number <= ?", forgotten).fetchone()
    rows.execute("DELETE FROM erased WHERE number <= ?", forgotten)
    rows.execute(
        "UPDATE place SET looked = max(looked, ?), shard = ?, handed = iif(handed <= ?, 0, handed), "
        "forgotten = coalesce(?, forgotten), rewritten = rewritten + 1, absorbed = absorbed + 1, loose = 1",
        [upto, shard, upto, last],
    )
