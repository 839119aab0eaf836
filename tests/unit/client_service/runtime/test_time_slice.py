"""A server has a short time slice, and the trainer that it starts has the system's own."""

from __future__ import annotations

import platform
import re
import subprocess
import sys

import pytest

ASKING = """
import ctypes, struct, threading
from client_service.runtime.trainer_process import lower_priority, set_time_slice
GETATTR = {"x86_64": 315, "aarch64": 275}

def slice_now():
    found = ctypes.create_string_buffer(48)
    ctypes.CDLL(None).syscall(ctypes.c_long(GETATTR[__import__("os").uname().machine]), 0, found, 48, 0)
    return struct.unpack("=IIQiIQQQ", found.raw)[5]

told = [slice_now()]
set_time_slice(300_000)
told.append(slice_now())
thread = threading.Thread(target=lambda: told.append(slice_now()))
thread.start()
thread.join()
lower_priority()
told.append(slice_now())
print(*told)
"""


def has_slices() -> bool:
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    known = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    return known and version is not None and (int(version[1]), int(version[2])) >= (6, 12)


@pytest.mark.skipif(not has_slices(), reason="needs Linux 6.12 or later")
def test_a_thread_inherits_a_short_slice_and_a_trainer_gets_the_system_s_own_again() -> None:
    asked = subprocess.run([sys.executable, "-c", ASKING], capture_output=True, text=True, check=True)
    own, short, inherited, trainer = map(int, asked.stdout.split())
    assert short == inherited == 300_000 < own == trainer
