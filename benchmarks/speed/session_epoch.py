"""Cost of an epoch of a session model, and its most expensive operations.

python -m benchmarks.speed.session_epoch FOLDER [--models srgnn tagnn] [--width 64] [--batches 300]

FOLDER: train_sessions.txt and test.txt, or a file of clicks. All sessions are in one silo. `--batches` of the epoch
are trained after a few that do not count, and the epoch's seconds follow from their share; --batches 0 trains all of
it. The operations are those of torch's profiler over 20 further batches. One thread.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import render_table
from client_service.data.prefixes import Int64
from client_service.data.sessions import SessionShard, shuffle_batches
from client_service.runtime.device import pin_threads
from client_service.training.session_trainer import SessionTrainer
from shared.method.settings import method_settings
from shared.strategies.local_client import Objective
from simulation.sessions.cut import cut_sessions, divide_sessions
from simulation.sessions.read import read_sessions

WARM, PROFILED, SHOWN = 5, 20, 10


def endless_batches(shard: SessionShard, size: int) -> Iterator[Int64]:
    """Yields batches as training draws them, epoch after epoch."""
    for seed in itertools.count():
        yield from shuffle_batches(shard.train.lengths, size, np.random.default_rng(seed))


def train_batches(training: SessionTrainer, batches: Sequence[Int64]) -> float:
    """Trains batches; returns the seconds."""
    began = time.perf_counter()
    training.run_epoch(batches, training.find_loss, Objective())
    return time.perf_counter() - began


def measure_epoch(shard: SessionShard, model: str, width: int, count: int) -> tuple[list[str], list[list[str]]]:
    """Measures an epoch of a model; returns its row and its most expensive operations."""
    size = 100
    method = method_settings("sessions", model=model, width=width, catalogue=len(shard.item_ids), batch_size=size)
    training, batches = SessionTrainer(shard, method, torch.device("cpu")), endless_batches(shard, size)
    whole = -(-len(shard.train) // size)
    train_batches(training, list(itertools.islice(batches, WARM)))
    counted = count or whole
    seconds = train_batches(training, list(itertools.islice(batches, counted)))
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        train_batches(training, list(itertools.islice(batches, PROFILED)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    epoch = seconds / counted * whole
    row = [model, f"{epoch:.0f}", f"{1000 * seconds / counted:.1f}", f"{len(shard.train) / epoch:,.0f}", f"{peak:,.0f}"]
    return row, describe_operations(watched)


def describe_operations(watched: profile) -> list[list[str]]:
    """Returns name, share of processor time, and calls per batch."""
    averages = watched.key_averages()
    total = sum(one.self_cpu_time_total for one in averages)
    most = sorted(averages, key=lambda one: -one.self_cpu_time_total)[:SHOWN]
    return [[one.key, f"{one.self_cpu_time_total / total:.1%}", f"{one.count / PROFILED:.0f}"] for one in most]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="*", default=["srgnn", "tagnn"])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batches", type=int, default=300)
    arguments = parser.parse_args()
    pin_threads(1)
    [shard] = divide_sessions(*cut_sessions(read_sessions(arguments.folder), "random", 1, 0))
    found = [measure_epoch(shard, model, arguments.width, arguments.batches) for model in arguments.models]
    sizes = f"{len(shard.train):,} examples, {len(shard.item_ids):,} items, width {arguments.width}"
    head = [sizes, "s an epoch", "ms a batch of 100", "examples/s", "peak MB"]
    print(render_table(head, [row for row, _ in found]))
    for row, operations in found:
        print("", render_table([row[0], "of the time", "calls a batch"], operations), sep="\n")


if __name__ == "__main__":
    main()
