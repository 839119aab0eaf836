"""This process -> one into whose memory, files and mounts nobody of the same user looks.

A probe shares the part's processes, to see how that part is confined. The part must not see through the probe's
process what is mounted for the probe alone: the folders of the evidence and of the meeting.
"""

from __future__ import annotations

import ctypes

PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4  # of Linux's prctl


def hide_process() -> None:
    """From now on /proc/N of this process is root's alone."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def is_hidden() -> bool:
    return bool(ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0)
