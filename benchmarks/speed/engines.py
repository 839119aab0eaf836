"""Seconds, memory and digest of one federation on each engine.

python -m benchmarks.speed.engines DATA --clients 200

Memory is the peak of all processes of a command together (PSS: a shared page counts once), sampled every half second.
Each command cuts the data anew, which is in `whole s` alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

MARK = "LPSFED_MEASURED"
LOOK_SECONDS = 0.5


def main() -> None:
    """Prints a row for each engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--method", default="random")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--engines", nargs="+", default=["plain", "ray", "services"])
    given = parser.parse_args()
    print("engine    silos  run s  whole s  memory MiB  digest")
    for engine in given.engines:
        print(measure_engine(engine, given), flush=True)


def measure_engine(engine: str, given: argparse.Namespace) -> str:
    """Returns a row of the table."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "simulation.cli", "simulate", given.data, "--engine", engine]
        command += ["--clients", str(given.clients), "--rounds", str(given.rounds), "--method", given.method]
        command += ["--no-floors", "--json", "--device", "cpu", "--out", f"{place}/run"]
        command += ["--ray-cpus", str(given.cpus)] if engine == "ray" else []
        began, report = time.perf_counter(), Path(place) / "report.json"
        with report.open("w") as file:
            child = subprocess.Popen(command, stdout=file, env=os.environ | {MARK: mark})
            most = watch_memory(child, mark)
        if child.returncode:
            return f"{engine:9} ended with {child.returncode}"
        found = json.loads(report.read_text())
    whole, run = time.perf_counter() - began, found["seconds"]["total"]
    return f"{engine:9} {given.clients:5} {run:6.1f} {whole:8.1f} {most:11.0f}  {found['digest'][:16]}"


def watch_memory(child: subprocess.Popen, mark: str) -> float:
    """Returns the peak MiB of the marked processes together, until the child ends."""
    most = 0.0
    while child.poll() is None:
        most = max(
            most, sum(resident_mib_of(folder) for folder in Path("/proc").glob("[0-9]*") if belongs_to(folder, mark))
        )
        time.sleep(LOOK_SECONDS)
    return most


def belongs_to(process: Path, mark: str) -> bool:
    """Tells whether the command started a process."""
    try:
        return f"{MARK}={mark}".encode() in (process / "environ").read_bytes()
    except OSError:
        return False


def resident_mib_of(process: Path) -> float:
    """Returns a process's memory, each shared page divided by its users."""
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    main()
