"""Measures mapped memory, and returns freed memory to the system."""

from __future__ import annotations

import ctypes
import gc
import mmap
from contextlib import suppress
from pathlib import Path

KEPT_BYTES = 4 << 20  # of freed memory, and of one array: arrays of an answer are smaller
TRIM_THRESHOLD, MMAP_THRESHOLD, MOST_ARENAS = -1, -3, -8  # of glibc's mallopt


def return_free_memory(*, frozen: bool = False) -> None:
    """Gives freed memory back to the system, and excludes living objects from garbage collection.

    The first frees tens to hundreds of megabytes after a model was begun, trained or loaded; without glibc it does
    nothing. Objects that are alive now live long: Python's collector skips them until the next call. Otherwise it
    would go through all of them while large answers are built, and one in ten batches would wait for a tenth of a
    second.

    frozen: objects that an earlier call excluded stay excluded, and so stay shared with a forked process.
    """
    if not frozen:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def keep_freed_memory() -> None:
    """Keeps freed memory in the process, so that the next answer can use it.

    Memory from the system costs an answer as much time as the ranking. All threads share two arenas, and each keeps
    KEPT_BYTES. Nothing changes where the C library has no mallopt.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        for parameter, value in ((TRIM_THRESHOLD, KEPT_BYTES), (MMAP_THRESHOLD, KEPT_BYTES), (MOST_ARENAS, 2)):
            library.mallopt(parameter, value)


def mapped_memory() -> int:
    """Measures the bytes of mapped files, of libraries too, that are in this process's memory.

    0 if the system does not tell.
    """
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[2]) * mmap.PAGESIZE
    return 0
