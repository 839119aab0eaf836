"""A service that is ready writes into a file until when its word counts, again and again: the health check of its
container (`ready.sh`) reads that and starts no Python.

A service whose event loop stands still, or whose port is closed, does not write, so that its last word runs out.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from shared.errors import SettingsError
from shared.timeouts import READY_BEAT_SECONDS, READY_SECONDS

READY_PIPE, READY_WORD = "LPSFED_READY_PIPE", b"ready"
"""A variable with the number of a pipe's end, which whoever started the service has opened; and the word for it."""
STARTED_BEAT_SECONDS = 0.05
UPTIME = Path("/proc/uptime")  # no change of the machine's time moves it, and a shell can read it


def seconds_since_boot(uptime: Path = UPTIME) -> float:
    """As the container sees it. SettingsError on a system without /proc."""
    try:
        return float(uptime.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        raise SettingsError(f"ready_file: expected a system with {uptime}, got none") from None


def require_ready_place(file: Path) -> None:
    """SettingsError where no word could be written there. A word of an earlier process is taken away."""
    seconds_since_boot()
    try:
        file.unlink(missing_ok=True)
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise _no_place(file, error) from None


def write_ready(file: Path) -> None:
    """Ready from now for READY_SECONDS. SettingsError where the file cannot be written; nobody reads half of it."""
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        partial.write_text(f"{int(seconds_since_boot() + READY_SECONDS)}\n", encoding="ascii")
        partial.replace(file)
    except OSError as error:
        raise _no_place(file, error) from None


def _no_place(file: Path, error: OSError) -> SettingsError:
    return SettingsError(f"ready_file: expected a place that can be written, got {file} ({error.strerror})")


async def keep_ready(file: Path, hindrance: Callable[[], str | None], logger: structlog.stdlib.BoundLogger) -> None:
    """Until cancelled: the file is there while nothing hinders. What cannot be written is logged once."""
    refused = False
    try:
        while True:
            if hindrance() is None:
                refused = _write_or_log(file, logger, told=refused)
            else:
                file.unlink(missing_ok=True)
            await asyncio.sleep(READY_BEAT_SECONDS)
    finally:
        file.unlink(missing_ok=True)


async def tell_starter(hindrance: Callable[[], str | None]) -> None:
    """Say once, to whoever has started this process and waits at the other end of its pipe, that it is ready."""
    given = os.environ.pop(READY_PIPE, "")
    if not given.isdecimal():
        return
    with os.fdopen(int(given), "wb", buffering=0) as pipe:
        os.set_inheritable(pipe.fileno(), False)  # what this process starts does not keep it open
        while hindrance() is not None:
            await asyncio.sleep(STARTED_BEAT_SECONDS)
        with suppress(BrokenPipeError):  # whoever waited has gone
            pipe.write(READY_WORD)


def _write_or_log(file: Path, logger: structlog.stdlib.BoundLogger, *, told: bool) -> bool:
    try:
        write_ready(file)
    except SettingsError as error:
        if not told:
            logger.error("ready_file_refused", reason=str(error))
        return True
    return False
