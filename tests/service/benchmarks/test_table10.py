"""The feedback loop: what users prefer and accept, and how alike they become, against small cases by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks.common import paper_figures
from benchmarks.harness.plan import run_own_table
from benchmarks.table10.run import (
    Users,
    _make_recommenders,
    accept_items,
    check,
    find_most_similar,
    jaccard_index,
    observe_users,
    render,
    run_loop,
)
from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.evaluation.ranking import K, rank_by_scores


def matrix(rows: list[list[int]]) -> sparse.csr_array:
    found = sparse.csr_array(np.array(rows, dtype=np.float64))
    found.sort_indices()
    return found


def shard_of(train: list[list[int]], valid: list[list[int]], test: list[list[int]]) -> Shard:
    users, items = (tuple(str(one) for one in range(size)) for size in np.shape(train))
    return build_shard_from_matrices("client-1", users, items, (matrix(train), matrix(valid), matrix(test)))


@pytest.fixture
def shard() -> Shard:
    """Items 0 and 1 have the same users, item 2 none in common with them. Both users hold out item 1."""
    train = [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    nothing = [[0, 0, 0]] * 3
    return shard_of(train, [[0, 1, 0], [0, 0, 0], [0, 0, 0]], nothing)


def test_preferences_are_certain_for_held_out_items_and_cosines_for_the_rest(shard: Shard) -> None:
    assert observe_users(shard).preference == pytest.approx(np.array([[1.0, 1.0, 0.0], [0, 0, 0], [0, 0, 0]]))


def test_a_popular_item_is_not_preferred_for_being_popular() -> None:
    """Item 0 has both users of item 2 among four: cosine 2 / sqrt(4 * 2). Item 1 has one of one: 1 / sqrt(2)."""
    train = [[1, 1, 1], [1, 0, 1], [1, 0, 0], [1, 0, 0]]
    nothing = [[0, 0, 0]] * 4
    held_out = [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]]
    found = observe_users(shard_of(train, nothing, held_out)).preference[3]
    assert found == pytest.approx([2 / np.sqrt(8), 1 / np.sqrt(2), 1.0])


def test_the_partner_is_the_most_alike_other_user() -> None:
    preference = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 2.0], [0.3, 0.7]])
    assert find_most_similar(preference).tolist() == [1, 0, 3, 2]


def test_the_index_is_what_two_users_share_over_what_either_has() -> None:
    graph = matrix([[1, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]])
    assert jaccard_index(graph, np.array([1, 0, 2])) == pytest.approx([1 / 4, 1 / 4, 0.0])


def test_an_item_is_accepted_by_preference_and_place_and_padding_never_is() -> None:
    lists = np.tile(np.array([2, 0, 1, -1]), (20_000, 1))
    preference = np.tile(np.array([0.8, 0.0, 1.0]), (20_000, 1))
    users, items = accept_items(lists, preference, np.random.default_rng(0))
    shares = np.bincount(items, minlength=3) / 20_000
    assert shares == pytest.approx([0.8 / np.log2(3), 0.0, 1.0], abs=0.01)
    assert len(users) == len(items) and len(np.unique(users * 3 + items)) == len(users)


def test_the_graph_grows_by_what_is_accepted_and_nobody_is_shown_an_item_twice() -> None:
    rng = np.random.default_rng(1)
    train = (rng.random((30, 60)) < 0.1).astype(int)
    train[:, 0] = 1
    shard = shard_of(train.tolist(), np.zeros((30, 60), int).tolist(), np.zeros((30, 60), int).tolist())
    seen: list[sparse.csr_array] = []

    def recommend(now: Shard, iteration: int) -> Any:
        seen.append(now.train)
        scores = np.random.default_rng(iteration).random((30, 60))
        return rank_by_scores(lambda rows: scores[rows])

    certain = Users(np.ones((30, 60)), np.roll(np.arange(30), 1))
    rows = run_loop(shard, certain, recommend, iterations=3, seed=0)
    sizes = [graph.nnz for graph in seen]
    assert sizes == pytest.approx([train.sum() + 30 * sum(row["taken"] for row in rows[: n + 1]) for n in range(3)])
    assert sizes[0] < sizes[1] < sizes[2] and all(graph.data.max() == 1.0 for graph in seen)
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3] and rows[0]["taken"] == rows[0]["items"] == 0
    assert all(0 < row["items"] <= 60 and row["taken"] <= K for row in rows[1:])


def test_the_margin_changes_what_is_recommended() -> None:
    rng = np.random.default_rng(2)
    train = (rng.random((40, 30)) < np.linspace(0.6, 0.1, 30)).astype(int)
    train[:, 0] = 1
    shard = shard_of(train.tolist(), np.eye(40, 30, 1, dtype=int).tolist(), np.zeros((40, 30), int).tolist())
    method = {"width": 8, "layers": 1, "cutoff": 8, "batch_size": 256, "fusion": False, "learning_rate": 0.02}
    config = {"method": method, "strengths": [0.0, 1.0]}
    found = _make_recommenders(config, shard, seed=0)
    assert list(found) == ["gamma 0.0", "gamma 1.0", "popularity", "random"]
    none = sparse.csr_array((40, 30))
    with threadpool_limits(1):
        lists = {name: make(shard, 1)(np.arange(40), none, K) for name, make in found.items()}
        again = _make_recommenders(config, shard, seed=0)
        same = [(make(shard, 1)(np.arange(40), none, K) == lists[name]).all() for name, make in again.items()]
    assert (lists["gamma 0.0"] != lists["gamma 1.0"]).any() and all(same)


def test_the_quick_run_passes_its_own_check(tmp_path: Path) -> None:
    rows = run_own_table("table10", quick=True, data=None, out=tmp_path)
    assert check(rows) == [] and list(tmp_path.iterdir()) == []
    assert len({row["jaccard"] for row in rows if row["iteration"] == 0}) == 1  # all begin at the same graph
    shown = render(rows)
    assert "| iteration | 0 | 1 | 2 | 3 | accepted a user | items in lists |" in shown and "paper" not in shown
    still = [row | {"taken": 0.0} if row["recommender"] == "gamma 1.0" else row for row in rows]
    assert check(still) == ["gamma 1.0: expected something to be accepted, got nothing"]
    alike = [row | {"jaccard": 0.5} for row in rows]
    assert check(alike) == ["seed 0: expected popular items to make users more alike, got 0.5000"]


def test_the_paper_s_own_table_stands_beneath_ours() -> None:
    assert [len(row) for row in paper_figures("table10", "ml-1m").values()] == [5] * 5
    row = {"data": "ml-1m", "recommender": "random", "seed": 0, "iteration": 0, "jaccard": 0.1, "taken": 0, "items": 0}
    shown = render([row | {"iteration": iteration, "taken": 0.4 * (iteration > 0)} for iteration in range(6)])
    assert "| random | 0.1000 | 0.1000 | 0.1000 | 0.1000 | 0.1000 | 0.1000 | 2.0000 | 0 |" in shown
    assert "| paper | 20 | 40 | 60 | 80 | 100 |" in shown and "| gamma 1.0 | 0.0474 |" in shown
