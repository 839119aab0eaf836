"""Process of the service: log, clock, worker threads and memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
from anyio import to_thread
from threadpoolctl import threadpool_limits

from shared.web.logs import make_logger

P = ParamSpec("P")
T = TypeVar("T")
Clock = Callable[[], float]
LOGGER = make_logger("aggregator_service")
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # of glibc's mallopt
LARGE = 4 << 20  # bytes
ARENAS = 2


async def run_in_worker(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs a function in a worker thread, so that the event loop stays free."""
    return await to_thread.run_sync(partial(function, *args, **kwargs))


class SerialWorker:
    """Worker that runs one function at a time.

    For work with whole tensors in memory, each of which may be as large as an update.
    """

    def __init__(self) -> None:
        self._lock = anyio.Lock()

    async def run_in_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._lock:
            return await run_in_worker(function, *args, **kwargs)


def limit_math_threads() -> None:
    """Limits linear algebra to one thread.

    Matrices are small here, and threads that wait for each other on a busy machine spin meanwhile: an anchor would
    take ten times as long and block all answers.
    """
    threadpool_limits(1)


def return_freed_memory() -> bool:
    """Makes the C library return large blocks to the system once freed; False without glibc.

    By itself glibc raises the size from which it does so to 32 MiB, and keeps smaller blocks for each of many
    threads: an aggregator that works on one tensor at a time would hold several of them forever.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    taken = [mallopt(MMAP_THRESHOLD, LARGE), mallopt(TRIM_THRESHOLD, LARGE), mallopt(ARENA_MAX, ARENAS)]
    return taken == [1, 1, 1]
