"""Probes of a part's files, mounts and processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from audit.evidence.evidence import ProbeResult, make_result
from audit.probes import confinement, containers, files
from audit.probes.confinement import DeviceObserver
from audit.probes.containers import Mount, read_mounts
from audit.probes.contents import ContentObserver
from audit.probes.expected import ExpectedMounts
from audit.probes.files import NameObserver, walk_entries
from audit.probes.sockets import SocketObserver


@dataclass(frozen=True)
class PartLocation:
    """Location of a part.

    root: where to look for files. own: folders of this part's own, as it calls them. expected: what its container may
    have, where that is known. process: /proc/N of the part, by which the kernel shows its mounts, root and rights.
    brought: places that are mounted for the probe and not for the part.
    """

    root: Path
    own: tuple[Path, ...]
    expected: ExpectedMounts | None = None
    process: Path = Path("/proc/self")
    brought: tuple[str, ...] = ()

    @property
    def is_other_process(self) -> bool:
        """Whether the probe looks at another process than itself."""
        return self.process.name != "self"


def probe_location(here: PartLocation) -> list[ProbeResult]:
    """Probes files by name, and all else where the expected contents are known."""
    root, inside = _part_root(here)
    names = NameObserver([_folder_beneath(root, folder, inside=inside) for folder in here.own])
    if here.expected is None:
        sockets = SocketObserver()
        return [*names.probe_results(walk_entries(root, [names, sockets])), sockets.engine_probe(files.KIND)]
    there = [mount for mount in read_mounts(here.process) if here.is_other_process or mount.place not in here.brought]
    return [*_control_probes(here, inside=inside), *_walk_probes(here, here.expected, names, there, root)]


def _walk_probes(
    here: PartLocation, expected: ExpectedMounts, names: NameObserver, there: Sequence[Mount], root: Path
) -> Iterator[ProbeResult]:
    """Yields all probes that need a walk, in one walk."""
    contents = ContentObserver(expected)
    sockets, devices = SocketObserver(expected.sockets), DeviceObserver(expected.devices)
    seen = walk_entries(root, [names, contents, sockets, devices], [mount.place for mount in there])
    yield from containers.probe_mounts(there, expected)
    yield from names.probe_results(seen)
    yield from contents.probe_results(seen)
    yield from sockets.probe_results(seen)
    yield from confinement.probe_confinement(here.process, there, expected, devices)


def _part_root(here: PartLocation) -> tuple[Path, bool]:
    """Returns the part's own root where visible, else the mounted one."""
    inside = here.process / "root"
    if here.is_other_process and os.access(inside, os.R_OK | os.X_OK):
        return inside, True
    return here.root, False


def _folder_beneath(root: Path, folder: Path, *, inside: bool) -> Path:
    whole = Path(os.path.abspath(folder))
    return root / whole.relative_to("/") if inside else whole


def _control_probes(here: PartLocation, *, inside: bool) -> list[ProbeResult]:
    """Checks, as a control, that the part's root is visible.

    A part whose root is closed to a probe of the same user has more rights than it should.
    """
    if not here.is_other_process:
        return []
    observed = "seen" if inside else "closed to it"
    kind = "control: the part's own files"
    return [make_result(kind, "its root", "seen", observed, held=inside)]
