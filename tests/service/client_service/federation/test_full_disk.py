"""A disk that takes no more: a refresh says so and is done later, a start answers without, and the silo goes on."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from shutil import rmtree
from signal import SIG_IGN, SIGXFSZ, signal
from typing import Any

import numpy as np
import polars as pl
import pytest

from client_service.data.interaction_files import change_shard
from client_service.event_log.shard_update import append_events
from client_service.refresh import scheduler as refreshing
from client_service.settings import ClientSettings
from shared.files import save_arrays
from tests.support.given import Federate, Opened, Until
from tests.support.kept import keep_first_model
from tests.support.questions import finished, has_problem, read
from tests.support.telling import Serving, event, post

LARGE = {"a": np.zeros(10_000)}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The system itself refuses what is longer."""
    before, limits = signal(SIGXFSZ, SIG_IGN), getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        setrlimit(RLIMIT_FSIZE, limits)
        signal(SIGXFSZ, before)


def test_what_the_system_refuses_is_an_error_of_the_system(tmp_path: Path) -> None:
    with largest_file(1_000), pytest.raises(OSError) as refused:
        save_arrays(tmp_path / "a", LARGE)
    assert refused.value.errno == errno.EFBIG
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_leaves_the_one_that_is_there(tmp_path: Path) -> None:
    save_arrays(tmp_path / "a", {"a": np.ones(3)})
    before = (tmp_path / "a").read_bytes()
    with largest_file(1_000), pytest.raises(OSError):
        save_arrays(tmp_path / "a", LARGE)
    assert (tmp_path / "a").read_bytes() == before


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.anyio
@pytest.mark.parametrize("writer", ["model_store.model_files.save_arrays", "compiled.publication.sync_path"])
async def test_a_refresh_without_room_is_done_later(
    settings: ClientSettings, serving: Serving, until: Until, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    """Also one that cannot be published: servers would go on with a shard that has what this one has forgotten."""
    keep_first_model(settings)
    monkeypatch.setattr(refreshing, "RETRY_SECONDS", 0.1)
    async with serving() as http:
        await post(http, event("new", "item-00"))
        with monkeypatch.context() as full:
            full.setattr(f"client_service.{writer}", refuse)
            await http.post("/v1/refresh")

            async def failed() -> bool:
                problem = (await read(http, "refresh")).get("problem", "")
                return bool(problem.startswith("expected free disk space and a writable directory, got No space"))

            await until(failed)
            assert (await http.get("/health/live")).status_code == 200

        async def changed() -> bool:
            return bool((await read(http, "refresh")).get("changed"))

        await until(changed)  # by itself


@pytest.mark.anyio
async def test_a_start_without_room_answers_without_a_model(
    settings: ClientSettings, opened: Opened, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_first_model(settings)
    rows = pl.DataFrame({"user": ["new"], "item": ["item-00"]})
    change_shard(settings.shard, lambda old: append_events(old, rows, Path()))
    monkeypatch.setattr("client_service.model_store.model_files.save_arrays", refuse)
    async with opened(settings) as http:

        async def answers() -> bool:
            return (await http.get("/v1/users/user-01/recommendations?k=3")).status_code == 200

        await until(answers)
        assert (await http.get("/health/live")).status_code == 200
        assert "fallback" in (await http.get("/v1/users/user-01/recommendations?k=3")).json()


@pytest.mark.anyio
async def test_a_start_that_can_publish_nothing_answers_from_memory(
    settings: ClientSettings, opened: Opened, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_first_model(settings)
    monkeypatch.setattr("client_service.compiled.publication.sync_path", refuse)
    async with opened(settings) as http:

        async def answers() -> bool:
            return "fallback" not in (await http.get("/v1/users/user-01/recommendations?k=3")).json()

        await until(answers)
        assert (await http.get("/health/live")).status_code == 200


WRITERS = (
    "federation.checkpoint.save_arrays",
    "model_store.model_files.save_arrays",
    "federation.run_records.replace_file",
    "training.spectrum_cache.save_arrays",
)


@pytest.mark.anyio
@pytest.mark.parametrize("writer", WRITERS)
async def test_a_round_without_room_is_done_once_there_is_some(
    federation: Federate, until: Until, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    """Then the run ends as an undisturbed one does."""
    outcomes = []
    for refusing in (False, True):
        async with federation(2) as running:
            with monkeypatch.context() as full:
                silo, other = await running.enter()
                if refusing:
                    full.setattr(f"client_service.{writer}", refuse)
                await running.start()
                if refusing:
                    await until(has_problem(silo, "expected free disk space and a writable directory, got No space"))
            assert (await silo.get("/health/live")).status_code == 200
            await until(finished(silo, other))
            history = await running.history()
            assert [one["missing"] for one in history["rounds"]] == [[], []]
            outcomes.append([_digests(one) for one in history["rounds"]])
        rmtree(running.settings.state_directory)  # the next run is the first of its federation again
        for client in running.clients:
            rmtree(client.models_directory)
    assert outcomes[0] == outcomes[1]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "writer",
    ["secure_rounds.masking.replace_file", "boundary.ledger.os.fsync", "federation.checkpoint.save_arrays"],
)
async def test_a_secure_round_without_room_is_done_once_there_is_some(
    federation: Federate, until: Until, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    """Nobody is missing in it: no secret has left that is not on the disk."""
    async with federation(3, secure=True) as running:
        with monkeypatch.context() as full:
            silos = await running.enter()
            full.setattr(f"client_service.{writer}", refuse)
            await running.start()
            await until(has_problem(silos[0], "expected free disk space and a writable directory, got No space"))
        await until(finished(*silos))
        history = await running.history()
        assert history["phase"] == "finished" and [one["missing"] for one in history["rounds"]] == [[], []]


def _digests(one: dict[str, Any]) -> dict[str, str]:
    """Of the round's participants."""
    return {who["client"]: who["digest"] for who in one["participants"]}
