"""What a process has freed -> back to the system, which by itself it would keep for the next time."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress


def return_free_memory() -> None:
    """Tens to hundreds of megabytes after a model was begun, trained or taken up; nothing where libc cannot."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
