"""Command line of the benchmarks, `python -m benchmarks`."""

from __future__ import annotations

import sys

from audit.terminal import run_command_line
from benchmarks.harness.command import main

if __name__ == "__main__":
    run_command_line(lambda: sys.exit(main()))
