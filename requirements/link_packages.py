"""Links packages of one environment into another where its lock has the same version.

    python link_packages.py LOCK FROM INTO

LOCK: a file of `name==version` lines with hashes. FROM, INTO: folders named site-packages. The packages of FROM were
held to their hashes when they were installed; pip then looks at the rest of the lock, and at what INTO has already,
such as setuptools of another version. Files are hard links, with what Python has compiled of them. Programs are left
out, because their first line names the interpreter of FROM.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import Distribution, distributions
from importlib.util import cache_from_source
from pathlib import Path


def main() -> int:
    lock, source, target = map(Path, sys.argv[1:4])
    locked, present = read_lock(lock), {normalize(one.name) for one in distributions(path=[str(target)])}
    ours = {normalize(one.name): one for one in distributions(path=[str(source)])}
    linked = [one for name, one in ours.items() if locked.get(name) == one.version and name not in present]
    for one in linked:
        link_package(one, source, target)
    sys.stdout.write(f"{len(linked)} of {len(locked)} packages are those of {source}\n")
    return 0


def read_lock(lock: Path) -> dict[str, str]:
    """Reads the version of each package of a lock."""
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", lock.read_text(encoding="utf-8"), flags=re.M)
    return {normalize(name): version for name, version in found}


def normalize(name: str) -> str:
    """Returns a package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def link_package(package: Distribution, source: Path, target: Path) -> None:
    """Links a package's files; pip finds it by its metadata, which come last."""
    paths = [Path(str(one)) for one in package.files or () if ".." not in one.parts and one.suffix != ".pyc"]
    for path in sorted(paths, key=lambda one: one.parts[0].endswith(".dist-info")):
        link_file(source / path, target / path)
        if path.suffix == ".py" and (compiled := Path(cache_from_source(str(source / path)))).exists():
            link_file(compiled, target / compiled.relative_to(source))


def link_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        os.link(source, target)


if __name__ == "__main__":
    sys.exit(main())
