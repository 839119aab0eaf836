"""Seconds, memory and overhead of federations of many silos on each engine.

python -m benchmarks.speed.engines [DATA] --clients 16 64 256 1024 --engines plain ray [--set strategy=fedavg ...]

Without DATA shards are generated, --users a silo over --items items, the same for every engine. Of each run: seconds
of the run and of its median round by the clock; processor seconds of all processes of the command and, of them,
those of the silos' own work; the rest for each silo in milliseconds, with the seconds in which the libraries load; the
peak memory of all processes together (PSS: a shared page counts once). Both are looked at every half second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulation.datasets.synthetic import generate_dataset
from simulation.partitioning.partition import partition_dataset, write_partition

MARK = "LPSFED_MEASURED"
LOOK_SECONDS = 0.5
TICKS = os.sysconf("SC_CLK_TCK")
HEAD = "engine    silos   run s  round s  command's CPU s  silos' CPU s  rest ms/silo  memory MiB  digest"


@dataclass
class CommandUsage:
    """Peak MiB of a command's processes together, and processor seconds by process id."""

    most: float = 0.0
    seconds: dict[int, float] = field(default_factory=dict)

    def look(self, mark: str) -> None:
        """Measures the processes that have the mark now."""
        marked = [folder for folder in Path("/proc").glob("[0-9]*") if belongs_to(folder, mark)]
        self.most = max(self.most, sum(resident_mib_of(folder) for folder in marked))
        for folder in marked:
            self.seconds[int(folder.name)] = processor_seconds_of(folder) or self.seconds.get(int(folder.name), 0.0)


def main() -> None:
    """Prints a row for each engine and number of silos."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--clients", type=int, nargs="+", default=[200])
    parser.add_argument("--users", type=int, default=20, help="users of a generated silo")
    parser.add_argument("--items", type=int, default=1200, help="items of generated data")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--method", default="random")
    parser.add_argument("--strategy", default="lpsfed")
    parser.add_argument("--set", action="append", default=[], help="key=value of the method")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--silo-memory", type=int, help="MiB for the silos of plain and ray")
    parser.add_argument("--engines", nargs="+", default=["plain", "ray", "services"])
    given = parser.parse_args()
    print(HEAD)
    for clients in given.clients:
        with tempfile.TemporaryDirectory() as place:
            data = given.data or str(generate_shards(clients, given, Path(place) / "shards"))
            for engine in given.engines:
                print(measure_engine(engine, data, clients, given), flush=True)


def generate_shards(clients: int, given: argparse.Namespace, folder: Path) -> Path:
    """Writes shards of generated data; returns their folder."""
    dataset = generate_dataset(0, users=max(100, given.users * clients), items=given.items)
    write_partition(dataset, partition_dataset(dataset, clients=clients, method=given.method, seed=0), folder)
    return folder


def measure_engine(engine: str, data: str, clients: int, given: argparse.Namespace) -> str:
    """Returns a row of the table."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "simulation.cli", "simulate", data, "--engine", engine]
        command += ["--clients", str(clients), "--rounds", str(given.rounds), "--strategy", given.strategy]
        command += ["--method", given.method] if given.data else []
        command += [word for one in given.set for word in ("--set", one)]
        command += ["--no-floors", "--json", "--device", "cpu", "--out", f"{place}/run"]
        command += ["--ray-cpus", str(given.cpus)] if engine == "ray" else []
        has_limit = given.silo_memory and engine != "services"
        command += ["--silo-memory", str(given.silo_memory)] if has_limit else []
        report, usage = Path(place) / "report.json", CommandUsage()
        with report.open("w") as file:
            child = subprocess.Popen(command, stdout=file, env=os.environ | {MARK: mark})
            while child.poll() is None:
                usage.look(mark)
                time.sleep(LOOK_SECONDS)
        if child.returncode:
            return f"{engine:9} ended with {child.returncode}"
        found = json.loads(report.read_text())
    return format_row(engine, clients, found, usage)


def format_row(engine: str, clients: int, report: dict[str, Any], usage: CommandUsage) -> str:
    """Formats a row of the table; services do not tell the silos' own seconds."""
    seconds, whole = report["seconds"], sum(usage.seconds.values())
    by_round, silos = seconds["by_round"], seconds["silos"]
    a_round = f"{statistics.median(by_round):8.1f}" if by_round else f"{'-':>8}"
    own = f"{silos:13.1f}  {1000 * (whole - silos) / clients:12.0f}" if silos else f"{'-':>13}  {'-':>12}"
    times = f"{seconds['total']:7.1f}  {a_round}  {whole:15.1f}  {own}"
    return f"{engine:9} {clients:5}  {times}  {usage.most:10.0f}  {report['digest'][:16]}"


def processor_seconds_of(process: Path) -> float:
    """Returns the processor seconds of a process so far; 0 if it has ended."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


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
