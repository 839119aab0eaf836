"""A nonce comes once, for as long as it is remembered; a restart remembers, and no client fills the disk."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from aggregator_service.storage.disk import Disk
from aggregator_service.storage.nonces import NAME, Nonces
from shared.errors import ClockError, UnavailableError
from tests.support.questions import LONGEST_SECONDS

SECONDS = 120.0


@contextmanager
def opened(folder: Path) -> Iterator[Nonces]:
    with closing(Nonces(folder, Disk(), seconds=SECONDS)) as nonces:
        yield nonces


def rows(folder: Path) -> int:
    with closing(sqlite3.connect(folder / NAME)) as connection:
        return int(connection.execute("SELECT count(*) FROM seen").fetchone()[0])


def first(nonces: Nonces, client: str, nonce: str, now: float) -> bool:
    """Of a request that comes in the moment in which it is signed."""
    return nonces.add_nonce(client, nonce, created=now, now=now)


def test_a_nonce_is_taken_once_of_each_client_while_it_is_remembered(tmp_path: Path) -> None:
    with opened(tmp_path) as nonces:
        assert first(nonces, "north", "a", 0.0)
        assert not nonces.add_nonce("north", "a", created=0.0, now=SECONDS)
        assert first(nonces, "south", "a", 1.0) and first(nonces, "north", "b", 1.0)
        assert first(nonces, "north", "a", SECONDS + 1.5)


def test_what_is_forgotten_takes_no_room(tmp_path: Path) -> None:
    with opened(tmp_path) as nonces:
        for second in range(500):
            assert first(nonces, "north", f"{second}", float(second))
        assert rows(tmp_path) == 121


def test_a_restart_remembers_and_forgets_as_before(tmp_path: Path) -> None:
    with opened(tmp_path) as nonces:
        assert first(nonces, "north", "a", 0.0)
    with opened(tmp_path) as nonces:
        assert not nonces.add_nonce("north", "a", created=0.0, now=60.0)
    with opened(tmp_path) as nonces:
        assert first(nonces, "north", "a", SECONDS + 1.5)


def test_what_was_forgotten_is_never_believed_again_whatever_becomes_of_the_clock(tmp_path: Path) -> None:
    with opened(tmp_path) as nonces:
        assert first(nonces, "north", "a", 100.0) and first(nonces, "south", "a", 50.0)
        assert first(nonces, "north", "b", 1000.0)
    with opened(tmp_path) as nonces:
        for created in (50.0, 100.0):
            with pytest.raises(ClockError, match="expected a time after 100, the newest of yours that is forgotten"):
                nonces.add_nonce("north", "a", created=created, now=100.0)
        assert nonces.add_nonce("south", "b", created=51.0, now=100.0)  # another client's
        assert nonces.add_nonce("north", "c", created=101.0, now=101.0)
        assert not nonces.add_nonce("north", "b", created=1000.0, now=1000.0)


def test_the_nonces_of_an_older_version_are_taken_over(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / NAME)) as connection:
        connection.execute(
            "CREATE TABLE nonces (client TEXT NOT NULL, nonce TEXT NOT NULL, until REAL NOT NULL,"
            " PRIMARY KEY (client, nonce)) WITHOUT ROWID"
        )
        connection.execute("INSERT INTO nonces VALUES ('north', 'a', ?)", (2 * SECONDS,))  # it came at 0
        connection.commit()
    for _ in range(2):
        with opened(tmp_path) as nonces:
            assert not nonces.add_nonce("north", "a", created=0.0, now=SECONDS)
    with opened(tmp_path) as nonces:
        assert first(nonces, "north", "b", 2 * SECONDS + 1) and rows(tmp_path) == 1


def test_the_sudden_end_of_the_process_forgets_nothing(tmp_path: Path) -> None:
    code = f"""if True:
        import os, signal, pathlib
        from aggregator_service.storage.disk import Disk
        from aggregator_service.storage.nonces import Nonces
        nonces = Nonces(pathlib.Path({str(tmp_path)!r}), Disk(), seconds=120.0)
        assert nonces.add_nonce("north", "a", created=0.0, now=0.0)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(root)}, timeout=LONGEST_SECONDS
    )
    assert done.returncode == -signal.SIGKILL
    with opened(tmp_path) as nonces:
        assert not nonces.add_nonce("north", "a", created=0.0, now=1.0)


def test_a_client_that_asks_too_much_is_refused_until_some_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator_service.storage.nonces.MOST", 3)
    with opened(tmp_path) as nonces:
        for number in range(3):
            assert first(nonces, "north", f"{number}", float(number))
        with pytest.raises(UnavailableError, match="at most 3 requests of one client within 120 s, got more"):
            first(nonces, "north", "3", 3.0)
        assert first(nonces, "south", "0", 3.0) and rows(tmp_path) == 4
        assert first(nonces, "north", "3", SECONDS + 3.5)


def test_where_the_disk_refuses_nobody_is_let_in(tmp_path: Path) -> None:
    with opened(tmp_path) as nonces, closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as other:
        nonces._connection.execute("PRAGMA busy_timeout=0")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UnavailableError, match=f"expected a file {NAME} that can be written, got SQLITE_BUSY"):
            first(nonces, "north", "a", 0.0)
        other.execute("ROLLBACK")
        assert first(nonces, "north", "a", 0.0)


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"not a database" * 100)
    with pytest.raises(UnavailableError, match=f"expected a file {NAME} that can be opened, got SQLITE_NOTADB"):
        Nonces(tmp_path, Disk(), seconds=SECONDS)
