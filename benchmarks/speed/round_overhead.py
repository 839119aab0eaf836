"""Bytes and milliseconds of a round without training, with client processes on loopback.

python benchmarks/speed/round_overhead.py [--rounds 10] [--clients 4]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from shared.method.settings import method_settings
from simulation.demo import run_demonstration
from simulation.experiments.experiment import Experiment
from simulation.experiments.processes import choose_addresses
from simulation.partitioning.sources import SYNTHETIC, Cut, cut_shards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shards = cut_shards(SYNTHETIC, Cut(arguments.clients), Path(folder) / "shards")
        experiment = Experiment(shards.paths, Path(folder) / "state", method_settings(), rounds=arguments.rounds)
        places, root = choose_addresses(experiment), Path(folder)
        found = run_demonstration(experiment, places, edges_kept=shards.edges_kept, shown=False, root=root)
        report = found.report
    milliseconds = [1000 * seconds for seconds in report["seconds"]["overhead_by_round"]]
    for name, sent in report["bytes_up"].items():
        received = report["bytes_down"][name]
        print(f"{name}: {sent[-1]:,} bytes up, {received[-1]:,} bytes down a round")
    print(
        f"overhead a round over {len(milliseconds)} rounds: median {statistics.median(milliseconds):.0f} ms, "
        f"least {min(milliseconds):.0f} ms, most {max(milliseconds):.0f} ms"
    )


if __name__ == "__main__":
    main()
