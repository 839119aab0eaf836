"""Checks that each locked package of the images has wheels for their platforms.

`make platforms` runs it. pip resolves the locks for a platform without installing anything. An image of another
platform than this machine's needs docker buildx; whether it can be built at all is seen here.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
LOCKS = ("aggregator.txt", "client.txt", "tools.txt")
MACHINES = ("x86_64", "aarch64")
MANYLINUX = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")  # what Debian 12 of the base image runs
PYTHON = ("--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "abi3", "--abi", "none")


def missing_wheels(lock: str, machine: str) -> str | None:
    """Returns pip's error about the first package without a wheel; None for none.

    The packages of its own lock are resolved with their hashes; torch, which has none, by name.
    """
    wanted = ["--require-hashes", "--requirement", str(FOLDER / lock)]
    found = _resolve(machine, wanted)
    return found or (_resolve(machine, ["--requirement", str(FOLDER / "torch.txt")]) if lock == "client.txt" else None)


def _resolve(machine: str, wanted: list[str]) -> str | None:
    platforms = [word for one in MANYLINUX for word in ("--platform", f"{one}_{machine}")]
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed"]
    with tempfile.TemporaryDirectory() as place:
        command = [*pip, "--only-binary", ":all:", "--target", place, *platforms, *PYTHON, *wanted]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return None if done.returncode == 0 else done.stderr.strip()[-500:]


def main() -> int:
    failed = False
    for lock in LOCKS:
        for machine in MACHINES:
            problem = missing_wheels(lock, machine)
            failed = failed or problem is not None
            sys.stdout.write(f"{lock}, {machine}: {problem or 'a wheel of each package'}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
