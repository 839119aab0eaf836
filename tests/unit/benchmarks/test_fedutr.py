"""FedUTR's tables: the split, the two protocols, a small run of every row, and verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks.fedutr import run, tables
from benchmarks.fedutr.methods import ROWS, make_fusion_scorer, score_by_ease, score_by_popularity, train_rounds
from benchmarks.fedutr.sets import LeaveOneOut, judge_scores, measure_ranks, split_leave_one_out
from simulation.datasets.dataset import Dataset

USERS, ITEMS, RECORDS = 60, 120, 12
SIZES = {"width": 8, "batch_size": 64, "learning_rate": 0.03}


@pytest.fixture(scope="module")
def generated() -> Dataset:
    """Each user takes items of one of three kinds, in an order that times tell; titles tell the kind."""
    generator = np.random.default_rng(0)
    rows = []
    for user in range(USERS):
        kind = np.flatnonzero(np.arange(ITEMS) % 3 == user % 3)
        for time, item in enumerate(generator.permutation(kind)[:RECORDS]):
            rows.append((f"u{user:02d}", f"i{item:03d}", "train", time))
    events = pl.DataFrame(rows, ["user", "item", "split", "time"], orient="row")
    words = ("war", "love", "space")
    titles = pl.DataFrame({"item": [f"i{n:03d}" for n in range(ITEMS)], "title": [words[n % 3] for n in range(ITEMS)]})
    return Dataset("generated", events, titles)


@pytest.fixture(scope="module")
def found(generated: Dataset) -> LeaveOneOut:
    return split_leave_one_out(generated, users=0, records=8, silos=3, seed=0)


def test_the_last_record_is_the_tests_and_the_one_before_it_the_validations(
    generated: Dataset, found: LeaveOneOut
) -> None:
    whole = found.whole
    assert [whole.train.nnz, whole.valid.nnz, whole.test.nnz] == [6 * USERS, USERS, USERS]
    last = generated.events.sort("user", "time").group_by("user", maintain_order=True).last()["item"].to_list()
    assert [whole.item_ids[item] for item in whole.test.indices] == last
    assert sorted(np.concatenate(found.silos)) == list(range(USERS))
    known = whole.known_pairs.toarray() > 0
    assert not np.take_along_axis(known, found.candidates, 1).any()


def test_ranks_by_hand(found: LeaveOneOut) -> None:
    assert measure_ranks(np.array([3.0]), "all") == {"hr10_all": 1.0, "ndcg10_all": 0.5}
    assert measure_ranks(np.array([11.0]), "all") == {"hr10_all": 0.0, "ndcg10_all": 0.0}
    scores = found.whole.test.toarray().astype(np.float32) + 2 * found.whole.train.toarray().astype(np.float32)
    assert set(judge_scores(found, scores, "test").values()) == {1.0}  # what a user has met stands in nobody's way
    equal = judge_scores(found, np.zeros_like(scores), "test")
    assert equal["hr10_all"] == 0.0 and equal["hr10_99"] == 0.0


@pytest.mark.parametrize("name", [*ROWS])
def test_every_row_trains(found: LeaveOneOut, name: str) -> None:
    strategy, changes = ROWS[name]
    judged = list(train_rounds(found, strategy, SIZES | changes, 2, 0))
    assert [one.number for one in judged] == [1, 2]
    assert all(0.0 <= value <= 1.0 for one in judged for value in (*one.valid.values(), *one.test.values()))


def test_text_tells_the_kind_before_anything_else_does(found: LeaveOneOut) -> None:
    plain, text = (
        max(one.test["hr10_all"] for one in train_rounds(found, "fedmf", SIZES | ROWS[name][1], 8, 0))
        for name in ("fedmf", "fedmf+text")
    )
    by_popularity = judge_scores(found, score_by_popularity(found), "test")["hr10_all"]
    assert text > plain and text > by_popularity


def test_rows_without_rounds_score_every_pair(found: LeaveOneOut) -> None:
    for make in (score_by_popularity, score_by_ease, make_fusion_scorer([found.whole])):
        assert make(found).shape == (USERS, ITEMS)
    assert judge_scores(found, score_by_ease(found), "test")["hr10_all"] > 2 * 10 / ITEMS


def test_one_user_a_client_trains(generated: Dataset) -> None:
    few = split_leave_one_out(generated, users=5, records=8, silos=0, seed=0)
    assert [len(rows) for rows in few.silos] == [1] * 5
    assert len(list(train_rounds(few, "pfedrec", SIZES, 2, 0, sample=2))) == 2


def test_verdicts_and_tables(tmp_path: Path) -> None:
    rows = [("fedutr", 0.1), ("fedmf", 0.2), ("fedutr_sar", 0.1)]
    path = tmp_path / "results.jsonl"
    sizes = {"data": "generated", "users": 0, "records": 8, "silos": 3}
    with path.open("w") as file:
        for name, value in rows:
            for seed in (0, 1, 2):
                test = dict.fromkeys(tables.FIGURES, value + 0.001 * seed * (name == "fedmf"))
                file.write(json.dumps({**sizes, "row": name, "seed": seed, "test": test}) + "\n")
    cells = tables.read_cells(path)
    judged = {pair: tables.judge_claim(next(iter(cells.values())), *pair) for pair in tables.CLAIMS.values()}
    assert judged["fedutr", "fedmf"].startswith("does not hold: -0.1010")
    assert judged["fedutr_sar", "fedutr"].startswith("no difference seen")
    assert judged["fedutr", "ease"] == "not measured"
    assert "| fedmf | 3 | 0.2010 |" in "\n".join(tables.render_tables(cells))


def test_rates_are_chosen_by_validation(found: LeaveOneOut, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RATES", ({"learning_rate": 1e-6}, {"learning_rate": 0.03}))
    base = {"width": 8, "batch_size": 64}
    assert run.choose_rates(found, "fedmf+text", base, rounds=6, sample=0) == {"learning_rate": 0.03}
