"""The nonces of signed requests -> each of them once, for as long as its signature is young enough to be believed.

They lie in a database of their own beside the aggregator's, so that a restart forgets none. A commit here is with the
operating system when it returns, and not yet on the disk: every request makes one, a poll too, and waiting for the disk
would take two hundred times as long. The end of the process, however sudden, loses nothing. A power cut may lose the
last moments; what came in these could be repeated once the machine is back, if that is within the window.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from aggregator_service.storage.disk import Disk
from shared.errors import UnavailableError
from shared.timeouts import NONCE_SECONDS

NAME = "nonces.sqlite"
MOST = 10_000  # of one client that are remembered: a client that asks too much shuts out itself alone
WAITING = f"PRAGMA busy_timeout={NONCE_SECONDS * 1000:.0f}"
PRAGMAS = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", WAITING)
TABLE = """CREATE TABLE IF NOT EXISTS nonces (
    client TEXT NOT NULL, nonce TEXT NOT NULL, until REAL NOT NULL, PRIMARY KEY (client, nonce)) WITHOUT ROWID"""
BY_TIME = "CREATE INDEX IF NOT EXISTS nonces_by_time ON nonces (until)"


class Nonces:
    """What has come, kept for `seconds` each."""

    def __init__(self, directory: Path, disk: Disk, *, seconds: float) -> None:
        self._disk, self._seconds = disk, seconds
        with disk.asked(f"a file {NAME} that can be opened"):
            self._connection = sqlite3.connect(directory / NAME, isolation_level=None, check_same_thread=False)
            try:
                for statement in (*PRAGMAS, TABLE, BY_TIME):
                    self._connection.execute(statement)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        self._connection.close()

    def first(self, client: str, nonce: str, *, now: float) -> bool:
        """Is this the first time? It is remembered then.

        UnavailableError for a client that has sent too many of late, and while the disk refuses.
        """
        with self._disk.asked(f"a file {NAME} that can be written"), self._connection as transaction:
            transaction.execute("BEGIN IMMEDIATE")
            transaction.execute("DELETE FROM nonces WHERE until < ?", (now,))
            (held,) = transaction.execute("SELECT count(*) FROM nonces WHERE client = ?", (client,)).fetchone()
            if held >= MOST:
                expected = f"expected at most {MOST} requests of one client within {self._seconds:g} s"
                raise UnavailableError(f"{expected}, got more")
            row = (client, nonce, now + self._seconds)
            return transaction.execute("INSERT OR IGNORE INTO nonces VALUES (?, ?, ?)", row).rowcount == 1
