"""Recall@20 and NDCG@20 by hand, and which users and items take part."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import sparse

import client_service.evaluation.ranking
from client_service.data.interactions import Shard
from client_service.evaluation.metrics import K, ndcg, recall
from client_service.evaluation.ranking import (
    evaluate,
    measure_test,
    measure_validation,
    rank_by_scores,
    sample_validation_users,
)
from client_service.models.ranker import Rows

HITS = np.array([[True, False, True], [False, False, False], [True, True, True]])


def matrix(rows: list[list[int]], items: int) -> sparse.csr_array:
    """0/1 rows from lists of item numbers."""
    dense = np.zeros((len(rows), items))
    for row, chosen in enumerate(rows):
        dense[row, chosen] = 1.0
    return sparse.csr_array(dense)


def fixed(lists: list[list[int]]) -> Callable[[Rows, sparse.csr_array, int], Rows]:
    """A recommender that always gives these lists."""
    return lambda users, _seen, k: np.array([lists[user][:k] for user in users])


def test_recall_is_hits_over_relevant_items() -> None:
    assert recall(HITS, np.array([4, 1, 3])).tolist() == [2 / 4, 0.0, 1.0]


def test_ndcg_discounts_by_the_logarithm_of_the_rank() -> None:
    # Hits at ranks 1 and 3 of two relevant items: (1 + 1/log2 4) / (1 + 1/log2 3) = 1.5 / 1.6309.
    found = ndcg(HITS, np.array([2, 1, 3]))
    assert found.tolist() == pytest.approx([1.5 / (1 + 1 / math.log2(3)), 0.0, 1.0])


def test_twenty_hits_of_twenty_five_are_ideal_by_ndcg_and_four_fifths_by_recall() -> None:
    top, target = fixed([list(range(20))]), matrix([list(range(25))], 30)
    found = evaluate(top, target, matrix([[]], 30))
    assert K == 20 and (found.values["recall"], found.values["ndcg"], found.users) == (0.8, pytest.approx(1.0), 1)


def test_quality_is_the_mean_over_users_who_have_something_held_out() -> None:
    # User 0: its one item at rank 2: recall 1, ndcg 1/log2 3. User 1 has none. User 2: one of two, at rank 1:
    # recall 1/2, ndcg 1 / (1 + 1/log2 3). User 3: its item is not in the list at all.
    lists = [[4, 0, 1], [0, 1, 2], [3, 0, 1], [1, 2, -1]]
    target = matrix([[0], [], [3, 2], [0]], 5)
    found = evaluate(fixed(lists), target, matrix([[], [], [], []], 5))
    third = 1 / math.log2(3)
    assert found.users == 3
    assert (found.values["recall"], found.values["ndcg"]) == pytest.approx(
        ((1 + 0.5 + 0) / 3, (third + 1 / (1 + third) + 0) / 3)
    )


def test_the_place_where_a_list_ends_is_no_hit() -> None:
    # -1 is not the last item, and not the first item of the next user.
    found = evaluate(fixed([[-1, -1], [-1, -1]]), matrix([[4], [0]], 5), matrix([[], []], 5))
    assert (found.values["recall"], found.users) == (0.0, 2)


def test_only_the_users_asked_for_count() -> None:
    lists, target = [[0], [1], [1]], matrix([[0], [0], []], 2)
    seen = matrix([[], [], []], 2)
    assert evaluate(fixed(lists), target, seen, np.array([1, 2])).values["recall"] == 0.0
    assert evaluate(fixed(lists), target, seen, np.array([0, 2])).values["recall"] == 1.0


def test_nobody_to_ask_is_zero_of_zero_users() -> None:
    found = evaluate(fixed([[0]]), matrix([[]], 2), matrix([[]], 2))
    assert (found.values["recall"], found.values["ndcg"], found.users) == (0.0, 0.0, 0)


def test_users_are_taken_in_chunks_without_losing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []

    def top(users: Rows, seen: sparse.csr_array, _k: int) -> Rows:
        asked.append(users.tolist())
        assert seen.toarray()[:, 0].tolist() == [float(user % 2) for user in users]
        return np.array([[user] for user in users])

    monkeypatch.setattr(client_service.evaluation.ranking, "CHUNK", 2)
    seen = matrix([[0] if user % 2 else [] for user in range(5)], 5)
    assert evaluate(top, matrix([[0], [1], [2], [3], [0]], 5), seen).values["recall"] == 4 / 5
    assert sorted(asked) == [[0, 1], [2, 3], [4]]  # by several threads, in any order


def test_lists_are_ranked_by_score_without_what_was_seen() -> None:
    scores = np.array([[0.1, 0.9, 0.5, 0.7], [4.0, 3.0, 2.0, 1.0]])
    top = rank_by_scores(lambda rows: scores[rows])
    seen = matrix([[1], [0, 3]], 4)
    assert top(np.array([0, 1]), seen, 2).tolist() == [[3, 2], [1, 2]]
    assert top(np.array([1]), seen[[1]], 2).tolist() == [[1, 2]]


def test_a_list_with_too_few_candidates_ends_in_minus_one() -> None:
    top = rank_by_scores(lambda rows: np.tile([3.0, 2.0, 1.0], (len(rows), 1)))
    assert top(np.array([0]), matrix([[0]], 3), 20).tolist() == [[1, 2] + [-1] * 18]


def test_the_scores_themselves_are_not_changed() -> None:
    scores = np.array([[1.0, 2.0]], dtype=np.float32)
    rank_by_scores(lambda _: scores)(np.array([0]), matrix([[1]], 2), 1)
    assert scores.tolist() == [[1.0, 2.0]]


def test_validation_leaves_out_training_items_and_testing_validation_items_too(
    shard_of: Callable[..., Shard],
) -> None:
    shard = shard_of([[1, 0, 0, 0]], [[0, 1, 0, 0]], [[0, 0, 0, 1]])
    seen: list[list[float]] = []

    def top(users: Rows, excluded: sparse.csr_array, _k: int) -> Rows:
        seen.append(excluded.toarray()[0].tolist())
        return np.array([[1, 3]] * len(users))

    assert measure_validation(shard, top, np.array([0])).values["ndcg"] == 1.0
    assert measure_test(shard, top).values["ndcg"] == pytest.approx(1 / math.log2(3))
    assert seen == [[1, 0, 0, 0], [1, 1, 0, 0]]


def test_validation_asks_the_same_users_every_time_and_at_most_two_thousand() -> None:
    assert sample_validation_users(30, 0).tolist() == list(range(30))
    drawn = sample_validation_users(5000, 3)
    assert len(set(drawn.tolist())) == 2000 and drawn.tolist() == sorted(sample_validation_users(5000, 3).tolist())
    assert drawn.tolist() != sample_validation_users(5000, 4).tolist()
