"""Process of the service: log, clock, worker threads and memory."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

import anyio
from threadpoolctl import threadpool_limits

from shared.web.logs import make_logger

P = ParamSpec("P")
T = TypeVar("T")
Clock = Callable[[], float]
LOGGER = make_logger("aggregator_service")
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # of glibc's mallopt
LARGE = 4 << 20  # bytes
WORKERS = ThreadPoolExecutor(40, "worker")  # each may wait for the disk or the database
ARENAS = 2
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")  # read by each library of linear algebra


async def run_in_worker(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs a function in a worker thread, so that the event loop stays free.

    A caller that is cancelled waits for its end: it may be writing what the caller then closes or removes. What anyio
    has for this takes several times as long, a tenth of an upload.
    """
    run = partial(copy_context().run, function, *args, **kwargs)  # it logs under the caller's request
    running = asyncio.get_running_loop().run_in_executor(WORKERS, run)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await asyncio.wait([running])
        running.exception()  # which nobody else asks for
        raise


class SerialWorker:
    """Worker that runs one function at a time.

    For work with whole tensors in memory, each of which may be as large as an update. Short functions that come
    together run in one visit to a thread: to hand each over would take as long as to run it.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._working: asyncio.Task[None] | None = None

    async def run_in_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a function once those before it have ended.

        A caller that is cancelled leaves a function that has begun to its end.
        """
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((partial(copy_context().run, function, *args, **kwargs), outcome))
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        return await outcome

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                await run_in_worker(self._run_waiting, loop)
        except Exception as error:  # no thread can be started
            while self._waiting:
                _settle(self._waiting.popleft()[1], None, error)
        finally:
            self._working = None

    def _run_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs the waiting functions in a thread, and passes on each outcome at once."""
        while self._waiting:
            run, outcome = self._waiting.popleft()
            if outcome.cancelled():
                continue
            result, error = None, None
            try:
                result = run()
            except Exception as raised:
                error = raised
            loop.call_soon_threadsafe(_settle, outcome, result, error)
            del run, outcome, result, error  # nothing large is kept while the next one runs


def _settle(outcome: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if outcome.done():  # its caller has left
        return
    if error is None:
        outcome.set_result(result)
    else:
        outcome.set_exception(error)


def limit_math_threads() -> None:
    """Limits linear algebra to one thread.

    Matrices are small here, and threads that wait for each other on a busy machine spin meanwhile: an anchor would
    take ten times as long and block all answers. The variables count for libraries that are loaded later, as scipy's.
    """
    os.environ.update(dict.fromkeys(THREADS, "1"))
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
