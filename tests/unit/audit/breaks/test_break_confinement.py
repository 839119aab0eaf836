"""A part with more rights than it should have turns the report red, each right by its name."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from audit.probes import confinement
from audit.probes import part as standing
from audit.probes.confinement import DeviceObserver
from audit.probes.files import SeenEntry
from audit.probes.part import PartLocation

if TYPE_CHECKING:
    from conftest import Made

DEFAULT = "00000000a80425fb"  # what Docker leaves to a root user who drops nothing


@pytest.fixture(autouse=True)
def _short_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "STARTING_SECONDS", 0.1)


@pytest.mark.parametrize("process", [1, 7])
@pytest.mark.parametrize(
    ("field", "value", "name", "observed"),
    [
        ("Uid", "0\t0\t0\t0", "user", "uid 0 0 0 0"),
        ("Uid", "10001\t10001\t0\t10001", "user", "uid 10001 10001 0 10001"),
        ("CapEff", DEFAULT, "capabilities", f"CapEff {DEFAULT}"),
        ("CapPrm", DEFAULT, "capabilities", f"CapPrm {DEFAULT}"),
        ("CapBnd", DEFAULT, "capabilities", f"CapBnd {DEFAULT}"),
        ("NoNewPrivs", "0", "no new privileges", "0"),
        ("Seccomp", "0", "seccomp", "0"),
    ],
)
def test_a_right_too_many_is_named(part: Made, process: int, field: str, value: str, name: str, observed: str) -> None:
    broken = part("aggregator")
    broken.statuses[process][field] = value
    assert broken.broken() == {f"confinement: {name}": observed}


def test_a_process_that_is_being_started_is_looked_at_again(part: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A health check is seen before its runtime has put the filter on, which is the last that it does."""
    seen = part("aggregator")
    seen.statuses[7]["Seccomp"] = "0"
    status = seen.folder / "proc" / "7" / "status"
    monkeypatch.setattr(
        confinement.time, "sleep", lambda _: status.write_text(status.read_text().replace("Seccomp:\t0", "Seccomp:\t2"))
    )
    assert seen.broken() == {}


def test_a_health_check_that_ends_between_two_looks_is_no_finding(part: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was seen before its filter alone. Whoever lacks one for good is named by the processes that stay: a child has
    its parent's."""
    seen = part("aggregator")
    seen.statuses[7]["Seccomp"] = "0"
    monkeypatch.setattr(
        confinement.time, "sleep", lambda _: (seen.folder / "proc" / "7" / "status").unlink(missing_ok=True)
    )
    assert seen.broken() == {}
    seen.statuses[1]["Seccomp"] = "0"
    assert seen.broken() == {"confinement: seccomp": "0"}


def test_a_root_that_can_be_written_and_a_writable_place_more_are_named(part: Made) -> None:
    broken = part("client-2")
    broken.mounts["/"] = ("overlay", "rw")
    broken.mounts["/secrets"] = ("ext4", "rw")
    broken.mounts["/sys"] = ("sysfs", "rw")
    assert broken.broken() == {
        "confinement: root file system": "writable",
        "confinement: writable places": "/secrets, /sys",
    }


def test_the_machine_s_own_processes_are_named(part: Made) -> None:
    broken = part("gateway")
    broken.namespace = "pid:[4026531836]"
    assert broken.broken() == {"confinement: processes": "the machine's"}


def test_a_device_more_is_named(tmp_path: Path) -> None:
    """Nobody without rights makes a device: the entry alone is shown."""
    found = DeviceObserver()
    for place in ("/dev/null", "/dev/pts/0", "/dev/sda", "/state/disk"):
        found.observe_entry(SeenEntry(tmp_path, place, "/", Path(place).name, stat.S_IFBLK))
    found.observe_entry(SeenEntry(tmp_path, "/dev/x", "/", "x", stat.S_IFREG))
    assert found.more == ["/dev/sda", "/state/disk"]


def test_a_process_of_which_nothing_is_told_is_not_confined(part: Made) -> None:
    broken = part("aggregator")
    broken.statuses = {1: {}}
    told = broken.broken()
    assert {"confinement: user", "confinement: capabilities", "confinement: seccomp"} <= set(told)


def test_a_root_that_is_closed_to_the_probe_is_said(part: Made, tmp_path: Path) -> None:
    """As that of a process with more rights is: what is mounted for the probe is looked at then."""
    broken = part("aggregator")
    broken.probes()
    link = tmp_path / "proc" / "1" / "root"
    link.unlink()
    link.symlink_to(tmp_path / "nowhere")
    assert broken.broken()["control: the part's own files: its root"] == "closed to it"


def test_without_another_process_the_probe_looks_at_itself() -> None:
    expected = standing.ExpectedMounts()
    own = [
        one
        for one in standing.probe_location(PartLocation(Path("/nowhere"), (), expected))
        if one.kind == confinement.KIND
    ]
    assert {"user", "capabilities", "seccomp", "root file system"} <= {one.name for one in own}


def test_a_probe_is_closed_to_the_part_from_its_first_moment() -> None:
    """Else the part could look through /proc at what is mounted for the probe alone."""
    tell = "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"  # PR_GET_DUMPABLE; 0: /proc/N is readable by root alone
    code = "import ctypes, runpy, sys; sys.argv = ['audit', '--help']\n"
    code += f"try:\n    runpy.run_module('audit', run_name='__main__')\nexcept SystemExit:\n    {tell}"
    before = [sys.executable, "-c", f"import ctypes; {tell}"]
    after = [sys.executable, "-c", code]
    said = [
        subprocess.run(one, capture_output=True, text=True, check=True).stdout.split()[-1] for one in (before, after)
    ]
    assert said == ["1", "0"]
