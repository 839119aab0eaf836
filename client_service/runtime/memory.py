"""What this process has freed of its memory -> back to the system."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress


def return_free_memory() -> None:
    """Tens to hundreds of megabytes after a model was begun, trained or taken up; nothing where libc cannot.

    What is left lives long. Python's collector of cycles passes over it until the next call: otherwise it looks through
    all of it while answers of many objects are made, and one in ten batches waits for a tenth of a second.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
