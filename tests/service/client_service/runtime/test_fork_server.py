"""A process forks others for the one that has started it, and reports how each ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

FORKS = """
import asyncio, os, signal, sys
from client_service.runtime.fork_server import start_fork_server

built = []


def prepare():
    built.append(os.getpid())

    def run(refusal):
        os.write(refusal, f"{os.getppid()} {built[0]} {os.read(0, 1)!r}".encode())
        return 7

    return run


forks = start_fork_server(prepare)


async def use():
    async def start():
        ours, theirs = os.pipe()
        process = await forks.start(theirs, theirs)
        os.close(theirs)
        return process, ours

    process, ours = await start()
    process.terminate()  # at once: before it runs anything
    assert await process.wait() == -signal.SIGTERM
    (process, ours), (other, _) = await start(), await start()
    assert process.pid != other.pid and forks.pid not in (process.pid, other.pid)
    other.kill()
    assert await other.wait() == -signal.SIGKILL
    os.kill(forks.pid, signal.SIGTERM)  # nothing to it: its parent process ends it
    abandoned = asyncio.create_task(forks.start(ours, ours))
    await asyncio.sleep(0)
    abandoned.cancel()
    process, ours = await start()
    os.kill(forks.pid, signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    assert forks.has_ended and forks.pid == 0
    try:
        await forks.start(ours, ours)
    except OSError:
        print("whole")


asyncio.run(use())
forks.close()
"""
ENDS = """
import asyncio, os
from client_service.runtime.fork_server import start_fork_server

forks = start_fork_server(lambda: lambda refusal: os.write(refusal, b"%d" % os.getppid()) * 0 + 7)


async def use():
    ours, theirs = os.pipe()
    process = await forks.start(theirs, theirs)
    code = await process.wait()
    assert os.read(ours, 99) == b"%d" % forks.pid
    print("code", code)


asyncio.run(use())
forks.close()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("none left")
"""
FAILS = """
import asyncio
from client_service.runtime.fork_server import start_fork_server
from shared.errors import SettingsError


def prepare():
    raise SettingsError("expected a certificate, got none")


forks = start_fork_server(prepare)


async def use():
    try:
        await forks.start(1, 1)
    except OSError:
        print("ended")


asyncio.run(use())
forks.close()
"""


def run_script(script: str) -> str:
    """What a script prints, in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_forked_processes_end_as_they_are_told_and_with_the_fork_server() -> None:
    assert run_script(FORKS) == "whole\n"


def test_the_exit_code_of_a_forked_process_comes_back_and_nothing_is_left_at_the_end() -> None:
    assert run_script(ENDS) == "code 7\nnone left\n"


def test_a_mistake_in_settings_ends_the_fork_server_without_a_word() -> None:
    assert run_script(FAILS) == "ended\n"
