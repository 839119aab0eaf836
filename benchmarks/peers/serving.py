"""The client of one silo beside implicit's ALS (128 factors) behind FastAPI: the same shard and load, by turns.

python -m benchmarks.peers.serving SHARD [--seconds 4]

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
    CLIENT,
    all_requests,
    as_table,
    serve_closed_form,
    serve_empty_route,
    untrained_settings,
    wait_for,
)
from benchmarks.speed.wrk import Load, LoadTarget, load_by_turns, memory_of
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from simulation.experiments.experiment import Experiment
from simulation.experiments.processes import HOST, free_ports, stop_services

FIT_SECONDS = 900.0
IMPLICIT = "implicit"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@contextmanager
def serve_implicit(shard: Shard) -> Iterator[LoadTarget]:
    """Its service, once it is fitted to the shard's training pairs."""
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
            yield LoadTarget(IMPLICIT, url, "none", process.pid)
            print(f"memory of implicit's service: {memory_of(process.pid)} MB", file=sys.stderr)
        finally:
            stop_services([process])


def compare(loads: Sequence[Load]) -> str:
    """A line for each kind of request: the client beside implicit."""
    peers = {(one.what, one.connections): one for one in loads if one.server == IMPLICIT}
    head = (
        *("what", "connections", "ours /s", "implicit /s", "ratio", "ours p50, p99 ms", "implicit p50, p99 ms"),
        *("ours CPU ms", "implicit CPU ms", "ratio", "errors"),
    )
    own = (one for one in loads if one.server == CLIENT)
    return render_table(head, [_line(one, peers[one.what, one.connections]) for one in own])


def _line(own: Load, peer: Load) -> list[str]:
    rates, costs = f"{own.rate / peer.rate:.2f}", f"{peer.cpu / own.cpu:.2f}"
    told = [own.what, str(own.connections), f"{own.rate:,.1f}", f"{peer.rate:,.1f}", rates, _times(own), _times(peer)]
    return [*told, f"{own.cpu:.3f}", f"{peer.cpu:.3f}", costs, f"{own.errors}, {peer.errors}"]


def _times(load: Load) -> str:
    return f"{load.p50:.2f}, {load.p99:.2f}"


async def load_services(shard_folder: Path, seconds: int) -> list[Load]:
    """The client, implicit and an empty route by turns."""
    shard = load_shard(shard_folder)
    with serve_implicit(shard) as peer, tempfile.TemporaryDirectory() as folder:
        experiment = Experiment((shard_folder,), Path(folder), untrained_settings(), rounds=1)
        async with serve_closed_form(experiment) as (client, answer):
            with serve_empty_route(answer) as empty:
                return load_by_turns((client, peer, empty), all_requests(shard), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shard", type=Path)
    parser.add_argument("--seconds", type=int, default=4, help="of each turn of each load")
    arguments = parser.parse_args()
    os.environ |= ONE_THREAD
    loads = asyncio.run(load_services(arguments.shard, arguments.seconds))
    print(f"{compare(loads)}\n\n{as_table(loads)}")


if __name__ == "__main__":
    main()
