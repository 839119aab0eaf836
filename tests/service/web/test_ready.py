"""The health check of containers: a file that says until when the service's word counts, and a shell that reads it."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
import uvicorn
from fastapi import FastAPI

from shared.errors import SettingsError
from shared.web import server as serving
from shared.web import server as subject
from shared.web.listening import ListenSettings
from tests.support.questions import LONGEST_SECONDS

ROOT = Path(__file__).parents[3]
CHECK = ROOT / "shared" / "web" / "ready.sh"


Serve = Callable[..., Any]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Serve as both services do, on a free port, until `meanwhile(server)` has ended."""
    built, build = [], serving.build_server
    monkeypatch.setattr(serving, "build_server", lambda *args, **given: built.append(build(*args, **given)) or built[0])

    async def run(file: Path, meanwhile: Any, unready_reason: Callable[[], str | None] = lambda: None) -> None:
        async def until_ended() -> None:
            while not built:
                await anyio.sleep(0.001)
            try:
                await meanwhile(built[0])
            finally:
                built[0].should_exit = True

        settings, said = (
            ListenSettings(ready_file=file),
            {"on_shutdown": lambda: None, "unready_reason": unready_reason},
        )
        async with anyio.create_task_group() as both:
            both.start_soon(until_ended)
            await serving.run_server(FastAPI(), settings, identities={}, logger=Mock(), **said)

    return run


def check(file: Path) -> subprocess.CompletedProcess[str]:
    """As an engine runs it, but with nothing to be found in the PATH: the shell does all of it by itself."""
    command, nothing = ["/bin/sh", str(CHECK), str(file)], {"PATH": "/nowhere"}
    return subprocess.run(command, env=nothing, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)


def test_a_word_counts_until_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "ready"
    subject.write_ready(file)
    assert check(file).returncode == 0 and [one.name for one in tmp_path.iterdir()] == ["ready"]
    monkeypatch.setattr(subject, "READY_SECONDS", -5)
    subject.write_ready(file)
    ended = check(file)
    assert ended.returncode == 1 and "got one that ended at" in ended.stderr


@pytest.mark.parametrize("content", [None, "", "soon\n", "-1\n"])
def test_no_word_and_another_word_are_not_ready(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "ready").write_text(content)
    assert check(tmp_path / "ready").returncode not in (0, None)


@pytest.mark.anyio
async def test_the_file_says_what_the_service_says_from_its_open_port_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    monkeypatch.setattr(subject, "READY_BEAT_SECONDS", 0.005)
    file, hindrances, told = tmp_path / "ready", [None], []
    file.write_text("9" * 12)  # of an earlier process, which was killed

    async def until(*, is_there: bool) -> None:
        with anyio.fail_after(LONGEST_SECONDS):
            while file.exists() is not is_there:
                await anyio.sleep(0.005)
        told.append(check(file).returncode == 0)

    async def look(server: uvicorn.Server) -> None:
        await until(is_there=True)
        async with await anyio.connect_tcp(*server.servers[0].sockets[0].getsockname()):
            hindrances[0] = "the disk refuses"
            await until(is_there=False)
            hindrances[0] = None
            await until(is_there=True)

    await serve(file, look, lambda: hindrances[0])
    assert told == [True, False, True] and not file.exists()


@pytest.mark.anyio
async def test_a_service_whose_event_loop_stands_still_is_no_longer_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    monkeypatch.setattr(subject, "READY_SECONDS", 2.0)
    file = tmp_path / "ready"

    async def stand_still(server: uvicorn.Server) -> None:
        del server
        with anyio.fail_after(LONGEST_SECONDS):
            while not file.exists():
                await anyio.sleep(0.005)
        until = time.monotonic() + LONGEST_SECONDS
        while check(file).returncode == 0:
            assert time.monotonic() < until
        assert file.exists()

    await serve(file, stand_still)


@pytest.mark.anyio
async def test_a_place_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    settings, said = (
        ListenSettings(ready_file=tmp_path / "none" / "ready"),
        {"on_shutdown": Mock(), "unready_reason": Mock()},
    )
    with pytest.raises(SettingsError, match="ready_file: expected a writable path"):
        await serving.run_server(FastAPI(), settings, identities={}, logger=Mock(), **said)
    with pytest.raises(SettingsError, match="ready_file: expected a system with /nowhere, got none"):
        subject.seconds_since_boot(Path("/nowhere"))


@pytest.mark.anyio
async def test_a_place_that_fails_later_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "READY_BEAT_SECONDS", 0.001)
    looked, logger = Mock(return_value=None), Mock()
    async with anyio.create_task_group() as group:
        group.start_soon(subject.keep_ready, tmp_path / "none" / "ready", looked, logger)
        with anyio.fail_after(LONGEST_SECONDS):
            while looked.call_count < 5:
                await anyio.sleep(0.001)
        group.cancel_scope.cancel()
    assert [call.args for call in logger.error.call_args_list] == [("ready_file_refused",)]


@pytest.mark.parametrize("service", ["aggregator", "client"])
def test_an_image_checks_the_file_that_its_service_writes(service: str) -> None:
    text = (ROOT / f"{service}_service" / "Dockerfile").read_text(encoding="utf-8")
    (words,) = re.findall(r"HEALTHCHECK .*\\\n +CMD (\[.*\])", text)
    program, script, file = json.loads(words)
    assert program == "sh" and script == f"/opt/code/{CHECK.relative_to(ROOT)}"
    assert f"LPSFED_{service.upper()}_READY_FILE={file} " in f"{text} ".replace("\n", " ")
    assert "COPY shared /opt/code/shared" in text and CHECK.is_file()
