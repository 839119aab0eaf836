"""Who is erased -> the interactions are gone, a mark stays until the shard has forgotten the user, and a receipt tells.

An erasure is done once three things are so: the log has nothing of the user, the log's file has been compacted, and no
shard that the silo has, or is writing at the moment, holds the user.
"""

from __future__ import annotations

import secrets
import time
from sqlite3 import Connection

from client_service.feedback.database import FeedbackDatabase
from client_service.feedback.told import ErasureReceipt, mark_of

MOST_RECEIPTS = 100_000  # of erasures that are done: some 10 MB
KEPT_DAYS = 400  # for which a receipt of one that is done is known: whoever reports by the year has it
BEYOND = "SELECT receipt FROM erasures WHERE done IS NOT NULL ORDER BY done DESC, rowid DESC LIMIT -1 OFFSET ?"
FORGOTTEN = "done IS NULL AND (mark IS NULL OR mark NOT IN (SELECT mark FROM erased))"


class ErasureRegister:
    """Marks of erased users, and receipts without their ids."""

    def __init__(self, database: FeedbackDatabase) -> None:
        self._database = database

    def erase_user(self, user: str, *, known: bool) -> tuple[int, ErasureReceipt]:
        """Take a user's interactions away; how many they were, and a receipt for it all, which is not done yet.

        known: the shard has this user, or may have. He is marked then, and also where what is taken away has been
        handed to a shard that is being written. A later erasure of the same user is marked anew: a shard that was to
        forget the earlier one may have taken in what came in between. While the earlier one waits, both have its
        receipt, so that no more wait than the shard has users.
        """
        receipt, now = secrets.token_hex(16), int(time.time())
        with self._database.transaction() as rows:
            key, handed = rows.execute("SELECT key, handed FROM place").fetchone()
            (first,) = rows.execute("SELECT min(sequence) FROM interactions WHERE user = ?", [user]).fetchone()
            gone = rows.execute("DELETE FROM interactions WHERE user = ?", [user]).rowcount
            rows.execute(
                "UPDATE place SET held = held - ?, rewritten = rewritten + 1, loose = max(loose, ?)", [gone, gone > 0]
            )
            mark = mark_of(user, key)
            if known or (first is not None and first <= handed):
                rows.execute("INSERT OR REPLACE INTO erased SELECT ?, rewritten FROM place", [mark])
            waits = rows.execute("SELECT 1 FROM erased WHERE mark = ?", [mark]).fetchone() is not None
            open_one = "SELECT receipt, asked FROM erasures WHERE done IS NULL AND mark = ?"
            if waits and (same := rows.execute(open_one, [mark]).fetchone()) is not None:
                receipt, now = same
            else:
                rows.execute("INSERT INTO erasures VALUES (?, ?, NULL, ?)", [receipt, now, mark if waits else None])
        return gone, ErasureReceipt(receipt, now, None)

    def read_receipt(self, receipt: str) -> ErasureReceipt | None:
        """None for one that this silo has not given, or that it has forgotten."""
        with self._database.reading() as rows:
            found = rows.execute("SELECT receipt, asked, done FROM erasures WHERE receipt = ?", [receipt]).fetchone()
        return None if found is None else ErasureReceipt(*found)

    def are_open(self) -> bool:
        """Are there some that are not done?"""
        with self._database.reading() as rows:
            return rows.execute("SELECT 1 FROM erasures WHERE done IS NULL").fetchone() is not None

    def complete_unmarked(self) -> int:
        """Compact the log's file: erasures of whom no shard had are done. How many became so. UnavailableError where
        the file cannot be compacted now."""
        self._database.compact()
        with self._database.transaction() as rows:
            return _complete(rows, "done IS NULL AND mark IS NULL")

    def complete(self) -> int:
        """Likewise, and no file is left that was computed from what the shard was: erasures of whom the shard has no
        more are done too."""
        self._database.compact()
        with self._database.transaction() as rows:
            count = _complete(rows, FORGOTTEN)
            rows.execute("UPDATE place SET loose = 1 WHERE ?", [count])  # of their marks
        self._database.compact()
        return count


def _complete(rows: Connection, which: str) -> int:
    """How many are done now. Receipts of those that were done long ago go, and the oldest of very many."""
    now = int(time.time())
    count = rows.execute(f"UPDATE erasures SET done = ?, mark = NULL WHERE {which}", [now]).rowcount
    rows.execute("DELETE FROM erasures WHERE done < ?", [now - KEPT_DAYS * 86_400])
    if rows.execute("SELECT count(*) FROM erasures").fetchone()[0] > MOST_RECEIPTS:
        rows.execute(f"DELETE FROM erasures WHERE receipt IN ({BEYOND})", [MOST_RECEIPTS])
    return count
