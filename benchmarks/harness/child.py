"""Child process of one cell, `python -m benchmarks.harness.child`, with its own peak memory.

Reads the work as JSON on stdin, writes the figures as JSON into the file that the work names.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.harness.measure import Work, measure_cell
from client_service.runtime.device import choose_device
from shared.errors import FederationError
from shared.method.settings import MethodSettings, validate_settings

MIB = 1 << 20


def main() -> int:
    """Measures the cell; returns 0, or 1 with one line on stderr."""
    given = json.loads(sys.stdin.read())
    out = Path(given.pop("out"))
    work = Work(
        **{
            **given,
            "root": Path(given["root"]),
            "shards": tuple(map(Path, given["shards"])),
            "whole": Path(given["whole"]),
            "state": Path(given["state"]),
            "method": validate_settings(MethodSettings, given["method"]),
        }
    )
    try:
        figures = measure_in_context(work)
    except FederationError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    out.write_text(json.dumps(figures), encoding="utf-8")
    return 0


def measure_in_context(work: Work) -> dict[str, Any]:
    """Measures a cell and adds wall clock, peak memory, device, versions and date."""
    began = time.perf_counter()
    figures = measure_cell(work)
    device, _ = choose_device(work.device)
    return {
        **figures,
        "wall_seconds": time.perf_counter() - began,
        "peak_mib": peak_mib(),
        "device_mib": _device_mib(device.type),
        "device": device.type,
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in ("torch", "numpy", "scipy")},
        "date": datetime.now(UTC).date().isoformat(),
    }


def peak_mib() -> float:
    """Returns the peak memory of this process in MiB.

    It is Linux's own count of this program. getrusage would start at the parent's memory when the child was started,
    which after cutting a large data set is more than the cell ever needs.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB


def _device_mib(device: str) -> float:
    if device != "cuda":
        return 0.0
    import torch

    return torch.cuda.max_memory_allocated() / MIB


if __name__ == "__main__":
    sys.exit(main())
