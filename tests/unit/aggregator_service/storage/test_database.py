"""What a transaction of the database promises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, select, text

from aggregator_service.settings import aggregator_settings
from aggregator_service.storage.database import Database
from aggregator_service.storage.tables import FEDERATION, RUNS
from shared.errors import UnavailableError

RUN = {"number": 1, "name": "run-1", "document": "{}"}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    settings = aggregator_settings(state_directory=tmp_path, operator_token="the-operators-token")
    with closing(Database(tmp_path, settings.declaration())) as opened:
        yield opened


def names(connection: Connection) -> list[str]:
    return list(connection.scalars(select(RUNS.c.name)))


def test_a_commit_waits_for_the_disk(database: Database) -> None:
    full = 2  # https://www.sqlite.org/pragma.html#pragma_synchronous
    with database.reading() as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        assert connection.scalar(text("PRAGMA synchronous")) == full


def test_who_reads_sees_one_moment_whatever_is_written_meanwhile(database: Database) -> None:
    with database.reading() as connection:
        assert names(connection) == []
        with database.writing() as other:
            other.execute(insert(RUNS).values(RUN))
        assert names(connection) == []
    with database.reading() as connection:
        assert names(connection) == ["run-1"]


def test_a_transaction_that_fails_changes_nothing(database: Database) -> None:
    with pytest.raises(UnavailableError, match="got SQLITE_CONSTRAINT"), database.writing() as connection:
        connection.execute(insert(RUNS).values(RUN))
        connection.execute(insert(FEDERATION).values(id=1, declaration={}, sequence=0))
    with pytest.raises(ZeroDivisionError), database.writing() as connection:
        connection.execute(insert(RUNS).values(RUN))
        _ = 1 / 0
    with database.reading() as connection:
        assert names(connection) == []
