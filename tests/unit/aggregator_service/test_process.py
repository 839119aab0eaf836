"""What a service makes of its process: one thread of linear algebra, and large blocks that go back at once."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from tests.support.questions import LONGEST_SECONDS

THREADS = """
import os
from threadpoolctl import threadpool_info
from shared.method import anchor
from aggregator_service.process import limit_math_threads

def threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

assert max(threads()) == min(2, len(os.sched_getaffinity(0)))  # of one core there is no second thread
limit_math_threads()
assert threads() == {1}
import scipy.sparse.linalg
assert threads() == {1}  # also those of a library that is loaded later
"""
SOLVER = """
import sys
import tempfile
import time
from pathlib import Path

import anyio

from aggregator_service.coordinator import Coordinator
from tests.support.small import small_aggregator

async def loads_solver(strategy, seconds):
    with tempfile.TemporaryDirectory() as folder:
        async with Coordinator(small_aggregator(Path(folder), strategy=strategy), clock=time.time).running():
            with anyio.move_on_after(seconds):
                while "scipy.sparse.linalg" not in sys.modules:
                    await anyio.sleep(0.01)
    return "scipy.sparse.linalg" in sys.modules

assert not anyio.run(loads_solver, "fedavg", 1.0)
assert anyio.run(loads_solver, "lpsfed", 60.0)
"""
BLOCKS = """
from pathlib import Path
from aggregator_service.process import return_freed_memory

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

assert return_freed_memory()
for _ in range(3):  # by itself glibc would raise its threshold to this size, and keep the next ones
    bytearray(24 << 20)
between = [bytearray(24 << 20) for _ in range(4)]
last = bytearray(1 << 10)
full = resident()
del between
assert full - resident() > 90 << 10  # KiB
"""


def run_alone(program: str) -> None:
    """In a process of its own, which may use two threads."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=LONGEST_SECONDS
    )
    assert done.returncode == 0, done.stderr


def test_linear_algebra_has_one_thread() -> None:
    run_alone(THREADS)


def test_what_draws_anchors_is_loaded_at_the_start_by_whom_it_concerns() -> None:
    run_alone(SOLVER)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library's allocator is left alone")
def test_large_blocks_go_back() -> None:
    run_alone(BLOCKS)
