"""Independent pieces of work on all cores that this process may use.

The result of a piece does not depend on the number of cores: they change only the time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def available_cores() -> int:
    """Returns the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_threads(work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> list[Result]:
    """Maps a function over pieces in threads; returns results in order.

    The first error ends it: later pieces are not started.
    """
    todo, cores = list(pieces), available_cores()
    if cores == 1 or len(todo) <= 1:
        return [work(piece) for piece in todo]
    with ThreadPoolExecutor(min(cores, len(todo)), "piece") as pool:
        try:
            return list(pool.map(work, todo))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
