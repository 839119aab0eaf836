"""Comparison of a round without training with Flower's and NVFlare's.

python -m benchmarks.peers.rounds [--megabytes 0.7 64] [--clients 4 16] [--rounds 3]

Ours is the aggregator's whole part except HTTP and signatures, through the disk: each body is written as a client
writes it, spooled, hashed, checked, aggregated, and an answer is made for each client. Flower's is the mean of the
clients' records in memory. Both in processor time of one process, the smallest of some rounds; the seconds of a round
of Flower's simulation and of NVFlare's simulator, which transport the updates, are given too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import count, product
from pathlib import Path

import numpy as np

from benchmarks.common import render_table
from benchmarks.guard.measuring import memory_mib
from benchmarks.guard.rounds import open_archive, run_round_once
from benchmarks.peers.models import run_inside
from client_service.runtime.device import pin_threads
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy

WIDTH = 64


def own_seconds(items: int, clients: int, rounds: int) -> float:
    """Measures the smallest processor seconds of a round that shares an item table."""
    method = MethodSettings(width=WIDTH, catalogue=items)
    declaration = build_strategy("fedmf", method).declaration(method)
    update = Parameters({spec.name: np.ones(spec.shape, np.float32) for spec in declaration.tensors}, {})
    names, numbers = tuple(f"client-{number:02d}" for number in range(1, clients + 1)), count(1)
    taken = []
    with (
        tempfile.TemporaryDirectory() as folder,
        open_archive(Path(folder) / "aggregator", declaration, 8 * WIDTH * items, names) as archive,
    ):
        for _ in range(rounds):
            before = time.process_time()
            run_round_once(archive, f"run-{next(numbers)}", update, method, names)
            taken.append(time.process_time() - before)
    return min(taken)


def compare(megabytes: float, clients: int, rounds: int) -> list[str]:
    """Returns one row of the comparison."""
    items = round(1e6 * megabytes / (4 * WIDTH))
    own = own_seconds(items, clients, rounds)
    theirs = run_inside("flower", "flower_round.py", str(items), str(clients), str(rounds))
    nvflare = run_inside("nvflare", "nvflare_round.py", str(items), str(clients), str(max(rounds, 2)))
    peer, simulated = theirs["aggregate"], (theirs["simulate"], nvflare["simulate"])
    return [
        *(f"{megabytes:g}", str(clients), f"{1e3 * own:,.0f}", f"{1e3 * peer:,.0f}", f"{peer / own:.2f}"),
        *(f"{1e3 * seconds:,.0f}" for seconds in simulated),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.7, 64.0])
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--rounds", type=int, default=3, help="at least 2")
    arguments = parser.parse_args()
    pin_threads(1)
    head = (
        "MB",
        "clients",
        "ours, processor ms",
        "Flower, processor ms",
        "ratio",
        "Flower simulated, ms",
        "NVFlare simulated, ms",
    )
    print(render_table(head, []), flush=True)
    for size, many in product(arguments.megabytes, arguments.clients):
        print("| " + " | ".join(compare(size, many, arguments.rounds)) + " |", flush=True)
    print(f"most memory of our process: {memory_mib():.0f} MiB")


if __name__ == "__main__":
    main()
