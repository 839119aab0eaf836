"""Quality of lists when a silo fits its model again on all of its data.

python -m benchmarks.refitted --data FOLDER --name ml-100k [--silos 4] [--rounds 2] [--common-basis exact] [--users N]

A tenth of each user's positives is hidden by a keyed draw. Silos of random users have the rest: they split it 8:1:1,
choose and train by that as in any run, and serve either that model (80 %) or the one that is fitted again on all
their data (`fit_everything`), also with the sums of a common basis. Each list excludes all items of the user's data,
and is evaluated on the hidden items. The interval is over users; the figures on validation and test items show
whether a model has seen them.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from scipy import sparse

from benchmarks.common import locate_data, render_table
from client_service.data.events import row_numbers
from client_service.data.interaction_files import save_shard
from client_service.data.interactions import build_shard
from client_service.evaluation.metrics import LABELS, METRICS, PRIMARY
from client_service.evaluation.ranking import TopItems, find_hits
from client_service.federation.best_model import load_model
from client_service.joining_value.comparison import mean_interval
from client_service.model_store.model_files import ServedItems
from client_service.tasks.items import ITEMS, load_listed_shard
from shared.method.graph import Float64, interaction_matrix
from shared.method.settings import MethodSettings
from simulation.datasets.load import load_dataset
from simulation.datasets.splits import split_by_user
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import ignore_progress
from simulation.experiments.in_process import simulate_experiment

HIDDEN_SEED, SPLIT_SEED = 1, 0
EACH = ("validation", "test", "hidden")


def hide_items(data: Path, users: int | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Returns the silos' events, split 8:1:1, and the hidden positives; users: at most this many."""
    events = load_dataset(data, SPLIT_SEED, "usual").events
    if users is not None:
        kept = events["user"].unique().sort().sample(min(users, events["user"].n_unique()), seed=0)
        events = events.filter(pl.col("user").is_in(kept.implode()))
    drawn = split_by_user(events, HIDDEN_SEED)
    hidden = drawn.filter(pl.col("split") == "test")
    return split_by_user(drawn.filter(pl.col("split") != "test"), SPLIT_SEED), hidden


def write_silos(events: pl.DataFrame, silos: int, folder: Path) -> tuple[Path, ...]:
    """Writes shards of random users, in equal parts."""
    users = events["user"].unique().sort()
    part = np.random.default_rng(0).permutation(len(users)) % silos
    paths = []
    for number in range(silos):
        own = users.filter(pl.Series(part == number))
        name = f"client-{number + 1}"
        save_shard(folder / name, build_shard(name, events.filter(pl.col("user").is_in(own.implode())), None))
        paths.append(folder / name)
    return tuple(paths)


def measure_lists(experiment: Experiment, hidden: pl.DataFrame) -> dict[str, dict[str, Float64]]:
    """Measures each user's primary measure, for the evaluated (80 %) and the serving model."""
    found: dict[str, dict[str, list[Float64]]] = {who: {on: [] for on in EACH} for who in ("judged", "refitted")}
    for path in experiment.shards:
        settings = experiment.make_silo_settings(path)
        shard = load_listed_shard(settings)
        train, known = shard.train, sparse.csr_array(shard.train + shard.valid)
        rows = row_numbers(hidden["user"], pl.Series(shard.user_ids))
        columns = row_numbers(hidden["item"], pl.Series(shard.item_ids))
        there = (rows >= 0) & (columns >= 0)
        target = interaction_matrix(rows[there], columns[there], train.shape)
        lost = np.bincount(rows[(rows >= 0) & (columns < 0)], minlength=train.shape[0])  # no list can have them
        for who in found:
            top = _lists(settings, shard, everything=who == "refitted")
            values = {
                "validation": _each_user(top, shard.valid, train),
                "test": _each_user(top, shard.test, known),
                "hidden": _each_user(top, target, shard.with_all_data.train, lost),
            }
            for on, of_users in values.items():
                found[who][on].append(of_users)
    return {who: {on: np.concatenate(parts) for on, parts in values.items()} for who, values in found.items()}


def _lists(settings: Any, shard: Any, *, everything: bool) -> TopItems:
    served = load_model(ITEMS, shard, settings.models_directory, torch.device("cpu"), fit_everything=everything)
    assert isinstance(served, ServedItems), "expected the kept model of a finished run"
    return served.ranker.top


def _each_user(
    top: TopItems, target: sparse.csr_array, seen: sparse.csr_array, lost: np.ndarray | None = None
) -> Float64:
    """Computes the measure of users with target items.

    lost: number of further targets per user that are in no list.
    """
    counts = np.diff(target.indptr)
    hits, judged = find_hits(top, target, seen)
    if lost is None:
        return METRICS[PRIMARY].per_user(hits, judged)
    values: Float64 = np.zeros(len(counts))
    values[counts > 0] = METRICS[PRIMARY].per_user(hits, (counts + lost)[counts > 0])
    found: Float64 = values[counts + lost > 0]
    return found


def run_silos(shards: tuple[Path, ...], folder: Path, given: argparse.Namespace, *, everything: bool) -> Experiment:
    """Runs a whole experiment."""
    basis = {} if given.common_basis == "off" else {"basis": {"kind": given.common_basis}}
    method = MethodSettings(strategy={"train": given.rounds > 1}, **basis)
    experiment = Experiment(shards, folder, method, rounds=given.rounds, fit_everything=everything)
    simulate_experiment(experiment, ignore_progress)
    return experiment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--name", default="ml-100k")
    parser.add_argument("--silos", type=int, default=4)
    parser.add_argument("--users", type=int)
    parser.add_argument("--rounds", type=int, default=1, help="1: closed forms alone")
    parser.add_argument("--common-basis", choices=("off", "exact", "iterated"), default="off")
    given = parser.parse_args()
    events, hidden = hide_items(Path(locate_data(given.name, given.data)), given.users)
    with tempfile.TemporaryDirectory() as place:
        shards = write_silos(events, given.silos, Path(place) / "shards")
        some = run_silos(shards, Path(place) / "some", given, everything=False)
        whole = some
        if given.common_basis != "off":
            whole = run_silos(shards, Path(place) / "whole", given, everything=True)
        of_some = measure_lists(some, hidden)["judged"]
        of_whole = measure_lists(whole, hidden)
    print(f"{given.name}: {len(of_some['hidden']):,} users with {len(hidden):,} hidden items, {given.silos} silos\n")
    rows = [
        ("80 %", *(f"{of_some[on].mean():.4f}" for on in EACH)),
        ("80 %, sums over everything", *(f"{of_whole['judged'][on].mean():.4f}" for on in EACH)),
        ("everything", "", "", f"{of_whole['refitted']['hidden'].mean():.4f}"),
    ]
    print(render_table((LABELS[PRIMARY].title, *EACH), rows if whole is not some else [rows[0], rows[2]]))
    gain = mean_interval(of_whole["refitted"]["hidden"] - of_some["hidden"])
    ratio = of_whole["refitted"]["hidden"].mean() / of_some["hidden"].mean()
    print(f"\neverything less 80 %, hidden items: {gain.mean:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}], x {ratio:.3f}")


if __name__ == "__main__":
    main()
