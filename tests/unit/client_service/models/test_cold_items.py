"""Items that nobody has are ranked by features; what a basket needs is one row a basket item."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from client_service.compiled.cold_items import squared_distances
from client_service.models.closed_form.ease import ease
from client_service.models.closed_form.scorer_part import ItemWeights
from client_service.models.cold_items import (
    ColdSetting,
    carry_weights,
    choose_cold_setting,
    fit_cold_items,
    solve_smooth,
)
from client_service.models.hidden_items import hide_columns, hide_items, mean_gain
from shared.method.parameters import Float32

USERS, ITEMS, KINDS = 120, 90, 6


def make_silo(users: int = USERS, seed: int = 0) -> tuple[sparse.csr_array, Float32]:
    """Users who like one or two of six kinds of items, and features that tell the kind, with noise."""
    generator = np.random.default_rng(seed)
    kinds = np.arange(ITEMS) % KINDS
    taste = generator.dirichlet(np.full(KINDS, 0.2), users)
    interactions = sparse.csr_array((generator.random((users, ITEMS)) < 0.5 * taste[:, kinds]).astype(np.float64))
    features = np.eye(KINDS)[kinds] + 0.2 * generator.standard_normal((ITEMS, KINDS))
    return interactions, (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)


def test_hidden_items_are_ranked_above_chance_by_their_features_alone() -> None:
    interactions, features = make_silo()
    hidden = hide_items(interactions, np.random.default_rng(1))
    train = hide_columns(interactions, hidden)
    assert train[:, hidden].nnz == 0 and train.nnz == interactions.nnz - interactions[:, hidden].nnz
    wanted = interactions[:, hidden].toarray() > 0
    asked = np.flatnonzero(wanted.any(axis=1) & (np.diff(train.indptr) > 0))
    scorer = fit_cold_items(train, features, choose_cold_setting(train, features, 0))
    found = mean_gain(scorer.score(train[asked], features[hidden]), wanted[asked]).mean()
    chance = mean_gain(
        np.random.default_rng(2).random((len(asked), len(hidden)), dtype=np.float32), wanted[asked]
    ).mean()
    assert found > chance + 0.1


def test_a_score_is_the_sum_of_the_rows_of_a_basket_times_what_follows_from_the_text() -> None:
    interactions, features = make_silo()
    scorer = fit_cold_items(interactions, features, ColdSetting())
    new = features[:3] + np.float32(0.01)
    basket = sparse.csr_array(([1.0, 1.0], ([0, 0], [4, 7])), shape=(1, ITEMS))
    by_rows = (scorer.factors[4] + scorer.factors[7]) @ scorer.map.apply(new).T
    np.testing.assert_allclose(scorer.score(basket, new)[0], by_rows, rtol=1e-5)


def test_items_that_nobody_has_teach_nothing() -> None:
    interactions, features = make_silo()
    train = hide_columns(interactions, np.array([2, 5]))
    changed = features.copy()
    changed[[2, 5]] = changed[[5, 2]] * np.float32(-1.0)
    one, other = (fit_cold_items(train, some, ColdSetting()) for some in (features, changed))
    np.testing.assert_array_equal(one.factors, other.factors)
    assert not one.factors[[2, 5]].any()


@pytest.mark.parametrize("users", [40, 200])
def test_weights_kept_by_users_carry_the_same_scores(users: int) -> None:
    interactions, features = make_silo(users)
    kept, whole = ease(interactions, 100.0, by_users=True), ease(interactions, 100.0)
    assert isinstance(whole, ItemWeights) and (users > ITEMS or not isinstance(kept, ItemWeights))
    np.testing.assert_allclose(carry_weights(kept, features), whole.weights @ features, atol=1e-5)


def test_with_an_anchor_at_every_item_it_is_kernel_ridge_regression() -> None:
    _, features = make_silo()
    kernel = np.exp(-squared_distances(features, features) / 0.5).astype(np.float64)
    values = np.random.default_rng(0).standard_normal((ITEMS, 2)).astype(np.float32)
    found = solve_smooth(kernel.T @ kernel, kernel.astype(np.float32), 1.0, (kernel.T @ values).astype(np.float32))
    wanted = np.linalg.solve(kernel + np.eye(ITEMS), values)
    np.testing.assert_allclose(kernel @ found, kernel @ wanted, atol=0.02)


def test_gain_of_a_list_is_ndcg_at_ten() -> None:
    scores = np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]], dtype=np.float32)
    wanted = np.array([[True, False, True], [True, False, False]])
    ideal = 1.0 + 1.0 / np.log2(3.0)
    np.testing.assert_allclose(mean_gain(scores, wanted), [1.5 / ideal, 0.5])


def test_a_silo_that_cannot_hide_items_gets_the_usual_setting() -> None:
    interactions = sparse.csr_array(np.eye(3, ITEMS))
    _, features = make_silo()
    setting = choose_cold_setting(interactions, features, 0)
    assert (setting.reach, setting.smoothing) == (ColdSetting().reach, ColdSetting().smoothing)
    assert np.isfinite(fit_cold_items(interactions, features, setting).factors).all()
