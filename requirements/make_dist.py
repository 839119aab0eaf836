"""Builds the source archive and the wheel of the package: `make dist` writes build/dist.

The archive is made from a copy of the sources, so that nothing of an earlier build gets into it; the wheel is made
from the archive, so that the archive has all that a wheel needs. The setuptools that is installed here makes both,
and no index is asked.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = ("pyproject.toml", "README.md", "LICENSE")
PACKAGES = ("aggregator_service", "audit", "client_service", "lpsfed", "shared", "simulation")
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def make_dist(out: Path) -> list[Path]:
    """Builds both files, replacing those of an earlier call."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("lpsfed-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as place:
        copy_sources(Path(place, "sources"))
        call_backend("build_sdist", Path(place, "sources"), out)
        [archive] = out.glob("lpsfed-*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(place, filter="data")
        call_backend("build_wheel", Path(place, archive.name.removesuffix(".tar.gz")), out)
    return sorted(out.glob("lpsfed-*"))


def copy_sources(place: Path) -> None:
    """Copies the package's sources, without caches and build files."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "Dockerfile")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, place / package, ignore=ignore)
    for name in FILES:
        shutil.copy2(ROOT / name, place / name)


def call_backend(hook: str, source: Path, out: Path) -> None:
    """Runs a hook of PEP 517 in its own process; raises ValueError if it fails."""
    words = [sys.executable, "-c", BUILD, hook, str(out.resolve())]
    done = subprocess.run(words, cwd=source, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise ValueError(f"{hook}: expected a built package, got: {done.stderr.strip()[-1000:]}")


if __name__ == "__main__":
    for made in make_dist(Path(sys.argv[1])):
        sys.stdout.write(f"{made}\n")
