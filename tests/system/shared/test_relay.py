"""A process of the relay ends when it is told to."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import anyio
import pytest

from simulation.ports import free_ports
from tests.support.echo import asked, echo, listening
from tests.support.questions import LONGEST_SECONDS

pytestmark = pytest.mark.anyio


@pytest.mark.processes
async def test_a_process_of_it_ends_when_told_to() -> None:
    async with listening(echo) as behind:
        (port,) = free_ports(1)
        process = subprocess.Popen([sys.executable, "-m", "shared.web.relay", str(port), f"127.0.0.1:{behind}"])
        try:
            assert await _answered(port) == b"echo hello"
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, LONGEST_SECONDS) == 0
        finally:
            process.kill()
            process.wait()


async def _answered(port: int) -> bytes:
    """The answer of a relay that is about to listen."""
    with anyio.fail_after(LONGEST_SECONDS):
        while True:
            try:
                return await asked(port, b"hello")
            except ConnectionRefusedError:
                await anyio.sleep(0.02)
