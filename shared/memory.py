"""Finds the memory that this process may use, and spares its start garbage collections."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
CGROUP_FILES = ("memory.max", "memory/memory.limit_in_bytes")  # of version 2 and of version 1


def usable_memory() -> int:
    """Finds the bytes of memory that this process may use.

    The number is the machine's memory, or a lower limit of this process's control group.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_cgroup_limits()])


def _cgroup_limits() -> Iterator[int]:
    """Yields limits of this process's control group and those above it, in bytes."""
    own = ""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        own = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
    inner = CGROUPS / own
    for folder in (inner, *inner.parents):
        if folder.is_relative_to(CGROUPS):
            for name in CGROUP_FILES:
                with suppress(OSError, ValueError):  # no such file, or "max"
                    yield int((folder / name).read_text(encoding="ascii"))


@contextmanager
def pause_collections() -> Iterator[None]:
    """Pauses garbage collections while a process imports what it works with.

    Modules live to the end: collections would go through them again and again, a sixth of the time of a trainer's
    imports. Afterwards the collector skips all that is alive.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
