"""Comparison of server optimisers on session models with hundreds of small devices.

python -m benchmarks.fedga.devices FOLDER [--model tagnn] [--optimiser sgd] [--rounds 200] [--methods fedavg fedga
...]
python -m benchmarks.fedga.devices FOLDER --methods fedga --set local_epochs=50

FOLDER: train_sessions.txt and test.txt. Rates are chosen by validation, with a seed of their own, within TUNED_ROUNDS
rounds and without the changes of --set; the best round of a run by validation MRR@20. Test examples are read once,
with the model of that round. Each run appends a line to results.jsonl; `python -m benchmarks.fedga.tables` makes
tables.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.fedga.methods import (
    ABLATION,
    METHODS,
    REGIMES,
    Values,
    build_method,
    judge_state,
    list_rates,
    open_model,
)
from benchmarks.fedga.rows import Row, find_rates, read_rows, store_row
from benchmarks.fedga.sets import SessionSet, measure_floors, open_devices, parse_setting
from client_service.training.session_trainer import MODELS
from shared.method.parameters import State
from shared.strategies import build_strategy
from shared.strategies.server_optimisers import SECOND, build_optimiser
from simulation.experiments.devices import DevicePlan, DeviceRound, StatelessDevices, loss_of, train_devices

SAMPLE, EVERY, TUNED_ROUNDS, TUNING_SEED = 20, 20, 60, 100
CPU = torch.device("cpu")


def run_devices(found: SessionSet, changes: dict[str, Any], rounds: int, seed: int) -> Row:
    """Runs one seed: validation every EVERY rounds, and test figures of the best."""
    model = open_model(build_method(len(found.sessions.items), changes)[1])
    began, curve, best = time.perf_counter(), list[Values](), list[DeviceRound]()
    for one, values in judge_rounds(found, changes, rounds, seed):
        if values["mrr20"] > max((point["mrr20"] for point in curve), default=-1.0):
            best = [one]
        curve.append({"round": one.number, "loss": one.loss, **values, **describe_steps(one.state, changes)})
    seconds, [chosen] = time.perf_counter() - began, best
    test = judge_state(model, chosen.state.arrays, found.test)
    return {"best_round": chosen.number, "test": test, "curve": curve, "bytes": chosen.bytes, "seconds": seconds}


def describe_steps(state: State, changes: dict[str, Any]) -> Values:
    """Computes percentiles 5, 50 and 95 of eta / (sqrt(v) + tau).

    Only for a server that divides.
    """
    second = [value.reshape(-1) for name, value in state.memory.items() if name.startswith(SECOND)]
    if not second:
        return {}
    strategy, method = build_method(1, changes)
    optimiser = build_optimiser(build_strategy(strategy, method).server, method.server_step, resistant=False)
    divided = optimiser.rate / (np.sqrt(np.concatenate(second)) + optimiser.tau)
    return {f"step{share}": float(np.percentile(divided, share)) for share in (5, 50, 95)}


def judge_rounds(
    found: SessionSet, changes: dict[str, Any], rounds: int, seed: int
) -> Iterator[tuple[DeviceRound, Values]]:
    """Yields every EVERYth round with its validation figures."""
    strategy, method = build_method(len(found.sessions.items), changes)
    crew, model = StatelessDevices(found.shards, method, CPU), open_model(method)
    for one in train_devices(DevicePlan(strategy, method, rounds, SAMPLE, seed), crew, loss_of):
        if one.number % EVERY == 0:
            yield one, judge_state(model, one.state.arrays, found.valid)


def choose_rates(found: SessionSet, changes: dict[str, Any]) -> dict[str, float]:
    """Chooses the rates with the best validation MRR@20 within TUNED_ROUNDS."""
    tried = []
    for rates in list_rates(len(found.sessions.items), changes, changes["optimiser"]):
        judged = judge_rounds(found, changes | rates, TUNED_ROUNDS, TUNING_SEED)
        tried.append((max(values["mrr20"] for _, values in judged), rates))
        print("  tried", rates, round(tried[-1][0], 4), flush=True)
    return max(tried, key=lambda pair: pair[0])[1]


def run_methods(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yields one row for the floors, then one per method and seed."""
    found, changed = open_devices(arguments.folder), dict(arguments.set)
    about: Row = {"part": "devices", "data": arguments.folder.name, "clients": len(found.shards)}
    yield {**about, "jd": found.divergence, "method": "floors", "test": measure_floors(found.sessions, found.test)}
    for name in arguments.methods or [*METHODS, *ABLATION]:
        kind = {"model": arguments.model, "optimiser": arguments.optimiser}
        changes, cell = {**METHODS, **ABLATION}[name] | kind, {**about, "method": name, **kind}
        rates = find_rates(read_rows(), **cell) or choose_rates(found, changes)
        for seed in range(arguments.seeds):
            result = run_devices(found, changes | rates | changed, arguments.rounds, seed)
            yield {**cell, "set": changed, "rates": rates, "seed": seed, "rounds": arguments.rounds, **result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=list(MODELS), default="srgnn")
    parser.add_argument("--optimiser", choices=list(REGIMES), default="adam", help="of the devices")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", help="by default all, those of the ablation too")
    parser.add_argument("--set", nargs="*", type=parse_setting, default=[], metavar="NAME=JSON")
    for row in run_methods(parser.parse_args()):
        store_row(**row)


if __name__ == "__main__":
    main()
