"""What computes or touches the disk -> a worker thread, so that the event loop stays free."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
from anyio import to_thread
from threadpoolctl import threadpool_limits

P = ParamSpec("P")
T = TypeVar("T")


def multiply_alone() -> None:
    """One thread of linear algebra from now on. What is multiplied here is small, and threads that wait for each other
    on a busy machine spin meanwhile: an anchor then takes ten times as long, and nobody is answered."""
    threadpool_limits(1)


class OneAtATime:
    """What holds whole tensors in memory, one after the other: they may be as large as an update."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()

    async def off_loop(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._lock:
            return await off_loop(function, *args, **kwargs)


async def off_loop(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await to_thread.run_sync(partial(function, *args, **kwargs))
