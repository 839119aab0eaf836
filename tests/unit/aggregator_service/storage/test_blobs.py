"""A body that nobody waits for any more leaves no file, whenever that happens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from aggregator_service.storage import disk
from aggregator_service.storage.disk import Blobs, Disk
from tests.support.questions import LONGEST_SECONDS

pytestmark = pytest.mark.anyio


async def body() -> AsyncIterator[bytes]:
    yield b"refused by nobody, and wanted by nobody"


async def test_a_file_that_is_done_just_when_its_request_is_cancelled_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete, done, let_go = disk._finish_spool, threading.Event(), threading.Event()

    def complete_and_wait(*given: Any) -> Any:
        found = complete(*given)
        done.set()
        let_go.wait(LONGEST_SECONDS)
        return found

    monkeypatch.setattr(disk, "_finish_spool", complete_and_wait)
    receiving = asyncio.create_task(Blobs(tmp_path, Disk()).receive(body(), limit=1000, inspect=len))
    with anyio.fail_after(LONGEST_SECONDS):
        while not done.is_set():
            await anyio.sleep(0.01)
    assert [path.suffix for path in tmp_path.iterdir()] == [disk.WHOLE]
    receiving.cancel()
    let_go.set()
    with suppress(asyncio.CancelledError):
        await receiving
    assert receiving.cancelled() and list(tmp_path.iterdir()) == []
