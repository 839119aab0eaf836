"""A process's `mountinfo` -> what is mounted where in its container, and whether it may be written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ESCAPED = re.compile(r"\\([0-7]{3})")  # a space, a tab, a line's end and a backslash
SEPARATOR = "-"  # between the fields of a mount and those of its file system
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Mount:
    """`system`: the kind of file system, such as overlay, ext4, tmpfs."""

    place: str
    system: str
    writable: bool


def read_mounts(process: Path) -> tuple[Mount, ...]:
    """The mounts of one process of the part (/proc/N); empty where the kernel does not show them."""
    try:
        with (process / "mountinfo").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(MOST_BYTES).splitlines()
    except OSError:
        return ()
    return tuple(_parse_mount(line.split(" ")) for line in lines if f" {SEPARATOR} " in line)


def _parse_mount(fields: Sequence[str]) -> Mount:
    system = fields[fields.index(SEPARATOR, 6) + 1]
    return Mount(ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4]), system, "rw" in fields[5].split(","))
