"""Command line of the audit alone: `python -m audit`, without what training needs."""

from __future__ import annotations

import ctypes

PR_SET_DUMPABLE = 4  # of Linux's prctl


def hide_process() -> None:
    """Makes /proc/N of this process readable by root alone."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


if __name__ == "__main__":
    hide_process()  # before the rest is there: a probe shares the processes of the part that it looks at
    from audit.cli import main

    main()
