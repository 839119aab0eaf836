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
from shared.errors import UnavailableError

SECONDS = 120.0


@contextmanager
def opened(folder: Path) -> Iterator[Nonces]:
    with closing(Nonces(folder, Disk(), seconds=SECONDS)) as nonces:
        yield nonces


def rows(folder: Path) -> int:
    with closing(sqlite3.connect(folder / NAME)) as connection:
        return int(connection.execute("SELECT count(*) FROM nonces").fetchone()[0])


def test_a_nonce_is_taken_once_of_each_client_while_it_is_remembered(tmp_path: Path) -> None:
    with opened(tmp_path) as nonces:
        assert nonces.first("north", "a", now=0.0)
        assert not nonces.first("north", "a", now=SECONDS)
        assert nonces.first("south", "a", now=1.0) and nonces.first("north", "b", now=1.0)
        assert nonces.first("north", "a", now=SECONDS + 1.5)


def test_what_is_forgotten_takes_no_room(tmp_path: Path) -> None:
    with opened(tmp_path) as nonces:
        for second in range(500):
            assert nonces.first("north", f"{second}", now=float(second))
        assert rows(tmp_path) == 121


def test_a_restart_remembers_and_forgets_as_before(tmp_path: Path) -> None:
    with opened(tmp_path) as nonces:
        assert nonces.first("north", "a", now=0.0)
    with opened(tmp_path) as nonces:
        assert not nonces.first("north", "a", now=60.0)
    with opened(tmp_path) as nonces:
        assert nonces.first("north", "a", now=SECONDS + 1.5)


def test_the_sudden_end_of_the_process_forgets_nothing(tmp_path: Path) -> None:
    code = f"""if True:
        import os, signal, pathlib
        from aggregator_service.storage.disk import Disk
        from aggregator_service.storage.nonces import Nonces
        nonces = Nonces(pathlib.Path({str(tmp_path)!r}), Disk(), seconds=120.0)
        assert nonces.first("north", "a", now=0.0)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(root)}, timeout=60)
    assert done.returncode == -signal.SIGKILL
    with opened(tmp_path) as nonces:
        assert not nonces.first("north", "a", now=1.0)


def test_a_client_that_asks_too_much_is_refused_until_some_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator_service.storage.nonces.MOST", 3)
    with opened(tmp_path) as nonces:
        for number in range(3):
            assert nonces.first("north", f"{number}", now=float(number))
        with pytest.raises(UnavailableError, match="at most 3 requests of one client within 120 s, got more"):
            nonces.first("north", "3", now=3.0)
        assert nonces.first("south", "0", now=3.0) and rows(tmp_path) == 4
        assert nonces.first("north", "3", now=SECONDS + 1.5)


def test_where_the_disk_refuses_nobody_is_let_in(tmp_path: Path) -> None:
    with opened(tmp_path) as nonces, closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as other:
        nonces._connection.execute("PRAGMA busy_timeout=0")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UnavailableError, match=f"expected a file {NAME} that can be written, got SQLITE_BUSY"):
            nonces.first("north", "a", now=0.0)
        other.execute("ROLLBACK")
        assert nonces.first("north", "a", now=0.0)


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"not a database" * 100)
    with pytest.raises(UnavailableError, match=f"expected a file {NAME} that can be opened, got SQLITE_NOTADB"):
        Nonces(tmp_path, Disk(), seconds=SECONDS)
