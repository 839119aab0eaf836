"""The aggregator's rows on a PostgreSQL server: what SQLite promises, this promises."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import insert, select, text

from aggregator_service.storage.database import Database
from aggregator_service.storage.engines import postgresql
from aggregator_service.storage.tables import CLIENTS, FEDERATION, METADATA, RUNS
from shared.errors import SettingsError, UnavailableError, UnsettledError
from shared.method.settings import MethodSettings
from tests.support.postgres import PASSWORD, USER
from tests.support.serving import HOST
from tests.support.small import TOKEN, small_aggregator

if TYPE_CHECKING:
    from conftest import Place

RUN = {"number": 1, "name": "run-1", "document": "{}"}
Open = Callable[..., Any]


@pytest.fixture
def open_database(tmp_path: Path, place: Place) -> Open:
    """`with open_database() as database`: each in a state directory of its own."""

    @contextmanager
    def opened(name: str = "state", **changes: Any) -> Iterator[Database]:
        settings = small_aggregator(tmp_path / name, **({"database": place.url} | changes))
        made = Database(settings.state_directory, settings.declaration(), settings.database_url())
        with closing(made):
            yield made

    return opened


def held(database: Database) -> list[str]:
    with database.reading() as connection:
        return list(connection.scalars(select(RUNS.c.name)))


def test_a_fresh_database_has_the_tables_that_the_code_knows(open_database: Open) -> None:
    for _ in range(2):
        with open_database() as made, made.reading() as connection:
            assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_of_the_rows_nothing_lies_in_the_state_directory(open_database: Open, tmp_path: Path) -> None:
    with open_database():
        assert {path.name for path in (tmp_path / "state").iterdir()} == {"lock"}


def test_waits_are_bounded_and_a_commit_waits_for_the_disk(open_database: Open, place: Place) -> None:
    """Whatever the server's own setting."""
    place.server.execute(f"alter database {place.name} set synchronous_commit = off")
    with open_database() as database, database.writing() as connection:
        said = {name: connection.scalar(text(f"show {name}")) for name in postgresql.BOUNDS}
    assert said == postgresql.BOUNDS
    assert said["synchronous_commit"] == "on"


def test_who_reads_sees_one_moment_whatever_is_written_meanwhile(open_database: Open) -> None:
    with open_database() as database:
        with database.reading() as connection:
            assert list(connection.scalars(select(RUNS.c.name))) == []
            with database.writing() as other:
                other.execute(insert(RUNS).values(RUN))
            assert list(connection.scalars(select(RUNS.c.name))) == []
        assert held(database) == ["run-1"]


def test_a_transaction_that_fails_changes_nothing(open_database: Open) -> None:
    with open_database() as database:
        with pytest.raises(UnavailableError, match="got UniqueViolation"), database.writing() as connection:
            connection.execute(insert(RUNS).values(RUN))
            connection.execute(insert(FEDERATION).values(id=1, declaration={}, sequence=0))
        with pytest.raises(ZeroDivisionError), database.writing() as connection:
            connection.execute(insert(RUNS).values(RUN))
            _ = 1 / 0
        assert held(database) == []


def test_names_are_in_the_order_of_their_bytes(open_database: Open, place: Place) -> None:
    """Sums are in that order: the server's language would change the digests."""
    names = ["B", "a-1", "a.0", "a0", "b"]
    rows = [{"name": name, "declaration": {}, "joined_at": 0.0} for name in reversed(names)]
    assert place.rows("select 'a' < 'B'") == [(True,)]
    with open_database() as database:
        with database.writing() as connection:
            connection.execute(insert(CLIENTS), rows)
        with database.reading() as connection:
            assert list(connection.scalars(select(CLIENTS.c.name).order_by(CLIENTS.c.name))) == names


def test_two_aggregators_never_work_on_one_database(open_database: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(postgresql.REACHING, "options", "-c lock_timeout=200ms")
    with open_database() as first:
        with pytest.raises(SettingsError, match="database: another aggregator is using it"), open_database("other"):
            pass
        first.probe()
    with open_database("other"):
        pass


def test_a_database_belongs_to_one_federation(open_database: Open) -> None:
    with open_database():
        pass
    with (
        pytest.raises(SettingsError, match="database: it holds a federation with another"),
        open_database("other", method=MethodSettings(width=8)),
    ):
        pass


def test_who_has_lost_the_database_writes_nothing_before_it_is_its_own_again(
    open_database: Open, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgresql.REACHING, "options", "-c lock_timeout=200ms")
    with open_database() as first:
        assert place.cut_off() >= 1
        with open_database("other") as second:
            for _ in range(2):
                with pytest.raises(UnavailableError, match="that can be written"), first.writing() as connection:
                    connection.execute(insert(RUNS).values(RUN))
            with pytest.raises(UnavailableError, match="got LockNotAvailable"):
                first.probe()
            with second.writing() as connection:
                connection.execute(insert(RUNS).values(RUN))
        first.probe()
        assert held(first) == ["run-1"]


@pytest.mark.parametrize("stored", [True, False])
def test_a_connection_lost_while_it_commits_leaves_no_false_answer(
    open_database: Open, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    import psycopg

    with open_database() as database:
        commit = database.engine.pool.dialect.do_commit

        def lose(connection: Any) -> None:
            if stored:
                commit(connection)
            connection.driver_connection.close()
            raise psycopg.OperationalError("the server has gone")

        with monkeypatch.context() as patch:
            patch.setattr(database.engine.pool.dialect, "do_commit", lose)
            with pytest.raises(UnsettledError), database.writing() as connection:
                connection.execute(insert(RUNS).values(RUN))
        assert database.disk.refusal is not None
        with pytest.raises(UnavailableError, match="got ConnectionError"), database.writing():
            pass
        database.probe()
        assert held(database) == ["run-1"] * stored


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda url: url.replace(PASSWORD, "wr0ng-password"), f'password authentication failed for user "{USER}"'),
        (lambda url: url.rpartition("/")[0] + "/nowhere", 'database "nowhere" does not exist'),
    ],
)
def test_a_server_that_lets_nobody_in_is_told_of_without_the_password(
    tmp_path: Path, place: Place, change: Callable[[str], str], told: str
) -> None:
    """Of the process itself, with all that it writes anywhere."""
    url = change(place.url)
    given = {"STATE_DIRECTORY": str(tmp_path / "state"), "OPERATOR_TOKEN": TOKEN, "PORT": "0", "DATABASE": url}
    done = subprocess.run(
        [sys.executable, "-m", "aggregator_service"],
        env={"PYTHONPATH": ":".join(sys.path)} | {f"LPSFED_AGGREGATOR_{name}": value for name, value in given.items()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0 and "database: expected a server that takes this connection" in said and told in said
    assert PASSWORD not in said and "wr0ng-password" not in said


def test_where_no_server_answers_it_is_said(open_database: Open) -> None:
    url = f"postgresql+psycopg://{USER}:{PASSWORD}@{HOST}:1/lpsfed"
    with (
        pytest.raises(UnavailableError, match=r"database: expected a server .*[Cc]onnection refused") as told,
        open_database(database=url),
    ):
        pass
    assert PASSWORD not in str(told.value) and told.value.__suppress_context__
