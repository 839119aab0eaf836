"""Probes of a container's mounts: only those that its role needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from audit.evidence.evidence import ProbeResult, make_result
from audit.probes.expected import ExpectedMounts, is_among
from shared.words import count_noun

ESCAPED = re.compile(r"\\([0-7]{3})")  # escapes of a space, a tab, a line's end and a backslash
SEPARATOR = "-"  # between the fields of a mount and those of its file system
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Mount:
    """Mount of a container. `system`: kind of file system, such as overlay, ext4, tmpfs."""

    place: str
    system: str
    writable: bool


def read_mounts(process: Path) -> tuple[Mount, ...]:
    """Reads the mounts of a process (/proc/N); empty if they are not visible."""
    try:
        with (process / "mountinfo").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(MOST_BYTES).splitlines()
    except OSError:
        return ()
    return tuple(_parse_mount(line.split(" ")) for line in lines if f" {SEPARATOR} " in line)


def _parse_mount(fields: Sequence[str]) -> Mount:
    system = fields[fields.index(SEPARATOR, 6) + 1]
    return Mount(ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4]), system, "rw" in fields[5].split(","))


KIND = "mounts"
ENGINE_MOUNTS = {
    *("/", "/proc", "/sys", "/sys/firmware", "/dev", "/dev/pts", "/dev/mqueue", "/dev/shm", "/dev/console"),
    *("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/sbin/docker-init", "/usr/sbin/docker-init"),
}
# Beneath these two an engine covers what must not be seen, and shows control groups: never a disk.
KERNEL_MOUNTS = {
    "/proc/": {"proc", "tmpfs", "devtmpfs"},
    "/sys/": {"sysfs", "tmpfs", "cgroup", "cgroup2"},
}
MOST_NAMES = 5


def probe_mounts(mounts: Sequence[Mount], expected: ExpectedMounts) -> list[ProbeResult]:
    """Probes for mounts beyond the expected ones, and names each.

    Private keys, shards and sockets reach a container by mounts.
    """
    known = (*expected.read, *expected.write)
    more = [mount.place for mount in mounts if not is_from_engine(mount) and not is_among(mount.place, known)]
    own = sum(is_among(mount.place, known) for mount in mounts)
    seen = f"none; {count_noun(len(mounts), 'mount')}, {own} of its own"
    observed = f"also {list_places(more)}" if more else seen
    result = make_result(KIND, "places", "none but its own and the engine's", observed, held=not more)
    return [result, control_probe(mounts)]


def is_from_engine(mount: Mount) -> bool:
    """Tells whether every container has this mount."""
    return mount.place in ENGINE_MOUNTS or is_from_kernel(mount)


def is_from_kernel(mount: Mount) -> bool:
    """Tells whether the mount lies beneath /proc or /sys and is no disk."""
    return any(mount.place.startswith(place) and mount.system in systems for place, systems in KERNEL_MOUNTS.items())


def control_probe(mounts: Sequence[Mount]) -> ProbeResult:
    """Checks, as a control, that the list of mounts has the root."""
    held = any(mount.place == "/" for mount in mounts)
    observed = count_noun(len(mounts), "mount") if mounts else "none could be read"
    return make_result("control: mounts", "the list", "one with the root", observed, held=held)


def list_places(places: Iterable[str]) -> str:
    """Lists the first MOST_NAMES places, sorted, and how many more there are."""
    names = sorted(dict.fromkeys(places))
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
