"""What the kernel says of a process: its memory and its open files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Gauge:
    """Of the process with this id."""

    pid: int

    def resident(self) -> float:
        """MiB in memory now."""
        return self._field("VmRSS")

    def peak(self) -> float:
        """Most MiB that were in memory at once since `forget_peak`."""
        return self._field("VmHWM")

    def forget_peak(self) -> float:
        """Begin to look for a peak anew -> MiB in memory now."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.resident()

    def descriptors(self) -> int:
        """How many files and sockets it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def _field(self, name: str) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))
