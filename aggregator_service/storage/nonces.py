"""Nonces of signed requests, each accepted once while its signature is valid.

They lie in a database of their own, so that a restart loses none. A commit here is with the operating system when it
returns, and not yet on the disk: every request makes one, a poll too, and waiting for the disk would take two hundred
times as long. A killed process loses nothing. A power cut may lose the last moments; requests of these could be
repeated once the machine is back, if that is within the window.

A nonce is deleted once its request is too old by the clock. Clocks are set back too, and then it would be accepted
again: so the newest deleted time of each client stays for good, and no signature of that time or before is accepted.
"""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path

from aggregator_service.storage.disk import Disk
from aggregator_service.storage.engines.sqlite import CACHE, LOG
from shared.errors import ClockError, UnavailableError
from shared.timeouts import NONCE_SECONDS

NAME = "nonces.sqlite"
MOST = 10_000  # stored nonces of one client: too many requests block only that client
FORGET_SECONDS = 1.0  # time between two looks for old nonces, by the clock of the requests
KNOWN = "SELECT (SELECT created FROM floors WHERE client = :client), (SELECT count(*) FROM seen WHERE client = :client)"
ADDED = (
    "INSERT OR IGNORE INTO seen SELECT :client, :nonce, :created"
    " WHERE (SELECT count(*) FROM seen WHERE client = :client) < :most"
    " AND NOT EXISTS (SELECT 1 FROM floors WHERE client = :client AND created >= :created)"
)  # one statement, and so one transaction: each request makes one
WAITING = f"PRAGMA busy_timeout={NONCE_SECONDS * 1000:.0f}"
PRAGMAS = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", WAITING, f"PRAGMA {CACHE}", f"PRAGMA {LOG}")
TABLES = (
    "CREATE TABLE IF NOT EXISTS seen (client TEXT NOT NULL, nonce TEXT NOT NULL, created REAL NOT NULL,"
    " PRIMARY KEY (client, nonce)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS seen_by_time ON seen (created)",
    "CREATE TABLE IF NOT EXISTS floors (client TEXT NOT NULL PRIMARY KEY, created REAL NOT NULL) WITHOUT ROWID",
)
OLD = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'nonces'"
# An older version kept each nonce for two windows after it had come, and not the time of its signature: that was at
# most one window later than it came.
TAKEN_OVER = (
    "INSERT OR IGNORE INTO seen SELECT client, nonce, until - :seconds FROM nonces",
    "DROP TABLE nonces",
)
RAISED = (
    "INSERT INTO floors SELECT client, max(created) FROM seen WHERE created < :old GROUP BY client"
    " ON CONFLICT (client) DO UPDATE SET created = max(created, excluded.created)"
)


class Nonces:
    """Nonces of the last `seconds`, for as long as a signature is valid."""

    def __init__(self, directory: Path, disk: Disk, *, seconds: float) -> None:
        self._disk, self._seconds, self._forgot = disk, seconds, -math.inf
        with disk.translate_errors(f"a file {NAME} that can be opened"):
            self._connection = sqlite3.connect(directory / NAME, isolation_level=None, check_same_thread=False)
            try:
                self._prepare()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        self._connection.close()

    def add_nonce(self, client: str, nonce: str, *, created: float, now: float) -> bool:
        """Stores a nonce; False if it was used before.

        Raises ClockError for a time whose nonces were deleted, UnavailableError for a client with too many recent
        requests, and while the disk refuses.
        """
        with self._disk.translate_errors(f"a file {NAME} that can be written"):
            if abs(now - self._forgot) >= FORGET_SECONDS:
                self._forget(now - self._seconds)
                self._forgot = now
            row = {"client": client, "nonce": nonce, "created": created, "most": MOST}
            if self._connection.execute(ADDED, row).rowcount == 1:
                return True
            self._require_new(client, created)
            return False

    def _prepare(self) -> None:
        for statement in (*PRAGMAS, *TABLES):
            self._connection.execute(statement)
        with self._connection as transaction:
            transaction.execute("BEGIN IMMEDIATE")
            if transaction.execute(OLD).fetchone()[0]:
                transaction.execute(TAKEN_OVER[0], {"seconds": self._seconds})
                transaction.execute(TAKEN_OVER[1])

    def _forget(self, old: float) -> None:
        """Deletes nonces before a time, which stays too old whatever the clock becomes."""
        values = {"old": old}
        if self._connection.execute("SELECT 1 FROM seen WHERE created < :old LIMIT 1", values).fetchone():
            with self._connection as transaction:
                transaction.execute("BEGIN IMMEDIATE")
                transaction.execute(RAISED, values)
                transaction.execute("DELETE FROM seen WHERE created < :old", values)

    def _require_new(self, client: str, created: float) -> None:
        """Raises an error for a forgotten time, or too many recent requests."""
        newest, held = self._connection.execute(KNOWN, {"client": client}).fetchone()
        if newest is not None and created <= newest:
            raise ClockError(describe_forgotten(newest, created))
        if held >= MOST:
            raise UnavailableError(describe_too_many(self._seconds))


def describe_forgotten(newest: float, created: float) -> str:
    """Describes the refusal of a signature from a time whose nonces were deleted."""
    expected = f"signature: expected a time after {newest:.0f}, the newest of yours that is forgotten"
    return f"{expected}, got {created:.0f}: a clock has been set back"


def describe_too_many(seconds: float) -> str:
    """Describes the refusal of a client with too many recent requests."""
    return f"expected at most {MOST} requests of one client within {seconds:g} s, got more"
