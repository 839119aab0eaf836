"""Attack: somebody holds a silo's or an aggregator's database, fills its disk, or damages it, while callers write."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from aggregator_service.storage.disk import Disk
from aggregator_service.storage.nonces import NAME, Nonces
from client_service.event_log import database
from client_service.event_log.messages import InteractionIn
from client_service.event_log.store import EventStore
from shared.errors import DataError, UnavailableError

LOG_BYTES = 16 << 20


@contextmanager
def held(path: Path, begin: str) -> Iterator[None]:
    """Somebody else's transaction, which has read something."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(begin)
        other.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        yield
        other.execute("COMMIT")


def event(number: int) -> InteractionIn:
    return InteractionIn(event=f"event-{number}", user=f"user-{number % 7}", item="item", time=None, rating=None)


def test_events_that_come_while_somebody_writes_the_log_are_refused_and_taken_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    log = EventStore(tmp_path)
    with held(log.path, "BEGIN IMMEDIATE"), pytest.raises(UnavailableError, match="cannot be used now"):
        log.append([event(1)])
    assert len(log.append([event(1)])) == 1


def test_somebody_who_reads_the_log_keeps_no_event_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    log = EventStore(tmp_path)
    with held(log.path, "BEGIN"):
        assert len(log.append([event(1)])) == 1


def test_writers_an_erasure_and_a_refresh_at_once_lose_nothing(tmp_path: Path) -> None:
    log, others = EventStore(tmp_path), EventStore(tmp_path)

    def write(first: int) -> int:
        store = log if first % 2 else others
        return sum(len(store.append([event(number)])) for number in range(first * 20, first * 20 + 20))

    def refresh(_: int) -> int:
        others.begin_merge()
        log.erasures.erase_user("nobody", known=False)
        log.erasures.complete_unknown()
        return 0

    calls: list[tuple[Callable[[int], int], int]] = [(write, one) for one in range(8)]
    calls[4:4] = [(refresh, 0)] * 4
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda call: call[0](call[1]), calls)) == 160
    assert [one.sequence for one in log.interactions()] == list(range(1, 161))


def test_a_full_disk_refuses_events_and_still_lets_erase(tmp_path: Path) -> None:
    log = EventStore(tmp_path)
    log._database._rows.execute("PRAGMA max_page_count = 20")
    kept = 0
    with pytest.raises(UnavailableError, match="SQLITE_FULL"):
        for number in range(100):
            kept += len(log.append([event(number * 100 + one) for one in range(100)]))
    assert 0 < kept == len(log.interactions())
    gone, _ = log.erasures.erase_user("user-1", known=False)
    assert gone > 0 and len(log.interactions()) == kept - gone


def test_a_log_whose_head_is_missing_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    log = EventStore(tmp_path)
    log.close()
    with closing(sqlite3.connect(log.path)) as other, other:
        other.execute("DELETE FROM place")
    with pytest.raises(DataError, match="expected one row in the table place"):
        EventStore(tmp_path)


def test_the_write_ahead_log_shrinks_again_once_no_reader_holds_it(tmp_path: Path) -> None:
    nonces, file = Nonces(tmp_path, Disk(), seconds=60.0), tmp_path / f"{NAME}-wal"
    nonces.add_nonce("north", "first", created=0.0, now=0.0)
    with held(tmp_path / NAME, "BEGIN"):
        nonces._connection.executescript("CREATE TABLE large (content BLOB);")
        nonces._connection.execute("INSERT INTO large VALUES (zeroblob(?))", [2 * LOG_BYTES])
        assert nonces.add_nonce("north", "second", created=0.0, now=0.0), "the reader holds up nobody"
    assert file.stat().st_size > LOG_BYTES
    for number in range(3):
        assert nonces.add_nonce("north", f"nonce {number}", created=0.0, now=0.0)
    nonces._connection.execute("INSERT INTO large VALUES (zeroblob(?))", [5 << 20])
    assert nonces.add_nonce("north", "last", created=0.0, now=0.0)
    assert file.stat().st_size <= LOG_BYTES
    nonces.close()
