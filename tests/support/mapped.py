"""Measures how much of mapped files is in this process's memory."""

from __future__ import annotations

import re
from pathlib import Path


def mapped_bytes(folder: Path) -> int:
    """Counts the bytes of files in a folder that are mapped into this process and in its memory, on Linux."""
    pattern = rf"^\S+ \S+ \S+ \S+ \d+ +{re.escape(str(folder.resolve()))}/.*\n(?:\w+:.*\n)*?Rss: +(\d+) kB"
    told = Path("/proc/self/smaps").read_text(encoding="utf-8")
    return sum(1024 * int(size) for size in re.findall(pattern, told, re.MULTILINE))
