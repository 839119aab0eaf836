"""A command of the command line, in a process that goes on after this one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from shared.errors import UnavailableError

START_SECONDS = 120.0
LOOK_SECONDS = 0.1


def serve_detached(words: Sequence[str], log: Path, url: str) -> int:
    """Start `lpsfed` with these words and wait until its service is ready at `url`; its process id.

    UnavailableError, and nothing is left running, where it does not get so far.
    """
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "simulation.cli", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, url, log)
    except BaseException:
        process.kill()
        process.wait()
        raise
    process.returncode = 0  # a handle warns of a child that outlives it; this one is meant to
    return process.pid


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise UnavailableError(f"expected a service at {url}, it has ended with {process.returncode}: see {log}")
        with suppress(httpx.TransportError):  # it does not listen yet
            if httpx.get(f"{url}/health/ready", trust_env=False).is_success:
                return
        time.sleep(LOOK_SECONDS)
    raise UnavailableError(f"expected a service at {url} within {START_SECONDS:g} s: see {log}")
