"""Starts the serving processes beside a client that trains, restarts them, and ends them with it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from client_service.runtime.logs import LOGGER
from shared.web.server import TETHERED, run_beside

GRACE_SECONDS = 10.0
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 60.0  # before a process that has ended is started again
STABLE_SECONDS = 60.0  # one that ran for so long is started again without a longer wait


def keep_replicas(count: int, arguments: Sequence[str]) -> AbstractAsyncContextManager[None]:
    """Keeps `count` serving processes with these arguments alive while the body runs."""
    return run_beside(*(_keep(number, arguments) for number in range(1, count + 1)))


async def _keep(number: int, arguments: Sequence[str]) -> None:
    """One process after another, each after a longer wait than the last where they end soon."""
    wait = FIRST_WAIT_SECONDS
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        code = await _run(arguments)
        wait = FIRST_WAIT_SECONDS if loop.time() - began > STABLE_SECONDS else min(2 * wait, LONGEST_WAIT_SECONDS)
        LOGGER.warning("replica_ended", replica=number, code=code, starts_again_after=wait)
        await asyncio.sleep(wait)


async def _run(arguments: Sequence[str]) -> int:
    """Its exit status. Cancelled, it is asked to end, and killed where it does not."""
    command = (sys.executable, "-m", "client_service", "--replica", *arguments, TETHERED)
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(GRACE_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
