"""The client of one silo beside implicit's ALS (128 factors) behind FastAPI: the same shard and load, by turns.

python -m benchmarks.peers.serving SHARD [--seconds 5]

Needs wrk. Both servers are one process whose linear algebra has one thread, and wrk is another. What stands beside
wall-clock figures is the server's processor time, which a busy machine leaves nearly alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy import sparse

from benchmarks.common import render_table
from benchmarks.peers.environments import INSIDE, make_environment
from benchmarks.speed.serving import (
    Load,
    LoadTarget,
    drawn_users,
    load_all,
    memory_of,
    serve_closed_form,
    untrained_settings,
    wait_for,
)
from client_service.shard import Shard, read_shard
from simulation.experiment import Experiment
from simulation.processes import HOST, free_ports, stop_services

FIT_SECONDS = 900.0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@contextmanager
def implicit_service(shard: Shard) -> Iterator[tuple[str, int]]:
    """Its URL and its process, once it is fitted to the shard's training pairs."""
    python, (port,) = make_environment("serving"), free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        sparse.save_npz(Path(folder) / "train.npz", sparse.csr_matrix(shard.train, dtype=np.float32))
        ids = {"users": list(shard.user_ids), "items": list(shard.item_ids)}
        (Path(folder) / "ids.json").write_text(json.dumps(ids), encoding="utf-8")
        command = [str(python), str(INSIDE / "serve_implicit.py"), str(port), folder]
        process = subprocess.Popen(command, env=os.environ | ONE_THREAD, stdout=sys.stderr.fileno())
        try:
            url = f"http://{HOST}:{port}"
            wait_for(f"{url}/openapi.json", FIT_SECONDS)
            yield url, process.pid
        finally:
            stop_services([process])


def load_implicit(shard: Shard, seconds: int) -> list[Load]:
    """The same requests as the client gets."""
    with implicit_service(shard) as (url, pid):
        found = load_all(shard, LoadTarget(url, "none", drawn_users(shard), pid), seconds)
        print(f"memory of implicit's service: {memory_of(pid)} MB", file=sys.stderr)
    return found


def compare(ours: Sequence[Load], theirs: Sequence[Load]) -> str:
    """A line for each load that both had; the empty route, which only one had, beside nothing."""
    peer = {(one.what, one.connections): one for one in theirs}
    head = (
        *("what", "connections", "ours /s", "implicit /s", "ratio", "ours p50, p99 ms", "implicit p50, p99 ms"),
        *("ours CPU ms", "implicit CPU ms", "ratio", "errors"),
    )
    return render_table(head, [_line(one, peer.get((one.what, one.connections))) for one in ours])


def _line(own: Load, peer: Load | None) -> list[str]:
    told = [own.what, str(own.connections), f"{own.rate:,.1f}"]
    if peer is None:
        return [*told, "", "", _times(own), "", f"{own.cpu:.3f}", "", "", str(own.errors)]
    rates, costs = f"{own.rate / peer.rate:.2f}", f"{peer.cpu / own.cpu:.2f}"
    processor = [f"{own.cpu:.3f}", f"{peer.cpu:.3f}", costs]
    return [*told, f"{peer.rate:,.1f}", rates, _times(own), _times(peer), *processor, f"{own.errors}, {peer.errors}"]


def _times(load: Load) -> str:
    return f"{load.p50:.2f}, {load.p99:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shard", type=Path)
    parser.add_argument("--seconds", type=int, default=5, help="of each load")
    arguments = parser.parse_args()
    os.environ |= ONE_THREAD
    theirs = load_implicit(read_shard(arguments.shard), arguments.seconds)
    with tempfile.TemporaryDirectory() as folder:
        method = untrained_settings()
        experiment = Experiment((arguments.shard,), Path(folder), method, rounds=1)
        ours = asyncio.run(serve_closed_form(experiment, arguments.seconds))
    print(compare(ours, theirs))


if __name__ == "__main__":
    main()
