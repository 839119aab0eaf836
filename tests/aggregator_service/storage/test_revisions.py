"""Databases of every age: an older one becomes the newest, beside a copy of itself; a newer one is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from aggregator_service.settings import AggregatorSettings, aggregator_settings
from aggregator_service.storage import revisions
from aggregator_service.storage.database import Database
from aggregator_service.storage.tables import METADATA
from shared.errors import DamagedError, SettingsError, StorageFullError
from shared.method.parameters import Float32
from shared.protocol.schemas import RunIn

if TYPE_CHECKING:
    from conftest import FakeClient, Running

pytestmark = pytest.mark.anyio

OLD_SCHEMA = (Path(__file__).parent / "version_1.sql").read_text(encoding="utf-8")
NEWEST = str(ScriptDirectory(str(revisions.MIGRATIONS)).get_current_head())
COPY = f"aggregator.sqlite.before-{NEWEST}"
SINCE = {"alembic_version", "quarantines", "refusals", "secure_messages", "sums"}  # tables that it had not
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
    with closing(Database(settings.state_directory, settings.declaration())) as database:
        yield database


def rows(file: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(query).fetchall()


def tables(file: Path) -> set[object]:
    return {name for (name,) in rows(file, "select name from sqlite_master where type = 'table'")}


def old_directory(folder: Path, settings: AggregatorSettings, clients: list[FakeClient], body: bytes) -> Path:
    """A run whose first round waits for the second of two clients, as the service wrote it before the revisions."""
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / "first.safetensors").write_bytes(body)
    with closing(sqlite3.connect(folder / "aggregator.sqlite")) as connection, connection:
        connection.executescript(OLD_SCHEMA)
        for table, *values in old_rows(settings, clients, body):
            connection.execute(f"insert into {table} values ({', '.join('?' * len(values))})", values)
    return folder / "aggregator.sqlite"


def old_rows(
    settings: AggregatorSettings, clients: list[FakeClient], body: bytes
) -> Iterator[tuple[str | int | float | None, ...]]:
    now, declaration = time.time(), settings.declaration().model_dump_json()
    request = RunIn(rounds=1, clients=2, method=settings.method).model_dump_json()
    yield "federation", 1, declaration, 3
    for client in clients:
        yield "clients", client.name, hashlib.sha256(client.name.encode()).hexdigest(), declaration, None, now
    yield "runs", 1, "run-1", request, now, now + 3600, "open", 1, None
    for client in clients:
        yield "enrolments", "run-1", client.name, 1
    yield "rounds", "run-1", 1, "open", now, None
    digest, scalars = hashlib.sha256(body).hexdigest(), json.dumps({"rho": 0.1, "margin": 0.5})
    yield "updates", "run-1", 1, clients[0].name, digest, len(body), now, scalars, "first.safetensors"


@pytest.mark.parametrize("without", [(), ("arrivals",), ("arrivals", "anchors")])
async def test_a_directory_of_the_service_before_the_revisions_opens_and_its_run_is_finished(
    running: Running, tmp_path: Path, tensors: Callable[[bytes], dict[str, Float32]], without: tuple[str, ...]
) -> None:
    async with running(state_directory=tmp_path / "elsewhere") as federation:
        north, south = federation.client("north"), federation.client("south")
        body = north.update(1.0, rho=0.1, margin=0.5)
        file = old_directory(tmp_path / "state", federation.settings, [north, south], body)
    for table in without:  # as an older service, or one whose first start was cut off, has left it
        rows(file, f"drop table {table}")
    async with running() as federation:
        north, south = federation.client("north"), federation.client("south")
        assert (await north.get("/v1/runs/current")).json()["standing"] == "received"
        assert (await north.put(1, body)).status_code == 200
        assert (await south.put(1, south.update(3.0, rho=0.1, margin=0.5))).status_code == 201
        mean = tensors((await south.personalised(1)).content)
        assert all(np.allclose(array, 2.0) for array in mean.values())
        assert (await federation.history())["phase"] == "finished"
        assert [one["client"] for one in await federation.arrivals()] == ["north", "south"]
    assert rows(file, "select version_num from alembic_version") == [(NEWEST,)]
    assert rows(file, "pragma foreign_key_check") == []


async def test_in_a_directory_of_the_service_before_the_revisions_a_client_can_be_quarantined(
    running: Running, tmp_path: Path
) -> None:
    async with running(state_directory=tmp_path / "elsewhere") as federation:
        clients = [federation.client("north"), federation.client("south")]
        old_directory(tmp_path / "state", federation.settings, clients, clients[0].update(1.0))
    async with running() as federation:
        members = (await federation.operate("GET", "/v1/clients")).json()
        assert [(one["client"], one["quarantine"]) for one in members] == [("north", None), ("south", None)]
        answer = await federation.operate("POST", "/v1/clients/north/quarantine", json={"reason": "look"})
        assert answer.status_code == 201
        assert (await federation.client("north").get("/v1/runs/current")).json()["standing"] == "quarantined"


async def test_a_fresh_directory_has_the_tables_that_the_code_knows(settings: AggregatorSettings) -> None:
    with opened(settings) as database, database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
        assert MigrationContext.configure(connection).get_current_revision() == NEWEST


async def test_an_old_database_gets_the_tables_that_the_code_knows(settings: AggregatorSettings) -> None:
    settings.state_directory.mkdir()
    rows(settings.state_directory / "aggregator.sqlite", "select 1")
    with closing(sqlite3.connect(settings.state_directory / "aggregator.sqlite")) as connection:
        connection.executescript(OLD_SCHEMA)
    with opened(settings) as database, database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


async def test_what_was_there_before_a_revision_stays_beside_it(running: Running, tmp_path: Path) -> None:
    async with running(state_directory=tmp_path / "elsewhere") as federation:
        clients = [federation.client("north"), federation.client("south")]
        file = old_directory(tmp_path / "state", federation.settings, clients, clients[0].update(1.0))
    for _ in range(2):  # the second time nothing is due
        async with running():
            pass
    copy = file.with_name(COPY)
    assert [path.name for path in file.parent.glob("*.before-*")] == [COPY]
    assert tables(copy) == (tables(file) - SINCE) | {"enrolments", "rounds"}
    assert rows(copy, "select client from updates") == [("north",)]
    # Whoever goes back to the service before puts the copy in place.
    copy.replace(file)
    assert rows(file, "pragma user_version") == [(1,)]


def test_a_new_directory_has_nothing_to_copy(settings: AggregatorSettings) -> None:
    for _ in range(2):
        with opened(settings):
            pass
    assert {path.name for path in settings.state_directory.iterdir()} == {"lock", "aggregator.sqlite"}


def test_a_database_of_a_newer_revision_is_refused_and_left_as_it_is(settings: AggregatorSettings) -> None:
    with opened(settings):
        pass
    file = settings.state_directory / "aggregator.sqlite"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("update alembic_version set version_num = '0099'")
    before = file.read_bytes()
    told = f"expected a database of revision {NEWEST} or older, got 0099"
    with pytest.raises(SettingsError, match=told), opened(settings):
        pass
    assert file.read_bytes() == before


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Another revision after the newest, in a folder with all of them; written again, it is another one."""
    folder = tmp_path / "migrations"
    shutil.copytree(revisions.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(revisions, "MIGRATIONS", folder)

    def write(number: str, before: str, then: str) -> None:
        shutil.rmtree(folder / "versions" / "__pycache__", ignore_errors=True)
        (folder / "versions" / f"r{number}.py").write_text(NEXT.format(number=number, before=before, then=then))

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
        patch.setattr(revisions.os, "fsync", refuse)
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
