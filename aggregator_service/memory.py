"""The C library's allocator -> one that gives large blocks back to the system as soon as they are freed.

By itself glibc raises the size from which it does so to 32 MiB, and keeps what is smaller for each of many threads: an
aggregator that works on a tensor at a time would still hold several of them for good.
"""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # of glibc's mallopt
LARGE = 4 << 20  # bytes
ARENAS = 2


def give_back_large_blocks() -> bool:
    """Tell the allocator so; False where it is not glibc's, and nothing is changed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    taken = [mallopt(MMAP_THRESHOLD, LARGE), mallopt(TRIM_THRESHOLD, LARGE), mallopt(ARENA_MAX, ARENAS)]
    return taken == [1, 1, 1]
