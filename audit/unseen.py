"""Hide this process's memory, files and mounts from other processes of the same user.

A probe shares the processes of the part that it examines. The part must not see through the probe's process what is
mounted for the probe alone: the folders of the evidence and of the meeting.
"""

from __future__ import annotations

import ctypes

PR_SET_DUMPABLE = 4  # of Linux's prctl


def hide_process() -> None:
    """Make /proc/N of this process readable by root alone from now on."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
