"""Seconds of one epoch of every shard, by operation."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from client_service.data.interaction_files import load_shard
from client_service.runtime.device import choose_device, pin_threads
from client_service.training.item_trainer import ItemTrainer
from client_service.training.training_state import RoundContext
from shared.method.parameters import Parameters
from shared.method.settings import method_settings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import initial_parameters, mlp_specification
from shared.strategies.local_client import Objective
from simulation.partitioning.sources import find_shards

ROUNDS = 15


def prepare_client(shard_folder: Path, device: torch.device) -> ItemTrainer:
    """Creates a trainer after its warm-up, so that the margin is on."""
    method = method_settings()
    shard = load_shard(shard_folder)
    training = ItemTrainer(shard, low_spectrum(shard.train, method.cutoff), method, device)
    training.load(Parameters(initial_parameters(mlp_specification(method), 0, exact=True), {"margin": 0.3}))
    training.context = RoundContext(round=1, rounds=ROUNDS, seed=0)
    training.train(Objective(bias_aware=True))
    training.context = RoundContext(round=ROUNDS, rounds=ROUNDS, seed=0)
    return training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    pin_threads(arguments.threads)
    device, reason = choose_device(arguments.device)
    shards = find_shards(arguments.shards)
    print(f"device {device}: {reason}")
    for path in shards.paths if shards else ():
        training = prepare_client(path, device)
        began = time.perf_counter()
        with profile(activities=[ProfilerActivity.CPU]) if arguments.profile else torch.enable_grad() as recorded:
            training.train(Objective(bias_aware=True))
        seconds, edges = time.perf_counter() - began, training.shard.train.nnz
        print(f"{path.name}: {seconds:.2f} s an epoch of {edges:,} pairs, {edges / seconds:,.0f} pairs/s")
        if arguments.profile:
            print(recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=12))


if __name__ == "__main__":
    main()
