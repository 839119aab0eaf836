"""`python -m benchmarks`: see harness/command.py."""

from __future__ import annotations

import sys

from audit.entry import enter
from benchmarks.harness.command import main

if __name__ == "__main__":
    enter(lambda: sys.exit(main()))
