"""The vectorised devices of one user each: the product's strategies give the same numbers with the same settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from benchmarks.fedutr import devices, tables
from benchmarks.fedutr.methods import StatefulClients
from benchmarks.fedutr.sets import LeaveOneOut, rank_targets, split_leave_one_out
from benchmarks.fedutr.user_devices import FUSION, DeviceSettings, Samples, UserDevices, draw_samples
from client_service.training.training_state import RoundContext
from shared.method.parameters import State, Update
from shared.method.settings import method_settings
from shared.strategies import build_strategy
from simulation.datasets.dataset import Dataset

USERS, ITEMS, RECORDS, WIDTH, ROUNDS = 7, 240, 9, 5, 3
RATE, ITEM_RATE = 0.5, 20.0


def generate(users: int) -> Dataset:
    """Each user takes items of one of two kinds, of which titles tell."""
    generator = np.random.default_rng(3)
    rows = []
    for user in range(users):
        kind = np.flatnonzero(np.arange(ITEMS) % 2 == user % 2)
        for time, item in enumerate(generator.permutation(kind)[: RECORDS + user % 3]):
            rows.append((f"u{user:02d}", f"i{item:03d}", "train", time))
    events = pl.DataFrame(rows, ["user", "item", "split", "time"], orient="row")
    titles = pl.DataFrame({"item": [f"i{n:03d}" for n in range(ITEMS)], "title": ["war", "love"] * (ITEMS // 2)})
    return Dataset("generated", events, titles)


@pytest.fixture(scope="module")
def few() -> LeaveOneOut:
    return split_leave_one_out(generate(40), users=USERS, records=0, silos=0, seed=0)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pfedrec": ({"strategy.item_rate": ITEM_RATE / RATE}, {"tuned": True, "table_mean": "moved"}),
    "fedrap": (
        {"strategy.distance": 0.0, "strategy.sparsity": 0.0},
        {"item_rate": RATE, "table_mean": "moved", "intercept": False},
    ),
    "fedutr": (
        {"item_start": "random", "strategy.sparsity": 0.01},
        {"item_rate": RATE, "strength": 0.01, "intercept": False},
    ),
    "fedutr_sar": (
        {"item_start": "random", "strategy.sparsity": 0.0, "strategy.adaptation": False},
        {"item_rate": RATE, "sparsity_aware": True, "adaptation": False, "intercept": False},
    ),
}
"""Strategy -> what the product is told, and the same for the vectorised devices."""


@pytest.mark.parametrize("strategy", [*CASES])
def test_the_products_strategies_give_the_numbers_of_the_devices(few: LeaveOneOut, strategy: str) -> None:
    told, same = CASES[strategy]
    sizes = {"catalogue": len(few.whole.item_ids), "width": WIDTH, "batch_size": 64, "negatives": 6, "decay": 0.0}
    method = method_settings(optimiser="sgd", learning_rate=RATE, local_epochs=1, **sizes, **told)
    built = build_strategy(strategy, method)
    shards = few.make_shards()
    clients = StatefulClients(shards, method, built.model)
    trainers = list(clients.trainers.values())
    order = np.concatenate(few.silos)
    state = State(built.start(method, 5))

    settings = DeviceSettings(
        **{"strategy": strategy.removesuffix("_sar"), "width": WIDTH, "user_rate": RATE, "item_rate": ITEM_RATE}
        | {"balanced": True}
        | same
    )
    known = few.whole.train.toarray() > 0
    drawn: list[Samples] = []
    reference = UserDevices(few.whole.train, known, settings, 0, state.arrays["item.table"], draw=lambda: drawn[-1])
    reference.own["vector"] = trainers[0].model.encoder.embedding.detach().repeat(USERS, 1)
    if strategy == "fedrap":
        reference.personal_start = trainers[0].model.encoder.personal.detach().clone()  # type: ignore[union-attr]
    if strategy.startswith("fedutr"):
        reference.common = {name: torch.tensor(state.arrays[f"fusion.{name}"]) for name in FUSION}

    for number in range(1, ROUNDS + 1):
        context, updates, found = RoundContext(number, ROUNDS, 5), [], []
        for user, shard in zip(order, shards, strict=True):
            trainer = clients.visit(shard.name, context)
            (batch,) = trainer.batches.epoch(trainer.torch_generator("train"))  # type: ignore[attr-defined]
            taken, negatives = batch.items.numpy(), batch.negatives[~batch.excluded[0]].numpy()
            labels = np.repeat(np.array([1, 0], np.float32), [len(taken), len(negatives)])
            found.append(Samples(np.full(len(labels), user), np.concatenate([taken, negatives]), labels))
            sent = built.fit_round(trainer, built.personalise(state, None), {})
            updates.append(Update(shard.name, sent.arrays, sent.scalars))
        state = built.aggregate(state, updates)
        drawn.append(Samples(*(np.concatenate(one) for one in zip(*found, strict=True))))
        reference.run_round()
        np.testing.assert_allclose(reference.table.numpy(), state.arrays["item.table"], atol=2e-6)
        if strategy.startswith("fedutr"):
            for name in FUSION:
                np.testing.assert_allclose(reference.common[name], state.arrays[f"fusion.{name}"], atol=2e-6)
    for trainer in trainers:
        trainer.load(built.personalise(state, None))
    moved = np.abs(state.arrays["item.table"] - built.start(method, 5)["item.table"]).max()
    assert moved > 1e-2
    if strategy != "fedutr":  # whose silo ranks with the common fusion until its next training
        ours, theirs = reference.score_items(), clients.score_users(few)
        if strategy == "fedutr_sar":  # which leaves out what is the same for all items
            ours, theirs = ours - ours.mean(1, keepdims=True), theirs - theirs.mean(1, keepdims=True)
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_negatives_are_other_items_than_those_avoided(few: LeaveOneOut) -> None:
    avoided = few.whole.known_pairs.toarray() > 0
    drawn = draw_samples(few.whole.train, avoided, 4, np.random.default_rng(0))
    negative = drawn.labels == 0
    assert negative.sum() == 4 * few.whole.train.nnz
    assert not avoided[drawn.users[negative], drawn.items[negative]].any()
    assert few.whole.train[drawn.users[~negative], drawn.items[~negative]].min() == 1


def test_negatives_in_sight_of_held_out_items_give_those_away() -> None:
    """As in the public code of PFedRec and FedRAP: what is never a negative is what the test asks for."""
    found = split_leave_one_out(generate(40), users=0, records=0, silos=1, seed=0)
    base = DeviceSettings(
        strategy="fedrap", width=8, redraw=False, negatives=60, deviation=0.1, item_rate=500.0, user_rate=0.5
    )
    hits = {}
    for name in ("train", "all"):
        avoided = (found.whole.train if name == "train" else found.whole.known_pairs).toarray() > 0
        trained = UserDevices(found.whole.train, avoided, base, 0)
        for _ in range(30):
            trained.run_round()
        scores = trained.score_items()
        hits[name] = (rank_targets(found, scores, "test")["all"] <= 5).mean()
    assert hits["all"] > hits["train"] + 0.2


@pytest.mark.parametrize("name", list(devices.ROWS))
def test_every_row_trains(name: str) -> None:
    found = devices.DeviceExperiment.__new__(devices.DeviceExperiment)
    found.found = split_leave_one_out(generate(40), users=12, records=8, silos=1, seed=0)
    whole = found.found.whole
    found.known = {"train": whole.train.toarray() > 0, "all": whole.known_pairs.toarray() > 0}
    found.text = np.random.default_rng(0).normal(0.0, 0.1, (len(whole.item_ids), 8)).astype(np.float32)
    ranks = devices.run_row(found, devices.ROWS[name] | devices.CANDIDATES[0] | {"rounds": 2, "width": 8}, 0)
    assert all(np.isfinite(rank).all() and rank.min() >= 1 for rank in ranks.values())


def test_results_are_kept_and_judged_over_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "read_leave_one_out", lambda *_, **sizes: split_leave_one_out(generate(40), **sizes))
    out = tmp_path / "lines.jsonl"
    words = ["generated", "--records", "8", "--rounds", "2", "--every", "1", "--seeds", "0", "1", "--searched", "0"]
    rows = ["--rows", "popularity", "neighbours", "fedmf", "fedmf+text", "fedutr", "fedutr+noise.5", "fedutr+dp"]
    arguments = devices.parse_arguments([*words, "--out", str(out), *rows])
    devices.run_all(arguments)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sum(one["seed"] == -1 for one in lines) == 3 and len(lines) == 3 + 2 * 7
    devices.run_all(arguments)
    assert len(out.read_text().splitlines()) == len(lines)  # what is there is not run again
    given = ["--set", '{"item_rate": 1000, "user_rate": 0.1}', "--out", str(tmp_path / "given.jsonl")]
    devices.run_all(devices.parse_arguments([*words, *given, "--rows", "pfedrec+known"]))
    followed = [json.loads(line) for line in (tmp_path / "given.jsonl").read_text().splitlines()]
    assert [one["seed"] for one in followed] == [0, 1] and all(one["best"] in (1, 2) for one in followed)
    assert [one["epsilon"] for one in lines if one["row"] == "fedutr+dp"] == [8.0, 8.0]
    (cells,) = tables.read_device_cells(out).values()
    assert tables.judge_users(cells, "fedutr", "fedutr").startswith("no difference seen: +0.0000 +- 0.0000")
    rendered = "\n".join(tables.render_device_tables({("generated", 8): cells}))
    assert "| fedmf+text | 2 |" in rendered and "not measured" in rendered


def test_sizes_of_a_round_follow_from_what_strategies_declare() -> None:
    lines = tables.render_sizes()
    table, fused = 4 * 32 * 3260, 4 * (32 * 3260 + 32 * 32 + 3 * 32)
    ends = {line.split(" | ")[0].strip("| "): line.split(" | ")[-1].strip(" |") for line in lines if " | " in line}
    assert [ends[name] for name in ("fedmf", "pfedrec", "fedrap")] == [f"{table:,}"] * 3
    assert [ends[name] for name in ("fedutr", "fedutr_sar")] == [f"{fused:,}"] * 2
