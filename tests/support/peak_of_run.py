"""One run of a silo with drawn data, in a process of its own -> its peak of memory, and what was estimated.

    python -m tests.support.peak_of_run '{"users": 2500, "items": 4500, "method": {"model": "masked"}}'

JSON of: users, items; strategy (lpsfed), part (training), method: what differs from the default.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from scipy import sparse

from client_service.data.events import SPLIT_TYPE, clean_events
from client_service.data.interactions import Shard, build_shard
from client_service.federation.basis_run import BasisRun
from client_service.federation.client_run import ClientRun
from client_service.federation.messages import RoundCosts
from client_service.federation.run_cost import estimate_costs, total_bytes
from client_service.federation.training_run import TrainingRun
from client_service.runtime.memory import return_free_memory
from client_service.serving.model_server import ModelServer
from client_service.sums.basis import CommonBasis, make_exact_basis
from client_service.sums.registry import find_silo_sum
from client_service.sums.statistics import catalogue_matrix, count_pairs
from client_service.sums.storage import save_basis
from client_service.tasks.items import ITEMS
from client_service.tasks.task import RunContext
from client_service.training.training_state import RoundContext
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings, method_settings
from shared.strategies import build_strategy, strategy_of_part
from shared.strategies.strategy import Strategy

ITEMS_A_USER = 40
CPU = torch.device("cpu")


def drawn_shard(users: int, items: int, folder: Path) -> Shard:
    """Each item has a user, most have few; a tenth is held out for each of validation and test."""
    rng = np.random.default_rng(0)
    weights = 1.0 / (np.arange(items) + 5.0)
    taken = rng.choice(items, size=users * ITEMS_A_USER, p=weights / weights.sum())
    rows = np.concatenate([np.repeat(np.arange(users), ITEMS_A_USER), rng.integers(0, users, items)])
    columns = np.concatenate([taken, np.arange(items)])
    table = pl.DataFrame({"user": [f"u{row:06}" for row in rows], "item": [f"i{column:06}" for column in columns]})
    table = table.unique(maintain_order=True)
    split = pl.Series(rng.choice(["train"] * 8 + ["valid", "test"], size=len(table))).cast(SPLIT_TYPE)
    clean, _ = clean_events(table.with_columns(split=split), folder)
    return replace(build_shard("shop", clean, None), places=np.arange(items, dtype=np.int64))


def peak_bytes() -> int:
    """The most that this process has had since `forget_peak`."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def basis_of_shard(shard: Shard, method: MethodSettings) -> CommonBasis | None:
    if method.basis.kind == "off":
        return None
    if method.basis.kind == "exact":
        whole = make_exact_basis(count_pairs(catalogue_matrix(shard.with_all_data, method.catalogue)), 0.25)
        return replace(whole, added_all_data=True)
    rng = np.random.default_rng(1)
    vectors = np.linalg.qr(rng.standard_normal((method.catalogue, method.basis.rank)))[0].astype(np.float32)
    by_item = np.diff(sparse.csc_array(shard.train).indptr).astype(np.int64)
    return CommonBasis("iterated", 0.25, by_item, vectors=vectors, values=np.linspace(9.0, 1.0, vectors.shape[1]))


def run_once(run: ClientRun, strategy: Strategy, rounds: int) -> None:
    for number in range(1, rounds + 1):
        update, _ = run.fit(strategy, RoundContext(number, rounds, 0, None), run.received)
        kept = {name: np.array(value) for name, value in update.arrays.items()}
        run.apply(Parameters(kept), RoundCosts(round=number))
    run.finish()


def measure(asked: dict[str, Any], folder: Path) -> dict[str, Any]:
    shard, part, name = drawn_shard(asked["users"], asked["items"], folder), asked["part"], asked["strategy"]
    method = method_settings(**{"catalogue": asked["items"], **asked["method"]})
    base, strategy = build_strategy(name, method), strategy_of_part(part, name, method)
    declared = (strategy if part == "basis" else base).declaration(method)
    costs = estimate_costs(strategy, method, ITEMS.count(shard), None, declared, part)
    basis = basis_of_shard(shard, method) if part == "training" else None
    if basis is not None:
        save_basis(folder / "basis", "run-0", basis)
    place = RunContext("shop", "run-1", 0, method, folder / "model", base.model, basis=basis, fit_everything=True)
    answers = ModelServer()
    return_free_memory()
    forget_peak()
    before = peak_bytes()
    if part == "basis":
        chosen, everything = find_silo_sum(method, ITEMS.name), ITEMS.include_all_data(shard)
        summed = BasisRun(place, chosen.count(everything, method), folder, 3, chosen.digests(everything, method))
        run_once(summed, strategy, chosen.declared.rounds(method.basis))
    else:
        run = TrainingRun(place, ITEMS, shard, answers, CPU)
        run.begin(Parameters(strategy.start(method, 0)), 0)
        run_once(run, strategy, 1)
    found = {"peak": peak_bytes() - before, "estimate": total_bytes(costs)}
    return found | {"costs": {one.what: one.bytes for one in costs}}


def main() -> None:
    asked = {"strategy": "lpsfed", "part": "training", "method": {}} | json.loads(sys.argv[1])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(json.dumps(measure(asked, Path(folder))) + "\n")


if __name__ == "__main__":
    main()
