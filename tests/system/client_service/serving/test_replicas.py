"""Serving processes live and end with the client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from client_service.settings import ClientSettings
from shared.protocol.signing.enrolment import kept_pair
from simulation.experiments.processes import free_ports
from tests.support.questions import LONGEST_SECONDS


@contextmanager
def running(settings: ClientSettings) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A client as a process of its own, with its log."""
    log = settings.state_directory.parent / "client.log"
    names = ("name", "shard", "state_directory", "workers", "serving_port", "port")
    environment = {f"LPSFED_CLIENT_{name.upper()}": str(getattr(settings, name)) for name in names}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "client_service"],
            env=os.environ | environment | {"LPSFED_CLIENT_AGGREGATOR_URL": "http://127.0.0.1:9"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
        try:
            yield process, log
        finally:
            process.kill()
            process.wait()


def wait_for(question: Callable[[], bool]) -> None:
    until = time.monotonic() + LONGEST_SECONDS
    while not question():
        assert time.monotonic() < until
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """Of a process, which may have ended."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if parent_of(path) == pid]


def parent_of(process: Path) -> int:
    with suppress(OSError):
        return int((process / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[1])
    return 0


def answers(port: int) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/health/ready", trust_env=False).is_success
    return False


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="children are looked for in /proc")
def test_serving_processes_are_kept_alive_and_end_with_the_client(settings: ClientSettings) -> None:
    kept_pair(settings.name, settings.state_directory)
    port, serving_port = free_ports(2)
    changes = {"workers": 2, "port": port, "serving_port": serving_port}
    with running(settings.model_copy(update=changes)) as (process, log):
        wait_for(lambda: len(children(process.pid)) == 2 and answers(serving_port))
        first = children(process.pid)
        os.kill(first[0], signal.SIGKILL)
        wait_for(lambda: len({*children(process.pid)} - {*first}) == 1)
        assert b'"event": "replica_ended"' in log.read_bytes()
        wait_for(lambda: answers(port) and answers(serving_port))
        left = children(process.pid)
        process.send_signal(signal.SIGTERM)
        process.wait(LONGEST_SECONDS)
        wait_for(lambda: not any(is_running(pid) for pid in left))
    assert not answers(serving_port)


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="children are looked for in /proc")
def test_serving_processes_end_with_a_client_that_is_killed(settings: ClientSettings) -> None:
    kept_pair(settings.name, settings.state_directory)
    port, serving_port = free_ports(2)
    with running(settings.model_copy(update={"workers": 1, "port": port, "serving_port": serving_port})) as (
        process,
        _,
    ):
        wait_for(lambda: answers(serving_port))
        left = children(process.pid)
        process.kill()
        wait_for(lambda: not any(is_running(pid) for pid in left))
    assert len(left) == 1 and not answers(serving_port)


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended. One whose parent has yet to ask for its end has ended."""
    with suppress(OSError):
        stat = (Path("/proc") / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
        return stat.rpartition(")")[2].split()[0] != "Z"
    return False
