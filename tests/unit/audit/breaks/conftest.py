"""A container as its probe sees it: a root, and what the kernel tells of its processes, all in temporary folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from audit.evidence.case import open_case
from audit.evidence.evidence import PartEvidence, ProbeResult, Role
from audit.probes import part as standing
from audit.probes.expected import read_expected
from audit.probes.part import PartLocation
from audit.report import make_report

TIME = "2026-01-01T00:00:00+00:00"
ENGINE_S = (  # as Docker gives them to a container with a read-only root
    ("/", "overlay", "ro"),
    ("/proc", "proc", "rw"),
    ("/dev", "tmpfs", "rw"),
    ("/dev/pts", "devpts", "rw"),
    ("/sys", "sysfs", "ro"),
    ("/sys/fs/cgroup", "tmpfs", "rw"),
    ("/sys/fs/cgroup/memory", "cgroup", "ro"),
    ("/dev/mqueue", "mqueue", "rw"),
    ("/dev/shm", "tmpfs", "rw"),
    ("/usr/sbin/docker-init", "ext4", "ro"),
    ("/etc/resolv.conf", "ext4", "ro"),
    ("/etc/hostname", "ext4", "ro"),
    ("/etc/hosts", "ext4", "ro"),
    ("/proc/bus", "proc", "ro"),
    ("/proc/keys", "tmpfs", "rw"),
    ("/sys/firmware", "tmpfs", "ro"),
)
CONFINED = {
    "Name": "python",
    "Uid": "10001\t10001\t10001\t10001",
    **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16),
    "NoNewPrivs": "1",
    "Seccomp": "2",
}


@dataclass
class Part:
    """One container, as it should be until a test changes it."""

    folder: Path
    name: str
    role: Role
    mounts: dict[str, tuple[str, str]] = field(default_factory=dict)
    statuses: dict[int, dict[str, str]] = field(default_factory=dict)
    namespace: str = "pid:[4026532259]"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def put(self, place: str, content: bytes) -> None:
        path = self.root / place.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def mount(self, place: str, *, writable: bool = False, system: str = "ext4") -> None:
        self.mounts[place] = (system, "rw" if writable else "ro")
        (self.root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def probes(self) -> list[ProbeResult]:
        """What a probe in its place sees, by the kernel's word about process 1."""
        proc = self.folder / "proc"
        for number, status in self.statuses.items():
            (proc / str(number)).mkdir(parents=True, exist_ok=True)
            lines = "".join(f"{name}:\t{value}\n" for name, value in status.items())
            (proc / str(number) / "status").write_text(lines)
        lines = [f"{n} 1 0:4{n} / {place} {how} - {system} x {how}" for n, (place, system, how) in self._numbered()]
        (proc / "1" / "mountinfo").write_text("\n".join(lines) + "\n")
        if not (proc / "1" / "root").is_symlink():
            (proc / "1" / "root").symlink_to(self.root)
        (proc / "self" / "ns").mkdir(parents=True, exist_ok=True)
        (proc / "self" / "ns" / "pid").unlink(missing_ok=True)
        (proc / "self" / "ns" / "pid").symlink_to(self.namespace)
        own = (Path("/shard"), Path("/state")) if self.role == "client" else ()
        expected = read_expected(self.role, "compose", self.name)
        return standing.probe_location(PartLocation(self.folder / "elsewhere", own, expected, proc / "1"))

    def broken(self) -> dict[str, str]:
        """What the report names, and how: the probes that do not hold, after it has turned red for them."""
        probes = self.probes()
        broken = {f"{one.kind}: {one.name}": one.observed for one in probes if not one.held}
        shown = PartEvidence(name=self.name, role="gateway", taken_at=TIME, probes=tuple(probes))
        (verdict,) = (one for one in make_report(open_case([shown])).findings if one.name == "probes")
        assert verdict.held is (not broken)
        told = [f"{self.name}, {one.kind}, {one.name}: {one.observed}" for one in probes if not one.held]
        assert list(verdict.faults) == told
        return broken

    def _numbered(self) -> list[tuple[int, tuple[str, str, str]]]:
        return list(enumerate(((place, *how) for place, how in self.mounts.items()), start=100))


Made = Callable[[str], Part]


@pytest.fixture
def part(tmp_path: Path) -> Made:
    """A part by its name, confined and with nothing but what it should have."""

    def make(name: str) -> Part:
        role: Role = "client" if name.startswith("client") else "gateway" if "gateway" in name else "aggregator"
        found = Part(tmp_path, name, role)
        found.mounts = {place: (system, how) for place, system, how in ENGINE_S}
        found.statuses = {1: dict(CONFINED), 7: dict(CONFINED)}
        expected = read_expected(role, "compose", name)
        for place in expected.read:
            found.mount(place)
        for place in expected.write:
            found.mount(place, writable=True)
        if role == "client":
            found.put("/shard/interactions.parquet", b"PAR1 and more")
            found.put("/state/ledger.jsonl", b'{"sequence": 1}\n' * 9)
        return found

    return make
