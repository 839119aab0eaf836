"""What a restart finds again, and what it clears away."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aggregator_service.aggregation import computation
from aggregator_service.rounds import run
from shared.errors import SettingsError
from shared.method.settings import MethodSettings
from tests.support.questions import LONGEST_SECONDS
from tests.support.small import BEARER

if TYPE_CHECKING:
    from conftest import Federation, Running

pytestmark = pytest.mark.anyio


def blobs(federation: Federation) -> list[Path]:
    return sorted((federation.settings.state_directory / "blobs").iterdir())


async def test_a_restart_in_mid_round_keeps_what_was_received(running: Running) -> None:
    async with running() as federation:
        north, south = await federation.joined("north", "south")
        await federation.start_run(rounds=2, clients=2)
        receipt = (await north.put(1, north.update(1.0, rho=0.1, margin=0.5))).json()
        anchor = (await north.get("/v1/runs/run-1/rounds/1/anchor")).json()
        before = (await north.get("/v1/runs/current")).json()
    async with running() as federation:
        north, south = federation.client("north"), federation.client("south")
        after = (await north.get("/v1/runs/current")).json()
        assert {**after, "seconds_left": 0} == {**before, "seconds_left": 0}
        assert after["standing"] == "received"
        again = await north.put(1, north.update(1.0, rho=0.1, margin=0.5))
        assert (again.status_code, again.json()) == (200, receipt)
        assert (await south.get("/v1/runs/run-1/rounds/1/anchor")).json() == anchor
        assert (await south.put(1, south.update(3.0, rho=0.2, margin=0.5))).status_code == 201
        assert (await south.personalised(1)).status_code == 200


async def test_an_upload_that_a_shutdown_cuts_off_in_its_commit_is_whole_after_the_restart(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    committing, go_on, through = threading.Event(), threading.Event(), threading.Event()
    commit = run.save_run

    def slow(*positional: Any, **named: Any) -> None:
        committing.set()
        go_on.wait(LONGEST_SECONDS)
        commit(*positional, **named)
        through.set()

    async with running() as federation:
        north, south = await federation.joined("north", "south")
        await federation.start_run(rounds=1, clients=2)
        with monkeypatch.context() as patch:
            patch.setattr(run, "save_run", slow)
            upload = asyncio.create_task(north.put(1, north.update(1.0, rho=0.1, margin=0.5)))
            assert await asyncio.to_thread(committing.wait, LONGEST_SECONDS)
            upload.cancel()
            with pytest.raises(asyncio.CancelledError):
                await upload
            go_on.set()
            assert await asyncio.to_thread(through.wait, LONGEST_SECONDS)
    async with running() as federation:
        north, south = federation.client("north"), federation.client("south")
        assert (await north.get("/v1/runs/current")).json()["standing"] == "received"
        assert (await south.put(1, south.update(3.0, rho=0.2, margin=0.5))).status_code == 201
        assert (await north.personalised(1)).status_code == 200


async def test_the_operator_is_told_of_nothing_before_the_clients_are(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transition that is on the disk already, and not yet known in memory."""
    committed, go_on, commit = threading.Event(), threading.Event(), run.save_run

    def slow(*positional: Any, **named: Any) -> None:
        commit(*positional, **named)
        committed.set()
        go_on.wait(LONGEST_SECONDS)

    async with running() as federation:
        (north,) = await federation.joined("north")
        await federation.start_run(rounds=1, clients=1)
        with monkeypatch.context() as patch:
            patch.setattr(run, "save_run", slow)
            upload = asyncio.create_task(north.put(1, north.update(1.0, rho=0.1, margin=0.5)))
            assert await asyncio.to_thread(committed.wait, LONGEST_SECONDS)
            asked = [
                asyncio.create_task(federation.history()),
                asyncio.create_task(federation.http.get("/v1/runs", headers=BEARER)),
            ]
            early, _ = await asyncio.wait(asked, timeout=0.3)
            current = (await north.get("/v1/runs/current")).json()["phase"]
            go_on.set()
        assert current == "open" and not early
        assert (await upload).status_code == 201
        history, (head,) = await asked[0], (await asked[1]).json()
        assert history["phase"] != "open" and head["phase"] != "open"


async def test_personalised_parameters_are_the_same_after_a_restart(running: Running) -> None:
    async with running() as federation:
        (north,) = await federation.joined("north")
        await federation.start_run(rounds=2, clients=1)
        await north.put(1, north.update(1.0, rho=0.1, margin=0.5))
        before = await north.personalised(1)
    async with running() as federation:
        assert (await federation.client("north").personalised(1)).content == before.content


