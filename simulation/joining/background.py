"""Starts a service of the command line in the background."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from shared.errors import SettingsError, UnavailableError
from shared.web.address import write_address
from shared.web.health import READY_PIPE, READY_WORD
from shared.web.listening import ListenSettings
from simulation.ports import require_free_port
from simulation.progress import step

START_SECONDS = 120.0
POLL_SECONDS = 0.1
LOG_BYTES = 4096  # of the log's end, for the line that says why a service has ended


@step("waiting for the service to be ready")
def serve_in_background(words: Sequence[str], log: Path, settings: ListenSettings) -> int:
    """Starts `lpsfed` with these words and returns its process id once its service is ready.

    The process reports readiness through a pipe that only it holds, so that another service at the same address is
    not mistaken for it. Raises SettingsError for a port that is taken, and UnavailableError if the service does
    not become ready; then no process is left.
    """
    if settings.port == 0:
        raise SettingsError("--detach: expected a port that others know, got 0; choose one by --port")
    require_free_port(settings.host, settings.port)
    url = write_address(settings.host, settings.port, tls=settings.tls_certificate is not None)
    ours, theirs = os.pipe()
    start = log.stat().st_size if log.exists() else 0
    try:
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "simulation.cli", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                pass_fds=(theirs,),
                env=os.environ | {READY_PIPE: str(theirs)},
            )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    try:
        _wait_until_ready(process, ours, url, log, start)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        os.close(ours)
    process.returncode = 0  # a handle warns of a child that outlives it; this one is meant to
    return process.pid


def _wait_until_ready(process: subprocess.Popen[bytes], pipe: int, url: str, log: Path, start: int) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if select.select([pipe], [], [], POLL_SECONDS)[0]:
            if os.read(pipe, len(READY_WORD)) == READY_WORD and process.poll() is None:
                return
            process.wait()  # it has closed the pipe without a word: it ends
        if process.poll() is not None:
            last = _last_line(log, start)
            words = f"it has ended with {process.returncode}: {last}; see {log}"
            raise UnavailableError(f"expected a service at {url}, {words}")
    raise UnavailableError(f"expected a service at {url} within {START_SECONDS:g} s: see {log}")


def _last_line(log: Path, start: int) -> str:
    """Returns the last line of what this process has logged: why it has ended."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - LOG_BYTES))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "it has logged nothing")
