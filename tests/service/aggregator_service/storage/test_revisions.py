"""Databases of every age: a known one becomes the newest, beside a copy of itself; any other is refused."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from aggregator_service.settings import AggregatorSettings, aggregator_settings
from aggregator_service.storage import database
from aggregator_service.storage.database import Database
from aggregator_service.storage.migrations import r0009_base
from aggregator_service.storage.tables import METADATA
from shared.errors import DamagedError, SettingsError, StorageFullError

WRITTEN = Path(__file__).parents[3] / "service" / "aggregator_service" / "storage"  # by that revision
NEWEST = "0012"
NEXT = """
from alembic import op
from sqlalchemy import Column, Integer

revision, down_revision = "{number}", "{before}"


def upgrade() -> None:
    op.create_table("made_by_{number}", Column("id", Integer, primary_key=True))
    {then}
"""


@pytest.fixture
def settings(tmp_path: Path) -> AggregatorSettings:
    return aggregator_settings(state_directory=tmp_path / "state", operator_token="operator-token-of-the-tests")


@contextmanager
def opened(settings: AggregatorSettings) -> Iterator[Database]:
    with closing(Database(settings.state_directory, settings.declaration())) as made:
        yield made


def rows(file: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(query).fetchall()


def tables(file: Path) -> set[object]:
    return {name for (name,) in rows(file, "select name from sqlite_master where type = 'table'")}


def test_a_fresh_directory_has_the_tables_that_the_code_knows(settings: AggregatorSettings) -> None:
    with opened(settings) as made, made.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
        assert MigrationContext.configure(connection).get_current_revision() == NEWEST


def schema(connection: sqlite3.Connection) -> set[str]:
    """Every table and index as it was made, but for spaces; and the tables that are of revisions or of the dumps."""
    made = connection.execute("select sql from sqlite_master where sql is not null")
    statements = {re.sub(r"\s", "", statement) for (statement,) in made}
    return {one for one in statements if not re.match("CREATETABLE(alembic_version|blob_files)", one)}


@pytest.mark.parametrize("name", ["open", "closed", "secure"])
def test_the_first_revision_makes_the_tables_that_a_database_of_it_holds(name: str) -> None:
    with closing(sqlite3.connect(":memory:")) as ours, closing(sqlite3.connect(":memory:")) as theirs:
        ours.executescript(r0009_base.TABLES)
        theirs.executescript((WRITTEN / f"revision_9_{name}.sql").read_text(encoding="utf-8"))
        assert schema(ours) == schema(theirs)
        assert theirs.execute("select version_num from alembic_version").fetchall() == [(r0009_base.revision,)]


def test_a_new_directory_has_nothing_to_copy(settings: AggregatorSettings) -> None:
    for _ in range(2):
        with opened(settings):
            pass
    assert {path.name for path in settings.state_directory.iterdir()} == {"lock", "aggregator.sqlite"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("update alembic_version set version_num = '0099'", "got 0099; a newer version of this service has written it"),
        ("update alembic_version set version_num = '0008'", "got 0008; nothing was changed. First open it with an ear"),
        ("drop table alembic_version", "got one from before the revisions; nothing was changed. First open it with an"),
    ],
)
def test_a_database_of_an_unknown_revision_is_refused_and_left_as_it_is(
    settings: AggregatorSettings, change: str, told: str
) -> None:
    with opened(settings):
        pass
    file = settings.state_directory / "aggregator.sqlite"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(change)
    before = file.read_bytes()
    expected = f"expected a database of one of the revisions 0009, 0010, 0011, {NEWEST}, {told}"
    with pytest.raises(SettingsError, match=re.escape(expected)), opened(settings):
        pass
    assert file.read_bytes() == before
    assert {path.name for path in settings.state_directory.iterdir()} == {"lock", "aggregator.sqlite"}


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Another revision after the newest, in a folder with all of them; written again, it is another one."""
    folder = tmp_path / "migrations"
    shutil.copytree(database.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(database, "MIGRATIONS", folder)

    def write(number: str, before: str, then: str) -> None:
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
        (folder / f"r{number}.py").write_text(NEXT.format(number=number, before=before, then=then))

    return write


def test_a_revision_that_fails_changes_nothing_and_can_be_tried_again(
    settings: AggregatorSettings, add: Callable[[str, str, str], None]
) -> None:
    with opened(settings):
        pass
    file = settings.state_directory / "aggregator.sqlite"
    add("9001", NEWEST, "")
    add("9002", "9001", "raise RuntimeError('a mistake in a revision')")
    with pytest.raises(RuntimeError, match="a mistake in a revision"), opened(settings):
        pass
    assert rows(file, "select version_num from alembic_version") == [(NEWEST,)]
    assert not {"made_by_9001", "made_by_9002"} & tables(file)
    add("9002", "9001", "")
    with opened(settings):
        pass
    assert rows(file, "select version_num from alembic_version") == [("9002",)]
    assert {"made_by_9001", "made_by_9002"} <= tables(file)


def test_of_several_copies_the_last_one_stays(
    settings: AggregatorSettings, add: Callable[[str, str, str], None]
) -> None:
    with opened(settings):
        pass
    (settings.state_directory / "aggregator.sqlite.before-0099.part").write_bytes(b"left by a crash")
    for number, before in (("9001", NEWEST), ("9002", "9001")):
        add(number, before, "")
        with opened(settings):
            pass
    (copy,) = settings.state_directory.glob("aggregator.sqlite.before-*")
    assert copy.name == "aggregator.sqlite.before-9002"
    assert rows(copy, "select version_num from alembic_version") == [("9001",)]


def test_without_room_for_the_copy_nothing_is_changed(
    settings: AggregatorSettings, add: Callable[[str, str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(settings):
        pass
    add("9001", NEWEST, "")

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", refuse)
        with pytest.raises(StorageFullError, match="got ENOSPC"), opened(settings):
            pass
    assert {path.name for path in settings.state_directory.iterdir()} == {"lock", "aggregator.sqlite"}
    assert "made_by_9001" not in tables(settings.state_directory / "aggregator.sqlite")
    with opened(settings):
        pass
    assert "made_by_9001" in tables(settings.state_directory / "aggregator.sqlite")


def test_a_damaged_database_is_refused_at_the_start(settings: AggregatorSettings) -> None:
    with opened(settings):
        pass
    file = settings.state_directory / "aggregator.sqlite"
    size = int(str(rows(file, "pragma page_size")[0][0]))
    (root,) = rows(file, "select rootpage from sqlite_master where name = 'clients'")[0]
    with file.open("r+b") as content:
        content.seek((int(str(root)) - 1) * size)
        content.write(b"\xff" * size)
    with pytest.raises(DamagedError, match="expected a sound database"), opened(settings):
        pass


def test_a_directory_whose_name_looks_like_a_part_of_an_address_is_a_directory(tmp_path: Path) -> None:
    strange = aggregator_settings(
        state_directory=tmp_path / "50%20off?mode=ro", operator_token="operator-token-of-the-tests"
    )
    with opened(strange):
        assert (strange.state_directory / "aggregator.sqlite").is_file()
