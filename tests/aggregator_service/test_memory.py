"""A large block that is freed goes back to the system at once, in a process that has asked for it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
from pathlib import Path
from aggregator_service.process import give_back_large_blocks

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

assert give_back_large_blocks()
for _ in range(3):  # by itself glibc would raise its threshold to this size, and keep the next ones
    bytearray(24 << 20)
between = [bytearray(24 << 20) for _ in range(4)]
last = bytearray(1 << 10)
full = resident()
del between
print(full - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library's allocator is left alone")
def test_large_blocks_go_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) > 90 << 10  # KiB
