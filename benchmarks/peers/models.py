"""Comparison of closed forms, training and evaluation with implicit, EASE and RecBole.

python -m benchmarks.peers.models SHARD [--batches 30] [--most-items 8000]

Each is one process whose linear algebra has one thread; times are processor times. Quality is that of the lists on
the shard's validation items: the cost of a model means little without it. RecBole trains --batches batches of 2,048
pairs, the project a whole epoch; both are given in pairs per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.common import render_table
from benchmarks.guard.learning import PAIRS, prepare_epoch
from benchmarks.guard.measuring import processor_seconds
from benchmarks.guard.silo import CPU, GeneratedSilo, keep_first_model
from benchmarks.peers.environments import INSIDE, make_environment
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.evaluation.ranking import TopItems, evaluate, measure_test, rank_by_scores
from client_service.federation.best_model import load_model
from client_service.model_store.model_files import ServedItems
from client_service.models.closed_form.ease import ease_scores
from client_service.runtime.device import pin_threads
from client_service.tasks.items import ITEMS

RIDGE, WIDTH = 300.0, 64


def run_inside(environment: str, script: str, *arguments: str) -> dict[str, Any]:
    """Runs a peer's script and returns the JSON of its last line.

    It runs in a folder that is removed with all files of the peer's library.
    """
    command = [str(make_environment(environment)), str(INSIDE / script), *arguments]
    with tempfile.TemporaryDirectory() as place:
        told = subprocess.run(command, cwd=place, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(told.strip().splitlines()[-1])
    return found


def write_matrices(shard: Shard, folder: Path) -> None:
    """Writes the splits for peers."""
    for name, matrix in (("train", shard.train), ("valid", shard.valid), ("test", shard.test)):
        sparse.save_npz(folder / f"{name}.npz", sparse.csr_matrix(matrix, dtype=np.float32))


def closed_forms(shard: Shard, shard_folder: Path, folder: Path, most: int) -> list[list[str]]:
    """Returns a row per closed form: seconds of fitting and ranking, and quality."""
    theirs = run_inside("serving", "closed_forms.py", str(folder), str(most))
    lists = {name: np.lib.format.open_memmap(folder / f"{name}.npy", mode="r") for name in theirs}
    rows = [_quality_row(f"{name} (peer)", one["fit"], one["rank"], shard, lists[name]) for name, one in theirs.items()]
    before = time.process_time()
    keep_first_model(shard_folder, folder / "state")
    fitted = time.process_time() - before
    served = load_model(ITEMS, shard, folder / "state" / "model", CPU)
    assert isinstance(served, ServedItems)
    rows.append(_own_row("first model, all its choices by validation", fitted, served.ranker.top, shard))
    if "ease" in theirs:
        before = time.process_time()
        top = rank_by_scores(ease_scores(shard.train, RIDGE))
        rows.append(_own_row("ease", time.process_time() - before, top, shard))
    return rows


def _own_row(name: str, fitted: float, top: TopItems, shard: Shard) -> list[str]:
    users, before = np.arange(len(shard.user_ids)), time.process_time()
    blocks = [top(rows, shard.train[rows], 20) for rows in np.array_split(users, len(users) // 256 + 1)]
    return _quality_row(name, fitted, time.process_time() - before, shard, np.concatenate(blocks))


def _quality_row(name: str, fitted: float, ranked: float, shard: Shard, lists: Any) -> list[str]:
    found = evaluate(lambda rows, _, k: lists[rows, :k], shard.valid, shard.train).values
    return [name, f"{fitted:.1f}", f"{ranked:.2f}", *(f"{found[what]:.4f}" for what in ("recall", "ndcg"))]


def compare_with_recbole(shard: Shard, shard_folder: Path, folder: Path, batches: int) -> list[list[str]]:
    """Compares an epoch, and full-sort evaluation of embeddings of the same width."""
    theirs = run_inside("recbole", "recbole_lightgcn.py", str(folder), str(batches))
    own, peer = asyncio.run(_own_pairs(shard_folder)), theirs["pairs"] / theirs["train"]
    judged, judging = _own_evaluation(shard), theirs["users"] / theirs["evaluate"]
    return [
        ["epoch, pairs a processor second", f"{own:,.0f}", f"{peer:,.0f}", f"{own / peer:.1f}"],
        [
            "full-sort evaluation, users a processor second",
            f"{judged:,.0f}",
            f"{judging:,.0f}",
            f"{judged / judging:.1f}",
        ],
    ]


async def _own_pairs(shard_folder: Path) -> float:
    """Measures trained pairs per processor second of an epoch."""
    async with prepare_epoch(GeneratedSilo(shard_folder, shard_folder), shard_folder) as prepared:
        (timed,) = prepared.timed
        return PAIRS * timed.count / await processor_seconds(timed.work)


def _own_evaluation(shard: Shard) -> float:
    """Measures evaluated users per processor second, for products of embeddings."""
    draw = np.random.default_rng(0)
    users, items = (draw.standard_normal((count, WIDTH), dtype=np.float32) for count in shard.train.shape)
    before = time.process_time()
    measure_test(shard, rank_by_scores(lambda rows: users[rows] @ items.T))
    return int(np.count_nonzero(np.diff(shard.test.indptr))) / (time.process_time() - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shard", type=Path)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--most-items", type=int, default=8000, help="up to which EASE is fitted")
    arguments = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    pin_threads(1)
    shard = load_shard(arguments.shard)
    with tempfile.TemporaryDirectory() as place:
        write_matrices(shard, Path(place))
        head = ("closed form", "fit, processor s", "rank all users, processor s", "Recall@20", "NDCG@20")
        print(render_table(head, closed_forms(shard, arguments.shard, Path(place), arguments.most_items)), flush=True)
        rows = compare_with_recbole(shard, arguments.shard, Path(place), arguments.batches)
        print(render_table(("what", "ours", "RecBole", "ratio"), rows))


if __name__ == "__main__":
    main()
