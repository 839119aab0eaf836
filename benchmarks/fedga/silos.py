"""Session models on a few large silos, compared with one model on all sessions.

python -m benchmarks.fedga.silos FOLDER [--model tagnn] [--clients 4] [--cut random] [--methods fedavg local ...]
python -m benchmarks.fedga.silos FOLDER --clients 1 --set width=100

All silos take part in every round, which is one local epoch of Adam. The best round is chosen by validation MRR@20;
test examples are read once, with its model. --clients 1 trains as the authors of SR-GNN do, with a tenth of the rate
after every third epoch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.fedga.methods import average_silos, build_method, judge_silos
from benchmarks.fedga.rows import Row, store_row
from benchmarks.fedga.sets import SessionSet, divide, measure_silo_floors, parse_setting
from client_service.training.session_trainer import MODELS, SessionTrainer
from client_service.training.training_state import RoundContext
from shared.method.parameters import Parameters
from simulation.experiments.devices import DevicePlan, DeviceRound, StatefulSilos, loss_of, train_devices
from simulation.sessions.read import read_sessions

USUAL = {"batch_size": 100, "learning_rate": 1e-3}
ALONE = {"sessions.rate_step": 3}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"strategy": "fedavg"},
    "local": {"strategy": "local"},
    "central": {"strategy": "fedavg", **ALONE},
}
CPU = torch.device("cpu")


def run_silos(found: SessionSet, changes: dict[str, Any], rounds: int, seed: int) -> Row:
    """Runs one seed: validation after each round, and test figures of the best."""
    strategy, method = build_method(len(found.sessions.items), changes)
    crew = StatefulSilos(found.shards, method, CPU)
    began, curve, best = time.perf_counter(), list[Row](), (-1.0, dict[str, Any]())
    for one in train_devices(DevicePlan(strategy, method, rounds, len(found.shards), seed), crew, loss_of):
        trainings = [_with_state(crew, shard.name, one, seed) for shard in found.shards]
        valid = judge_silos(trainings, lambda shard: shard.valid)["examples"]
        curve.append({"round": one.number, "loss": one.loss, **valid})
        print(strategy, one.number, round(one.loss, 4), round(valid["mrr20"], 4), flush=True)
        if valid["mrr20"] > best[0]:
            best = (valid["mrr20"], {"best_round": one.number, **judge_silos(trainings, lambda shard: shard.test)})
    return {**best[1], "curve": curve, "bytes": one.bytes, "seconds": time.perf_counter() - began}


def _with_state(crew: StatefulSilos, name: str, one: DeviceRound, seed: int) -> SessionTrainer:
    """Loads the mean of the round into the silo's model."""
    training = crew.visit(name, RoundContext(one.number, one.number, seed))
    assert isinstance(training, SessionTrainer)
    training.load(Parameters(one.state.arrays))
    return training


def run_methods(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yields one row per floor, then one per method and seed."""
    found, changed = divide(read_sessions(arguments.folder), arguments.cut, arguments.clients), dict(arguments.set)
    about: Row = {"part": "silos", "data": arguments.folder.name, "cut": arguments.cut, "clients": arguments.clients}
    about["jd"] = found.divergence
    floors = [measure_silo_floors(shard) for shard in found.shards]
    for name in floors[0]:
        sizes = [len(shard.test) for shard in found.shards]
        yield {**about, "method": name, **average_silos([one[name] for one in floors], sizes)}
    for name in arguments.methods or (("central",) if arguments.clients == 1 else ("fedavg", "local")):
        changes = {**USUAL, **METHODS.get(name, {"strategy": name}), "model": arguments.model, **changed}
        cell = {**about, "method": name, "model": arguments.model, "set": changed}
        for seed in range(arguments.seeds):
            result = run_silos(found, changes, arguments.rounds, seed)
            yield {**cell, "seed": seed, "rounds": arguments.rounds, **result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=list(MODELS), default="srgnn")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--cut", default="random")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--methods", nargs="*", help="local, central, or the name of a strategy")
    parser.add_argument("--set", nargs="*", type=parse_setting, default=[], metavar="NAME=JSON")
    for row in run_methods(parser.parse_args()):
        store_row(**row)


if __name__ == "__main__":
    main()
