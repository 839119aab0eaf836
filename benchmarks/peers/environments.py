"""Environments of other projects under build/peers, made once from pinned requirements.

python -m benchmarks.peers.environments serving recbole flower nvflare
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import ROOT

REQUIREMENTS = ROOT / "peers" / "requirements"
INSIDE = ROOT / "peers" / "inside"
PLACE = ROOT.parent / "build" / "peers"
QUIET = ("--quiet", "--disable-pip-version-check")


def peer_names() -> list[str]:
    """Lists all peers with requirements."""
    return sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))


def make_environment(name: str) -> Path:
    """Returns the interpreter of a peer's environment, made where its requirements changed.

    Raises CalledProcessError if a package cannot be installed.
    """
    wanted, folder = REQUIREMENTS / f"{name}.txt", PLACE / name
    python, made = folder / "bin" / "python", folder / "requirements.txt"
    if made.is_file() and made.read_bytes() == wanted.read_bytes():
        return python
    venv.create(folder, with_pip=True, clear=True)
    subprocess.run([python, "-m", "pip", "install", *QUIET, "--no-deps", "--requirement", wanted], check=True)
    made.write_bytes(wanted.read_bytes())
    return python


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*peer_names(), []], help="all, if none is named")
    for name in parser.parse_args(arguments).names or peer_names():
        print(f"{name}: {make_environment(name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
