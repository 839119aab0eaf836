"""The best columns of a row: those of a full sort, however many there are."""

from __future__ import annotations

import numpy as np
import pytest

from client_service.compiled.top_items import inner_products, top_columns, top_of_row


@pytest.mark.parametrize("items", [3, 50, 159, 161, 1077, 5121, 30_011])
@pytest.mark.parametrize("k", [1, 20])
def test_they_are_those_of_a_full_sort(items: int, k: int) -> None:
    scores = np.random.default_rng(items).standard_normal((7, items)).astype(np.float32)
    scores[:, ::5] = -np.inf
    columns, best = top_columns(scores, k)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(best, np.take_along_axis(scores, order, 1))
    known = np.isfinite(best)
    np.testing.assert_array_equal(columns[known], order[known])


def test_the_best_may_all_stand_in_one_group_of_columns() -> None:
    scores = np.zeros((1, 32_000), dtype=np.float32)
    scores[0, ::1000] = np.arange(32) + 1.0
    columns, best = top_columns(scores, 20)
    assert columns[0].tolist() == [1000 * place for place in range(31, 11, -1)] and best[0, -1] == 13.0


def test_a_column_without_a_score_is_never_taken_for_one_with_a_score() -> None:
    scores = np.full((2, 6401), -np.inf, dtype=np.float32)
    scores[0, [0, 17]] = [1.0, 2.0]
    columns, best = top_columns(scores, 20)
    assert columns[0, :2].tolist() == [17, 0] and columns.max() < 6401
    assert best[0, :2].tolist() == [2.0, 1.0] and np.isneginf(best[0, 2:]).all() and np.isneginf(best[1]).all()


@pytest.mark.parametrize("items", [1, 3, 159, 161, 7001, 30_011])
@pytest.mark.parametrize("k", [0, 1, 20, 200, 9000])
def test_one_row_alone_gives_the_same(items: int, k: int) -> None:
    draws = np.random.default_rng(items)
    equal = np.round(draws.standard_normal(items), 1).astype(np.float32)
    for scores in (draws.standard_normal(items).astype(np.float32), equal, np.zeros(items, dtype=np.float32)):
        scores[::3] = -np.inf
        columns, best = top_of_row(scores, k)
        order = np.argsort(-scores, kind="stable")[:k]
        assert columns.tolist() == order.tolist() and best.tolist() == scores[order].tolist()


def test_of_equal_ones_a_row_has_the_same_whatever_the_others_are() -> None:
    scores = np.round(np.random.default_rng(0).standard_normal((40, 7000)), 1).astype(np.float32)
    together = top_columns(scores, 20)[0]
    for row in (0, 13, 39):
        np.testing.assert_array_equal(top_columns(scores[[row]], 20)[0][0], together[row])


@pytest.mark.parametrize("items", [160, 7001])
def test_a_list_begins_as_every_longer_one_does(items: int) -> None:
    """Of equal scores the first column comes first, also where the list is cut among them."""
    scores = np.round(np.random.default_rng(1).standard_normal((9, items)), 1).astype(np.float32)
    scores[:, ::7] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")
    for k in (1, 2, 20, 130):
        np.testing.assert_array_equal(top_columns(scores, k)[0], order[:, :k])


@pytest.mark.parametrize(("items", "width"), [(12, 4), (450, 12), (3000, 64), (20_000, 96)])
def test_scores_are_the_same_alone_and_among_others(items: int, width: int) -> None:
    """Up to the last bits, which some libraries round by a row's place."""
    generator = np.random.default_rng(2)
    users = generator.standard_normal((70, width)).astype(np.float32)
    rows = np.asfortranarray(generator.standard_normal((items, width)).astype(np.float32))
    together = inner_products(users, rows)
    for first, last in ((0, 1), (3, 4), (5, 22)):
        np.testing.assert_allclose(inner_products(users[first:last], rows), together[first:last], rtol=1e-4, atol=1e-4)