async def test_a_round_that_was_closed_but_not_aggregated_is_aggregated_at_the_start(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    async with running() as federation:
        (north,) = await federation.joined("north")
        await federation.start_run(rounds=2, clients=1)
        with monkeypatch.context() as patch:
            patch.setattr(computation, "aggregate_round", full_disk)
            assert (await north.put(1, north.update(1.0))).status_code == 201
            await anyio.sleep(0.05)
            assert (await north.get("/v1/runs/current")).json()["phase"] == "aggregated"
            assert (await federation.http.get("/health/ready")).status_code == 503
            federation.app.state.coordinator.wind_down()
            await anyio.sleep(0.01)
    async with running() as federation:
        assert (await federation.client("north").personalised(1)).status_code == 200
        assert (await federation.client("north").get("/v1/runs/current")).json()["round"] == 2


async def test_an_aggregation_that_cannot_succeed_fails_the_run_with_its_reason(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a mistake in a strategy")

    async with running() as federation:
        (north,) = await federation.joined("north")
        await federation.start_run(rounds=2, clients=1)
        monkeypatch.setattr(computation, "aggregate_round", broken)
        await north.put(1, north.update(1.0))
        assert (await north.personalised(1)).status_code == 409
        history = await federation.history()
        assert history["reason"] == "round 1 could not be aggregated: ValueError: a mistake in a strategy"


async def test_a_deadline_that_passed_while_the_service_was_down_counts(running: Running) -> None:
    async with running() as federation:
        await federation.joined("north")
        await federation.start_run(rounds=2, clients=1)
    federation.clock.pass_the_deadline()
    async with running() as federation:
        answer = await federation.client("north").personalised(1)
        assert answer.status_code == 409
        assert (await federation.history())["phase"] == "failed"


async def test_files_that_no_row_speaks_of_are_cleared_away(running: Running) -> None:
    async with running() as federation:
        (north,) = await federation.joined("north")
        await federation.start_run(rounds=2, clients=1)
        await north.put(1, north.update(1.0))
        assert (await north.personalised(1)).status_code == 200
        held = blobs(federation)
    for name in ("left.part", "left.safetensors"):
        (federation.settings.state_directory / "blobs" / name).write_bytes(b"left by a crash")
    async with running() as federation:
        assert blobs(federation) == held


async def test_retention_keeps_the_last_rounds_and_every_clients_last_update(running: Running) -> None:
    async with running(retention_rounds=2) as federation:
        north, away = await federation.joined("north", "away")
        await federation.start_run(rounds=5, clients=2, quorum=1)
        await away.put(1, away.update(9.0))
        for number in range(1, 6):
            await north.put(number, north.update(float(number)))
            if number > 1:  # the first round has everybody's update, and closes by itself
                federation.clock.pass_the_deadline()
            assert (await north.personalised(number, wait=20)).status_code == 200
        # north's rounds 4 and 5, away's round 1, the states after rounds 4 and 5
        with anyio.fail_after(LONGEST_SECONDS):
            while len(blobs(federation)) != 5:
                await anyio.sleep(0.01)
        assert (await away.personalised(5)).status_code == 200
        assert (await away.personalised(4)).status_code == 200
        gone = await north.personalised(3)
        assert (gone.status_code, gone.json()["code"]) == (404, "not-found")


async def test_of_the_operator_s_token_and_of_signatures_nothing_is_stored(running: Running) -> None:
    async with running() as federation:
        await federation.joined("north")
        headers = federation.client("north").auth.headers("GET", b"/v1/runs/current")
        assert (await federation.http.get("/v1/runs/current", headers=headers)).status_code == 200
    files = list(federation.settings.state_directory.glob("*.sqlite*"))
    assert {"aggregator.sqlite", "nonces.sqlite"} <= {file.name for file in files}
    for secret in (federation.settings.token(), headers["signature"]):
        assert [file for file in files if secret.encode() in file.read_bytes()] == []


async def test_a_state_directory_belongs_to_one_federation(running: Running) -> None:
    async with running():
        pass
    with pytest.raises(SettingsError, match="state_directory"):
        async with running(method=MethodSettings(width=8)):
            pass


async def test_two_aggregators_never_share_a_state_directory(running: Running) -> None:
    async with running() as first:
        with pytest.raises(SettingsError, match=rf"another process \({os.getpid()}\) is using"):
            async with running():
                pass
        assert (await first.http.get("/health/ready")).status_code == 200


async def test_a_database_of_another_version_is_refused(running: Running, tmp_path: Path) -> None:
    async with running():
        pass
    connection = sqlite3.connect(tmp_path / "state" / "aggregator.sqlite")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(SettingsError, match="expected a database of version 2 or older, got 99"):
        async with running():
            pass
