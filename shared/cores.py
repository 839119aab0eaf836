"""Work that falls into pieces, each computed by itself -> all of them, on the cores that this process may use.

What a piece gives does not depend on who computes it, nor on how many do: cores change seconds and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def available_cores() -> int:
    """Of the machine, those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_threads(work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> list[Result]:
    """What the work gives for each piece, in their order. The first error ends it: later pieces are not begun."""
    todo, cores = list(pieces), available_cores()
    if cores == 1 or len(todo) <= 1:
        return [work(piece) for piece in todo]
    with ThreadPoolExecutor(min(cores, len(todo)), "piece") as pool:
        try:
            return list(pool.map(work, todo))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
