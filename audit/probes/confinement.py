"""What the kernel says of a part's processes -> whether an intruder there would be confined."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from audit.evidence import ProbeResult
from audit.probes.expected import Expected, is_among
from audit.probes.mountinfo import Mount
from audit.probes.mounts import is_from_kernel, list_places
from audit.probes.walk import SeenEntry
from shared.words import count_noun

KIND = "confinement"
CAPABILITIES = ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")
FILTER = "2"  # of Seccomp
STARTING_SECONDS, LOOK_SECONDS = 2.0, 0.02
MACHINE_S = "pid:[4026531836]"  # the PID namespace that every Linux begins with
ENGINE_WRITES = ("/proc", "/dev", "/dev/pts", "/dev/mqueue", "/dev/shm", "/dev/console")
USUAL = ("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "pts/*")
DEVICES = tuple(f"/dev/{name}" for name in USUAL)
MOST_BYTES = 1 << 16
Status = dict[str, str]


@dataclass
class DeviceObserver:
    """Device files, wherever they lie."""

    expected: tuple[str, ...] = ()
    more: list[str] = field(default_factory=list)

    def observe_entry(self, entry: SeenEntry) -> None:
        if not (stat.S_ISCHR(entry.mode) or stat.S_ISBLK(entry.mode)):
            return
        if not is_among(entry.place, (*DEVICES, *self.expected)):
            self.more.append(entry.place)


def probe_confinement(
    process: Path, mounts: Sequence[Mount], expected: Expected, devices: DeviceObserver
) -> list[ProbeResult]:
    """`process`: /proc/N of the part; all processes that are seen beside it are held to the same."""
    found = read_statuses(process)
    return [
        *_process_probes(found),
        _namespace_probe(process.parent),
        _root_probe(mounts),
        _absence_probe("writable places", "none but its own and the engine's", writable_mounts(mounts, expected)),
        _absence_probe("devices", "none but the usual ones", devices.more),
    ]


def read_statuses(process: Path) -> list[Status]:
    """Of `self` alone this process's; else of every process in the part's PID namespace, the part's own first."""
    others = [] if process.name == "self" else sorted(process.parent.glob("[0-9]*"))
    until = time.monotonic() + STARTING_SECONDS
    read = [_read_started_status(one, until) for one in dict.fromkeys((process, *others))]
    return [one for one in read if one]


def writable_mounts(mounts: Iterable[Mount], expected: Expected) -> list[str]:
    """Where this part could leave something, beside the root, which has a line of its own."""
    may = ("/", *ENGINE_WRITES, *expected.write)
    return [one.place for one in mounts if one.writable and not is_from_kernel(one) and not is_among(one.place, may)]


def _read_started_status(process: Path, until: float) -> Status:
    """Its status once it has its filter, or as it was last seen.

    A runtime that starts a health check drops its rights one by one, the filter last: a look between is no finding.
    A process never gets rid of a filter, so that a later look hides nothing.
    """
    status = latest = _read_status(process)
    while latest and latest.get("Seccomp") != FILTER and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        latest = _read_status(process)
        status = latest or status
    return status


def _read_status(process: Path) -> Status:
    """Nothing of a process that has ended meanwhile."""
    try:
        with (process / "status").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(MOST_BYTES).splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _process_probes(found: Sequence[Status]) -> Iterator[ProbeResult]:
    """One line for each rule, with what breaks it."""
    users = (one.get("Uid", "0") for one in found)
    yield _rule_probe("user", "not 0", found, (f"uid {said}" for said in users if "0" in said.split()))
    sets = ((name, one.get(name, "untold")) for one in found for name in CAPABILITIES)
    yield _rule_probe("capabilities", "none", found, (f"{name} {said}" for name, said in sets if said.strip("0")))
    yield _rule_probe("no new privileges", "1", found, _processes_unlike(found, "NoNewPrivs", "1"))
    yield _rule_probe("seccomp", "a filter (2)", found, _processes_unlike(found, "Seccomp", FILTER))


def _processes_unlike(found: Iterable[Status], name: str, wanted: str) -> list[str]:
    return [said for said in (one.get(name, "untold") for one in found) if said != wanted]


def _rule_probe(name: str, expected: str, found: Sequence[Status], broken: Iterable[str]) -> ProbeResult:
    told = list(broken)
    good = f"so of {count_noun(len(found), 'process', 'processes')}" if found else "no process could be looked at"
    observed = list_places(" ".join(one.split()) for one in told) if told else good
    return ProbeResult(kind=KIND, name=name, expected=expected, observed=observed, held=bool(found) and not told)


def _namespace_probe(proc: Path) -> ProbeResult:
    """The part's, in which this probe stands too."""
    try:
        found = os.readlink(proc / "self" / "ns" / "pid")
    except OSError:
        found = "untold"
    held = found not in (MACHINE_S, "untold")
    observed = "its own" if held else "the machine's" if found == MACHINE_S else found
    return ProbeResult(kind=KIND, name="processes", expected="a namespace of its own", observed=observed, held=held)


def _root_probe(mounts: Iterable[Mount]) -> ProbeResult:
    roots = [one for one in mounts if one.place == "/"]
    held = bool(roots) and not any(one.writable for one in roots)
    observed = "read-only" if held else "writable" if roots else "untold"
    return ProbeResult(kind=KIND, name="root file system", expected="read-only", observed=observed, held=held)


def _absence_probe(name: str, expected: str, places: Sequence[str]) -> ProbeResult:
    observed = list_places(places) if places else "none"
    return ProbeResult(kind=KIND, name=name, expected=expected, observed=observed, held=not places)
