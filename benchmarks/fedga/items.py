"""Comparison of server optimisers on models of lists for users: LPSFed and FedMF.

python -m benchmarks.fedga.items FOLDER [--clients 4] [--rounds 10] [--trials 8] [--seeds 3] [--out runs/fedga]

The settings of each pair of strategy and server are searched as by `lpsfed tune`, on shards without test pairs, with
the same number of trials; then it is trained with each seed. Each run appends a line to results.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fedga.rows import Row, store_row
from client_service.evaluation.metrics import PRIMARY
from client_service.federation.messages import QualityOut
from shared.method.settings import method_settings
from simulation.experiments.blind import hide_test_pairs, write_blind_shards
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import ignore_progress
from simulation.experiments.floors import measure_bounds
from simulation.experiments.in_process import simulate_experiment
from simulation.partitioning.sources import Cut, cut_shards
from simulation.reports.averages import USER_MEAN
from simulation.reports.report import build_report, floor_means
from simulation.tuning.search import Search, open_study, run_search, summarise_search
from simulation.tuning.spaces import search_space

STRATEGIES, SERVERS = ("lpsfed", "fedmf"), ("none", "adam", "yogi", "ga")
TUNED_ROUNDS, TUNING_SEED = 5, 100


def search_settings(shards: tuple[Path, ...], strategy: str, server: str, trials: int, out: Path) -> dict[str, Any]:
    """Searches for the best values; resumes an interrupted search."""
    base = method_settings(server=server)
    space = search_space(strategy, base)
    plan = Search(shards, strategy, base, space, TUNED_ROUNDS, TUNING_SEED, "cpu", cache=out / "cache")
    study = open_study(plan, out / f"{strategy}-{server}")
    run_search(plan, study, trials, lambda state: print(f"  {strategy}, {server}: {state}", flush=True))
    values: dict[str, Any] = summarise_search(plan, study)["values"]
    return values


def train_cell(experiment: Experiment) -> Row:
    """Trains one cell; returns means over all users: test figures, and validation by round."""
    outcome = simulate_experiment(experiment, ignore_progress)
    report = build_report(experiment, outcome)
    return {"test": report[USER_MEAN], "curve": _mean_curve(list(outcome.qualities.values()))}


def _mean_curve(qualities: list[QualityOut]) -> list[float]:
    """Computes the primary measure on validation items by round, from the start on."""
    rounds = zip(*(quality.rounds for quality in qualities), strict=True)
    weights = [quality.valid_users or 0 for quality in qualities]
    return [float(np.average([entry.values[PRIMARY] for entry in entries], weights=weights)) for entries in rounds]


def run_cells(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yields one row per floor, then one per strategy, server and seed."""
    about: Row = {"part": "items", "data": arguments.folder.name, "clients": arguments.clients}
    shards = cut_shards(str(arguments.folder), Cut(arguments.clients, "users"), arguments.out / "shards").paths
    blind = write_blind_shards(hide_test_pairs, shards, arguments.out / "blind")
    plain = Experiment(shards, arguments.out / "floors", method_settings(), rounds=1, device="cpu")
    for name, figures in _floors_of(plain).items():
        yield {**about, "method": name, "test": figures}
    for strategy, server in itertools.product(arguments.strategies, arguments.servers):
        rates = search_settings(blind, strategy, server, arguments.trials, arguments.out)
        for seed in range(arguments.seeds):
            method = method_settings(server=server, **rates)
            with tempfile.TemporaryDirectory() as folder:
                cell = {"method": strategy, "server": server, "rates": rates, "seed": seed, "rounds": arguments.rounds}
                one = Experiment(
                    shards, Path(folder), method, strategy, rounds=arguments.rounds, seed=seed, device="cpu"
                )
                yield {**about, **cell, **train_cell(one)}


def _floors_of(experiment: Experiment) -> dict[str, Row]:
    """Measures user means of the floors, which need no training."""
    outcome = simulate_experiment(experiment, ignore_progress)
    report = build_report(experiment, outcome, measure_bounds(experiment, shown=False))
    known = {name: floor_means(figures, USER_MEAN) for name, figures in report["floors"].items()}
    return {name: dict(means) for name, means in known.items() if means}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--strategies", nargs="*", default=list(STRATEGIES))
    parser.add_argument("--servers", nargs="*", default=list(SERVERS))
    parser.add_argument("--out", type=Path, default=Path("runs/fedga"), help="shards, and the searches that may go on")
    for row in run_cells(parser.parse_args()):
        store_row(**row)


if __name__ == "__main__":
    main()
