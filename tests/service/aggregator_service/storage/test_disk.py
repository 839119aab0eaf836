"""A disk that refuses: nobody hears of a success, nothing half-written stays, and all goes on once it takes again."""

from __future__ import annotations

import errno
import io
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from aggregator_service.rounds import round_loop
from aggregator_service.storage import disk

if TYPE_CHECKING:
    from conftest import FakeClient, Federation, Running, Until

pytestmark = pytest.mark.anyio
Fault = Callable[[pytest.MonkeyPatch, "Federation"], None]


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service looks again at once whether the disk takes."""
    monkeypatch.setattr(round_loop, "DISK_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(round_loop, "ROUND_CHECK_SECONDS", 0.02)


def raises(number: int) -> Callable[..., Any]:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/state/blobs/secret-name")

    return refuse


class Full(io.FileIO):
    """A file that nothing fits into any more."""

    def write(self, _: Any, /) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_room_to_write(patch: pytest.MonkeyPatch, _: Federation) -> None:
    def opened(path: str, mode: str = "r", *rest: Any, **others: Any) -> IO[Any]:
        if path.endswith(".part"):
            return io.BufferedWriter(Full(path, mode.replace("b", "")))
        return open(path, mode, *rest, **others)

    patch.setattr(disk, "open", opened, raising=False)


def fails_to_sync(number: int, *, directories: bool) -> Fault:
    """Of files and directories, one kind alone."""
    sync = os.fsync

    def one_kind(descriptor: int) -> None:
        failing = stat.S_ISDIR(os.fstat(descriptor).st_mode) == directories
        (raises(number) if failing else sync)(descriptor)

    return lambda patch, _: patch.setattr(os, "fsync", one_kind)


def fails_to_rename(patch: pytest.MonkeyPatch, _: Federation) -> None:
    patch.setattr(os, "rename", raises(errno.EIO))


def cannot_be_opened(patch: pytest.MonkeyPatch, _: Federation) -> None:
    def opened(path: str, mode: str = "r", *rest: Any, **others: Any) -> IO[Any]:
        return raises(errno.EROFS)() if "x" in mode else open(path, mode, *rest, **others)

    patch.setattr(disk, "open", opened, raising=False)


def engine_of(federation: Federation) -> Any:
    return federation.app.state.coordinator.federation.archive.database.engine.pool


def no_room_to_commit(patch: pytest.MonkeyPatch, federation: Federation) -> None:
    def refuse(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorname = "SQLITE_FULL"
        raise error

    patch.setattr(engine_of(federation).dialect, "do_commit", refuse)


def database_is_read_only(patch: pytest.MonkeyPatch, federation: Federation) -> None:
    """SQLite itself refuses, as on a disk that was mounted read-only, for as long as the patch holds.

    Each transaction says anew what its connection may do: one that is under way when the patch ends would
    otherwise keep a connection that never writes again.
    """
    dialect, query_only = engine_of(federation).dialect, {"now": "OFF"}
    begin = dialect.do_begin
    patch.setitem(query_only, "now", "ON")
    dialect.do_begin = lambda connection: (
        connection.execute(f"PRAGMA query_only={query_only['now']}"),
        begin(connection),
    )


FAULTS: dict[str, tuple[Fault, int, str, str]] = {
    "no room to write": (no_room_to_write, 507, "storage-full", "ENOSPC"),
    "no room to sync": (fails_to_sync(errno.ENOSPC, directories=False), 507, "storage-full", "ENOSPC"),
    "no room to commit": (no_room_to_commit, 507, "storage-full", "SQLITE_FULL"),
    "a file that fails to sync": (fails_to_sync(errno.EIO, directories=False), 503, "unavailable", "EIO"),
    "a directory that fails to sync": (fails_to_sync(errno.EIO, directories=True), 503, "unavailable", "EIO"),
    "a file that cannot be renamed": (fails_to_rename, 503, "unavailable", "EIO"),
    "a read-only directory": (cannot_be_opened, 503, "unavailable", "EROFS"),
    "a read-only database": (database_is_read_only, 503, "unavailable", "SQLITE_READONLY"),
}


@contextmanager
def refusing(what: str, federation: Federation, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        FAULTS[what][0](patch, federation)
        yield


def refused(answer: httpx.Response, what: str) -> None:
    """It says what was expected and what came, and no path."""
    _, status, code, name = FAULTS[what]
    content = answer.json()
    assert (answer.status_code, content["code"]) == (status, code), content
    assert answer.headers["retry-after"] == "1"
    assert content["detail"].startswith("expected ") and content["detail"].endswith(f", got {name}")
    assert "/" not in content["detail"] and "secret" not in content["detail"]


async def require_files(federation: Federation, count: int, until: Until) -> None:
    """So many and no more, but for what the service is just trying to write. What it leaves behind would stay."""

    async def counted() -> bool:
        return len(list((federation.settings.state_directory / "blobs").iterdir())) == count

    await until(counted)


async def ready(federation: Federation) -> bool:
    return (await federation.http.get("/health/ready")).status_code == 200


async def require_ready(federation: Federation, until: Until) -> None:
    await until(lambda: ready(federation))


async def require_stuck(federation: Federation, until: Until) -> None:
    async def stuck() -> bool:
        return not await ready(federation)

    await until(stuck)


async def sent(client: FakeClient, number: int, value: float) -> httpx.Response:
    return await client.put(number, client.update(value, rho=0.1, margin=0.5))


@pytest.mark.parametrize("what", FAULTS)
async def test_an_upload_that_the_disk_refuses_leaves_no_trace_and_comes_again(
    running: Running, monkeypatch: pytest.MonkeyPatch, until: Until, what: str
) -> None:
    async with running() as federation:
        north, south = await federation.opened()
        assert (await sent(south, 1, 3.0)).status_code == 201
        await require_ready(federation, until)
        with refusing(what, federation, monkeypatch):
            refused(await sent(north, 1, 1.0), what)
            await require_files(federation, 1, until)
            await anyio.sleep(0.1)  # it has looked again meanwhile
            assert not await ready(federation)
            state = (await north.get("/v1/runs/current")).json()
            assert (state["phase"], state["round"], state["standing"], state["received"]) == ("open", 1, "expected", 1)
        await require_ready(federation, until)
        await require_files(federation, 1, until)
        assert (await sent(north, 1, 1.0)).status_code == 201
        assert await north.level(1) == 2.0
        history = await federation.history()
        assert (history["phase"], history["rounds"][0]["missing"]) == ("open", [])


@pytest.mark.parametrize("what", ["no room to commit", "a read-only database"])
async def test_neither_a_join_nor_a_run_is_answered_before_it_is_durable(
    running: Running, monkeypatch: pytest.MonkeyPatch, until: Until, what: str
) -> None:
    async with running() as federation:
        await require_ready(federation, until)
        north = federation.client("north")
        with refusing(what, federation, monkeypatch):
            refused(await north.join(), what)
            refused(await federation.start_run(rounds=2, clients=1), what)
            assert (await north.get("/v1/runs/current")).status_code == 401
        await require_ready(federation, until)
        assert (await federation.operate("GET", "/v1/runs")).json() == []
        assert (await north.join()).status_code == 200
        assert (await federation.start_run(rounds=2, clients=1)).json()["run"] == "run-1"


async def test_who_asks_whether_it_is_ready_hears_what_the_disk_refuses(
    running: Running, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        await require_ready(federation, until)
        with refusing("no room to sync", federation, monkeypatch):
            await sent(north, 1, 1.0)
            answer = await federation.http.get("/health/ready")
            assert answer.status_code == 503
            assert answer.json()["detail"].endswith("bytes to be stored, got ENOSPC")
            assert (await federation.http.get("/health/live")).status_code == 200


@pytest.mark.parametrize("what", ["no room to write", "no room to sync", "a file that cannot be renamed"])
async def test_a_state_that_does_not_fit_is_never_half_there_and_is_made_once_it_fits(
    running: Running, monkeypatch: pytest.MonkeyPatch, until: Until, what: str
) -> None:
    async with running() as federation:
        north, south = await federation.opened()
        assert (await sent(south, 1, 3.0)).status_code == 201
        await require_ready(federation, until)
        with refusing_what_the_service_makes(what, federation, monkeypatch):
            assert (await sent(north, 1, 1.0)).status_code == 201
            await require_stuck(federation, until)
            assert (await north.get("/v1/runs/current")).json()["phase"] == "aggregated"
            assert (await north.personalised(1, wait=0)).status_code == 204
            await require_files(federation, 2, until)
        await require_ready(federation, until)
        assert (await north.personalised(1)).status_code == 200
        await require_files(federation, 3, until)


@contextmanager
def refusing_what_the_service_makes(
    what: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Uploads find room; the state after a round, which is what `save` is for, does not."""
    store = federation.app.state.coordinator.federation.archive.blobs
    save = store.save

    def refuse(body: bytes) -> Any:
        with refusing(what, federation, monkeypatch):
            return save(body)

    with monkeypatch.context() as patch:
        patch.setattr(store, "save", refuse)
        yield


async def test_what_a_disk_cannot_read_is_read_once_it_can(
    running: Running, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    """A failure to read is no damage: the round waits for the disk, and nobody is asked to send again."""
    async with running() as federation:
        north, south = await federation.opened()
        await sent(north, 1, 1.0)
        await require_ready(federation, until)
        with monkeypatch.context() as patch:
            patch.setattr("hashlib.file_digest", raises(errno.EIO))
            assert (await sent(south, 1, 3.0)).status_code == 201
            await require_stuck(federation, until)
        assert (await north.personalised(1)).status_code == 200
        assert (await federation.history())["rounds"][0]["missing"] == []
