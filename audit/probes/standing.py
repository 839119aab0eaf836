"""Where a part stands, its mounts and its processes -> all probes of what lies there and of how it is confined."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from audit.evidence import Probe
from audit.probes import confinement, files, mounts
from audit.probes.confinement import Devices
from audit.probes.contents import Contents
from audit.probes.expected import Expected
from audit.probes.files import Names
from audit.probes.mountinfo import Mount, read_mounts
from audit.probes.sockets import Sockets
from audit.probes.walk import walk


@dataclass(frozen=True)
class Standing:
    """`root`: where to look for files; `own`: folders of this part's own, as it calls them.

    `expected`: what its container may have, where that is known; `process`: /proc/N of the part, by which the kernel
    tells of its mounts, its root and its rights. `brought`: places that are mounted for the probe and not for the part.
    """

    root: Path
    own: tuple[Path, ...]
    expected: Expected | None = None
    process: Path = Path("/proc/self")
    brought: tuple[str, ...] = ()

    @property
    def is_another_s(self) -> bool:
        """Does the probe look at another process than itself?"""
        return self.process.name != "self"


def probe(here: Standing) -> list[Probe]:
    """Files by their names, wherever one stands; all else where it is known what should be there."""
    root, inside = _root(here)
    names = Names([_beneath(root, folder, inside=inside) for folder in here.own])
    if here.expected is None:
        sockets = Sockets()
        return [*names.probes(walk(root, [names, sockets])), sockets.engine(files.KIND)]
    there = [one for one in read_mounts(here.process) if here.is_another_s or one.place not in here.brought]
    return [*_control(here, inside=inside), *_looked(here, here.expected, names, there, root)]


def _looked(here: Standing, expected: Expected, names: Names, there: Sequence[Mount], root: Path) -> Iterator[Probe]:
    """All of it in one walk."""
    contents, sockets, devices = Contents(expected), Sockets(expected.sockets), Devices(expected.devices)
    seen = walk(root, [names, contents, sockets, devices], [one.place for one in there])
    yield from mounts.probe(there, expected)
    yield from names.probes(seen)
    yield from contents.probes(seen)
    yield from sockets.probes(seen)
    yield from confinement.probe(here.process, there, expected, devices)


def _root(here: Standing) -> tuple[Path, bool]:
    """The part's own root where the kernel lets this process see it; else what is mounted for the probe."""
    inside = here.process / "root"
    if here.is_another_s and os.access(inside, os.R_OK | os.X_OK):
        return inside, True
    return here.root, False


def _beneath(root: Path, folder: Path, *, inside: bool) -> Path:
    whole = Path(os.path.abspath(folder))
    return root / whole.relative_to("/") if inside else whole


def _control(here: Standing, *, inside: bool) -> list[Probe]:
    """A part whose root is closed to a probe of the same user has more rights than it should."""
    if not here.is_another_s:
        return []
    observed = "seen" if inside else "closed to it"
    kind = "control: the part's own files"
    return [Probe(kind=kind, name="its root", expected="seen", observed=observed, held=inside)]
