"""The closed-form floors against their definitions, and their choice by validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.evaluation.ranking import measure_validation, rank_by_scores, sample_validation_users
from client_service.models.closed_form.ease import ease_scores
from client_service.models.initial_filter import Filter
from client_service.models.ranker import Rows
from client_service.training.filter_search import (
    EASE_RIDGES,
    LOW_PASS,
    best_ease,
    best_filter,
    best_low_pass,
    filter_top,
    popularity_top,
)
from shared.method.spectrum import low_spectrum


def ranking(scores: np.ndarray, seen: np.ndarray, k: int) -> list[list[int]]:
    """The k best unseen items of each row, by sorting everything."""
    return np.argsort(-np.where(seen > 0, -np.inf, scores), axis=1, kind="stable")[:, :k].tolist()


def everybody(shard: Shard) -> Rows:
    return np.arange(shard.train.shape[0])


@pytest.fixture
def connected(shard_of: Callable[..., Shard]) -> Shard:
    """One piece, 14 users and 18 items, so that no two items of a user score alike."""
    return shard_of(np.random.default_rng(1).random((14, 18)) < 0.4)


def test_the_ideal_low_pass_ranks_by_its_formula(connected: Shard) -> None:
    # r_u D_i^-1/2 V V^T D_i^1/2 with the nine lowest frequencies, from a dense decomposition.
    rows = connected.train.toarray()
    by_item = rows.sum(0)
    v = np.linalg.svd(rows / np.sqrt(np.outer(rows.sum(1), by_item)))[2][:9].T
    expected = (rows / np.sqrt(by_item)) @ v @ v.T * np.sqrt(by_item)
    top = filter_top(Filter(9, 0.0, 0.5), low_spectrum(connected.train, 12), connected.train)
    assert top(everybody(connected), connected.train, 6).tolist() == ranking(expected, rows, 6)


def test_the_ridge_filter_ranks_by_its_formula(connected: Shard) -> None:
    rows = connected.train.toarray()
    by_user, by_item = rows.sum(1), rows.sum(0)
    u, s, vt = np.linalg.svd(rows / np.sqrt(np.outer(by_user, by_item)))
    gain = s[:9] * s[:9] ** 2 / (s[:9] ** 2 + 0.4)
    expected = (u[:, :9] * gain) @ vt[:9] * by_item**0.3  # d_u^.3 does not change a user's order
    top = filter_top(Filter(9, 0.4, 0.3), low_spectrum(connected.train, 12), connected.train)
    assert top(everybody(connected), connected.train, 6).tolist() == ranking(expected, rows, 6)


def test_popularity_gives_everybody_the_items_with_most_training_edges(shard_of: Callable[..., Shard]) -> None:
    # Item degrees 1, 3, 2, 0: items 1, 2, 0, 3 in this order.
    shard = shard_of([[1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0]])
    nothing = sparse.csr_array(shard.train.shape)
    assert popularity_top(shard)(everybody(shard), nothing, 4).tolist() == [[1, 2, 0, 3]] * 3
    assert popularity_top(shard)(everybody(shard)[:1], shard.train[:1], 4).tolist() == [[2, 3, -1, -1]]


def test_of_equally_popular_items_the_first_by_id_comes_first_however_the_rows_lie() -> None:
    rng = np.random.default_rng(0)
    ids = tuple(f"item-{number:03d}" for number in range(60))
    train = sparse.csr_array((rng.random((9, 60)) < 0.3).astype(float))
    by_item = train.toarray().sum(0)
    expected = sorted(ids, key=lambda one: (-by_item[ids.index(one)], one))[:20]
    assert len({*by_item.tolist()}) < 10  # many ties
    for turn in (np.arange(60), rng.permutation(60)):
        nothing = sparse.csr_array(train.shape)
        shard = build_shard_from_matrices(
            "east", "abcdefghi", [ids[row] for row in turn], [train[:, turn], nothing, nothing]
        )
        lists = popularity_top(shard)(everybody(shard), nothing, 20)
        assert [[shard.item_ids[row] for row in rows] for rows in lists] == [expected] * 9


def test_ease_has_the_ridge_that_validation_prefers(planted: Shard) -> None:
    found = best_ease(planted)
    assert found is not None
    users = sample_validation_users(planted.train.shape[0], seed=0)
    judged = {
        ridge: measure_validation(planted, rank_by_scores(ease_scores(planted.train, ridge)), users).primary_value
        for ridge in EASE_RIDGES
    }
    assert judged[found.choice] == max(judged.values()) == found.validation.primary_value


def test_ease_is_left_out_where_its_matrix_would_not_fit(planted: Shard) -> None:
    side = min(planted.train.shape)
    assert best_ease(planted, side - 1) is None and best_ease(planted, side) is not None


def test_the_low_pass_floor_is_the_candidate_that_validation_prefers(planted: Shard) -> None:
    spectrum = low_spectrum(planted.train, 39)
    judged = {
        chosen: measure_validation(
            planted, filter_top(chosen, spectrum, planted.train), everybody(planted)
        ).primary_value
        for chosen in LOW_PASS
    }
    assert len({judged[LOW_PASS[0]], judged[LOW_PASS[1]]}) == 2
    found = best_low_pass(planted, spectrum)
    assert found.validation.primary_value == max(judged.values()) == judged[found.choice]


def test_the_starting_filter_is_as_good_on_validation_as_any_of_its_last_step(planted: Shard) -> None:
    spectrum = low_spectrum(planted.train, 39)
    found = best_filter(planted, spectrum)
    for exponent in (0.1, 0.3, 0.5):
        other = Filter(found.choice.cutoff, found.choice.ridge, exponent)
        quality = measure_validation(planted, filter_top(other, spectrum, planted.train), everybody(planted))
        assert quality.primary_value <= found.validation.primary_value
    assert found.validation.users == 40 and found.choice.cutoff <= 39


def test_the_starting_filter_is_an_ideal_low_pass_one_where_validation_prefers_it() -> None:
    """80 users who like 6 of 90 items, mostly of their own sixth: of this draw no ridge is as good as none."""
    generator, items = np.random.default_rng(3), np.arange(90)
    parts = np.zeros((2, 80, 90))
    for user in range(80):
        chances = (items + 1) ** -0.5 * np.where(items % 6 == user % 6, 8, 1)
        liked = generator.permutation(generator.choice(items, 6, replace=False, p=chances / chances.sum()))
        parts[0, user, liked[:4]] = parts[1, user, liked[4]] = 1.0
    train, valid = (sparse.csr_array(part[:, parts[0].sum(0) > 0]) for part in parts)
    ids = [f"u{row:02d}" for row in range(80)], [f"i{item:02d}" for item in range(train.shape[1])]
    shard = build_shard_from_matrices("shop", *ids, (train, valid, sparse.csr_array(train.shape)))
    spectrum = low_spectrum(train, 64)
    found, low = best_filter(shard, spectrum), best_low_pass(shard, spectrum)
    assert found == replace(low, top=found.top) and found.choice.ridge == 0.0


def test_test_items_have_no_say_in_any_choice(planted: Shard, shard_of: Callable[..., Shard]) -> None:
    other = shard_of(planted.train.toarray(), planted.valid.toarray(), planted.test.toarray()[::-1])
    spectrum = low_spectrum(planted.train, 39)
    assert best_filter(planted, spectrum).choice == best_filter(other, spectrum).choice
    assert best_low_pass(planted, spectrum).validation == best_low_pass(other, spectrum).validation


def test_validation_items_do(planted: Shard, shard_of: Callable[..., Shard]) -> None:
    other = shard_of(planted.train.toarray(), planted.valid.toarray()[::-1], planted.test.toarray())
    spectrum = low_spectrum(planted.train, 39)
    assert best_low_pass(planted, spectrum).validation != best_low_pass(other, spectrum).validation
