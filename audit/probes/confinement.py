"""Probes of a part's confinement: user, capabilities, filters, mounts and devices."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from audit.evidence.evidence import ProbeResult, make_result
from audit.probes.containers import Mount, is_from_kernel, list_places
from audit.probes.expected import ExpectedMounts, is_among
from audit.probes.files import SeenEntry
from shared.words import count_noun

KIND = "confinement"
CAPABILITIES = ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")
FILTER = "2"  # value of Seccomp in a process's status, with a filter
STARTING_SECONDS, STATUS_CHECK_SECONDS = 2.0, 0.02
MACHINE_NAMESPACE = "pid:[4026531836]"  # the PID namespace that every Linux begins with
ENGINE_WRITES = ("/proc", "/dev", "/dev/pts", "/dev/mqueue", "/dev/shm", "/dev/console")
USUAL = ("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "pts/*")
DEVICES = tuple(f"/dev/{name}" for name in USUAL)
MOST_BYTES = 1 << 16
Status = dict[str, str]


@dataclass
class DeviceObserver:
    """Observer of device files."""

    expected: tuple[str, ...] = ()
    more: list[str] = field(default_factory=list)

    def observe_entry(self, entry: SeenEntry) -> None:
        """Records a device file that is neither usual nor expected."""
        if not (stat.S_ISCHR(entry.mode) or stat.S_ISBLK(entry.mode)):
            return
        if not is_among(entry.place, (*DEVICES, *self.expected)):
            self.more.append(entry.place)


def probe_confinement(
    process: Path, mounts: Sequence[Mount], expected: ExpectedMounts, devices: DeviceObserver
) -> list[ProbeResult]:
    """Probes the confinement of a part's processes.

    process: /proc/N of the part; all processes that are visible beside it are held to the same rules.
    """
    statuses = read_statuses(process)
    return [
        *_process_probes(statuses),
        _namespace_probe(process.parent),
        _root_probe(mounts),
        _absence_probe("writable places", "none but its own and the engine's", writable_mounts(mounts, expected)),
        _absence_probe("devices", "none but the usual ones", devices.more),
    ]


def read_statuses(process: Path) -> list[Status]:
    """Reads the status of this process, or of all in the part's PID namespace.

    The part's own comes first.
    """
    others = [] if process.name == "self" else sorted(process.parent.glob("[0-9]*"))
    until = time.monotonic() + STARTING_SECONDS
    read = [_read_started_status(folder, until) for folder in dict.fromkeys((process, *others))]
    return [status for status in read if status]


def writable_mounts(mounts: Iterable[Mount], expected: ExpectedMounts) -> list[str]:
    """Lists writable mounts that are not expected, without the root."""
    may = ("/", *ENGINE_WRITES, *expected.write)
    return [
        mount.place
        for mount in mounts
        if mount.writable and not is_from_kernel(mount) and not is_among(mount.place, may)
    ]


def _read_started_status(process: Path, until: float) -> Status:
    """Waits until a process has its seccomp filter, and returns its status.

    A runtime that starts a health check drops its rights one by one, the filter last: a look between is no finding. A
    process never gets rid of a filter, and its children have it too, so that a later look hides nothing. Empty for a
    process that ended before; its last status says nothing of its rights.
    """
    status = _read_status(process)
    while status and status.get("Seccomp") != FILTER and time.monotonic() < until:
        time.sleep(STATUS_CHECK_SECONDS)
        status = _read_status(process)
    return status


def _read_status(process: Path) -> Status:
    """Reads a process's status; empty if it has ended."""
    try:
        with (process / "status").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(MOST_BYTES).splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _process_probes(statuses: Sequence[Status]) -> Iterator[ProbeResult]:
    """Yields one result for each rule, with what breaks it."""
    users = (status.get("Uid", "0") for status in statuses)
    yield _rule_probe("user", "not 0", statuses, (f"uid {value}" for value in users if "0" in value.split()))
    sets = ((name, status.get(name, "untold")) for status in statuses for name in CAPABILITIES)
    yield _rule_probe("capabilities", "none", statuses, (f"{name} {value}" for name, value in sets if value.strip("0")))
    yield _rule_probe("no new privileges", "1", statuses, _processes_unlike(statuses, "NoNewPrivs", "1"))
    yield _rule_probe("seccomp", "a filter (2)", statuses, _processes_unlike(statuses, "Seccomp", FILTER))


def _processes_unlike(statuses: Iterable[Status], name: str, wanted: str) -> list[str]:
    return [value for value in (status.get(name, "untold") for status in statuses) if value != wanted]


def _rule_probe(name: str, expected: str, statuses: Sequence[Status], broken: Iterable[str]) -> ProbeResult:
    violations = list(broken)
    good = f"so of {count_noun(len(statuses), 'process', 'processes')}" if statuses else "no process could be looked at"
    observed = list_places(" ".join(violation.split()) for violation in violations) if violations else good
    return make_result(KIND, name, expected, observed, held=bool(statuses) and not violations)


def _namespace_probe(proc: Path) -> ProbeResult:
    """Checks that the part has its own PID namespace, in which this probe runs too."""
    try:
        namespace = os.readlink(proc / "self" / "ns" / "pid")
    except OSError:
        namespace = "untold"
    held = namespace not in (MACHINE_NAMESPACE, "untold")
    observed = "its own" if held else "the machine's" if namespace == MACHINE_NAMESPACE else namespace
    return make_result(KIND, "processes", "a namespace of its own", observed, held=held)


def _root_probe(mounts: Iterable[Mount]) -> ProbeResult:
    roots = [mount for mount in mounts if mount.place == "/"]
    held = bool(roots) and not any(mount.writable for mount in roots)
    observed = "read-only" if held else "writable" if roots else "untold"
    return make_result(KIND, "root file system", "read-only", observed, held=held)


def _absence_probe(name: str, expected: str, places: Sequence[str]) -> ProbeResult:
    observed = list_places(places) if places else "none"
    return make_result(KIND, name, expected, observed, held=not places)
