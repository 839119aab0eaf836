"""What is mounted in a part's container -> whether it is only what its role needs, and what every engine gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from audit.evidence import ProbeResult, make_result
from audit.probes.expected import Expected, is_among
from audit.probes.mountinfo import Mount
from shared.words import count_noun

KIND = "mounts"
ENGINE_S = {
    *("/", "/proc", "/sys", "/sys/firmware", "/dev", "/dev/pts", "/dev/mqueue", "/dev/shm", "/dev/console"),
    *("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/sbin/docker-init", "/usr/sbin/docker-init"),
}
# Beneath these two an engine covers what must not be seen, and shows control groups: never a disk.
KERNEL_S = {
    "/proc/": {"proc", "tmpfs", "devtmpfs"},
    "/sys/": {"sysfs", "tmpfs", "cgroup", "cgroup2"},
}
MOST_NAMES = 5


def probe_mounts(mounts: Sequence[Mount], expected: Expected) -> list[ProbeResult]:
    """Private keys, shards and sockets reach a container by mounts: every mount beyond the expected ones is named."""
    known = (*expected.read, *expected.write)
    more = [mount.place for mount in mounts if not is_from_engine(mount) and not is_among(mount.place, known)]
    own = sum(is_among(mount.place, known) for mount in mounts)
    seen = f"none; {count_noun(len(mounts), 'mount')}, {own} of its own"
    observed = f"also {list_places(more)}" if more else seen
    result = make_result(KIND, "places", "none but its own and the engine's", observed, held=not more)
    return [result, control_probe(mounts)]


def is_from_engine(mount: Mount) -> bool:
    """Whether every container has this mount."""
    return mount.place in ENGINE_S or is_from_kernel(mount)


def is_from_kernel(mount: Mount) -> bool:
    """Whether the mount lies beneath /proc or /sys and is no disk."""
    return any(mount.place.startswith(place) and mount.system in systems for place, systems in KERNEL_S.items())


def control_probe(mounts: Sequence[Mount]) -> ProbeResult:
    """The control: a list of mounts without the root is no list of mounts."""
    held = any(mount.place == "/" for mount in mounts)
    observed = count_noun(len(mounts), "mount") if mounts else "none could be read"
    return make_result("control: mounts", "the list", "one with the root", observed, held=held)


def list_places(places: Iterable[str]) -> str:
    """The first MOST_NAMES of the places, sorted, and how many more there are."""
    names = sorted(dict.fromkeys(places))
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
