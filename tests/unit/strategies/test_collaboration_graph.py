"""W of FedGSP: worked numbers, the projection, what floors do, and what must have no effect."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from shared.strategies.collaboration_graph import (
    GraphRule,
    advance_weights,
    begin_weights,
    carry_weights,
    find_laplacian,
    find_spreads,
    project_on_simplex,
    solve_weights,
    square_distances,
    weigh_columns,
)

LOW = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 3.0]])
HIGH = np.array([[0.0, 2.0], [1.0, 2.0], [3.0, 1.0]])
PAPER = GraphRule(weight_floor=0.0, gamma=0.5)
NEAR = {"rtol": 0, "atol": 1e-6}


def draw(seed: int, clients: int = 6, width: int = 9) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(clients, width)), generator.normal(size=(clients, width))


def test_a_step_of_three_clients_as_computed_by_hand() -> None:
    found = advance_weights(LOW, HIGH, begin_weights(3), PAPER)
    laplacian = find_laplacian(begin_weights(3))
    np.testing.assert_allclose(find_spreads(LOW, laplacian), [1.0, 7.0], **NEAR)
    np.testing.assert_allclose(find_spreads(HIGH, laplacian), [7.0, 1.0], **NEAR)
    np.testing.assert_allclose(found.low, [0.875, 0.125], **NEAR)
    np.testing.assert_allclose(found.high, [0.125, 0.875], **NEAR)
    np.testing.assert_allclose(found.distances[np.triu_indices(3, 1)], [0.765625, -0.765625, 0.0], **NEAR)
    expected = [[0.1171875, 0, 0.8828125], [0, 0.5, 0.5], [0.84375, 0.078125, 0.078125]]
    np.testing.assert_allclose(found.weights, expected, **NEAR)
    sharp = advance_weights(LOW, HIGH, begin_weights(3), replace(PAPER, gamma=0.05))
    np.testing.assert_allclose(sharp.weights, [[0, 0, 1], [0, 0.5, 0.5], [1, 0, 0]], **NEAR)


def test_the_projection_as_computed_by_hand_and_by_the_papers_multiplier() -> None:
    np.testing.assert_allclose(project_on_simplex(np.array([[0.0, 0.4, -0.6]])), [[0.3, 0.7, 0.0]], **NEAR)
    # Eq. 32: h = 1/M + mean(t) / (2 gamma) - t / (2 gamma), and w = max(h - b, 0) with b = .1.
    distances = np.array([0.0, -0.4, 0.6])
    h = 1 / 3 + distances.mean() - distances
    np.testing.assert_allclose(h, [0.4, 0.8, -0.2], **NEAR)
    np.testing.assert_allclose(np.maximum(h - 0.1, 0), [0.3, 0.7, 0.0], **NEAR)


def test_an_asymmetric_w_gives_the_papers_half_sum_once_it_is_symmetric() -> None:
    weights = np.array([[0.2, 0.8, 0.0], [0.1, 0.6, 0.3], [0.0, 0.5, 0.5]])
    column = np.array([[1.0], [0.0], [2.0]])
    half_sum = sum(weights[j, u] * (column[j, 0] - column[u, 0]) ** 2 for j in range(3) for u in range(3)) / 2
    assert half_sum == pytest.approx(2.05)
    np.testing.assert_allclose(find_spreads(column, find_laplacian(weights)), [2.05], **NEAR)
    of_itself = np.diag(weights.sum(axis=1)) - weights
    assert float(column[:, 0] @ of_itself @ column[:, 0]) == pytest.approx(2.8)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "rule",
    [
        GraphRule(),
        GraphRule(weight_floor=0.0),
        GraphRule(weight_floor=0.0, gamma=1.0),
        GraphRule(sharpness=0.01),
        GraphRule(least_own=0.4),
        GraphRule(least_own=1.0),
        GraphRule(uniform=True),
        GraphRule(terms="low"),
        GraphRule(terms="high", gamma=1e-9),
    ],
)
def test_rows_lie_on_the_simplex(seed: int, rule: GraphRule) -> None:
    low, high = draw(seed, clients=2 + seed, width=1 + seed * 7)
    scale = 10.0 ** (seed - 10)
    weights = begin_weights(len(low))
    for _ in range(3):
        weights = advance_weights(low * scale, high * scale, weights, rule).weights
        assert (weights >= 0).all()
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=0, atol=1e-12)
        assert (np.diag(weights) >= rule.least_own - 1e-12).all()


@pytest.mark.parametrize("seed", range(20))
def test_no_point_of_the_simplex_is_nearer_than_the_projection(seed: int) -> None:
    generator = np.random.default_rng(seed)
    point = generator.normal(size=(1, 5)) * 10.0 ** (seed % 7 - 3)
    found = project_on_simplex(point)
    others = generator.dirichlet(np.full(5, 0.3), size=2000)
    nearest = np.square(others - point).sum(axis=1).min()
    assert np.square(found - point).sum() <= nearest + 1e-12


def test_a_floor_on_the_diagonal_gives_the_nearest_point_that_keeps_it() -> None:
    distances = np.abs(np.random.default_rng(0).normal(size=(4, 4)))
    np.fill_diagonal(distances, 0.3)
    rule = GraphRule(least_own=0.5, gamma=0.1)
    found, wished = solve_weights(distances, rule), -distances / 0.2
    others = np.random.default_rng(1).dirichlet(np.ones(4), size=20_000)
    for row in range(4):
        allowed = others[others[:, row] >= 0.5]
        assert found[row, row] >= 0.5
        nearest = np.square(allowed - wished[row]).sum(axis=1).min()
        assert np.square(found[row] - wished[row]).sum() <= nearest + 1e-9


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_clients_has_no_effect(seed: int) -> None:
    low, high = draw(seed)
    order = np.random.default_rng(seed).permutation(len(low))
    found = advance_weights(low, high, begin_weights(len(low)), GraphRule())
    other = advance_weights(low[order], high[order], begin_weights(len(low)), GraphRule())
    np.testing.assert_allclose(other.weights, found.weights[np.ix_(order, order)], rtol=0, atol=1e-9)


def test_a_constant_column_changes_nothing_as_published() -> None:
    low, high = draw(3)
    wider = [np.hstack([side, np.full((len(side), 1), 0.1)]) for side in (low, high)]
    rule = GraphRule(weight_floor=0.0)
    found = advance_weights(low, high, begin_weights(6), rule)
    other = advance_weights(wider[0], wider[1], begin_weights(6), rule)
    np.testing.assert_allclose(other.distances, found.distances, rtol=1e-9)
    np.testing.assert_allclose(other.weights, found.weights, rtol=0, atol=1e-9)


def test_a_great_floor_weighs_all_columns_alike() -> None:
    spreads = np.array([0.0, 1e-9, 1.0, 5.0])
    np.testing.assert_allclose(weigh_columns(spreads, GraphRule(weight_floor=1e9)), 0.25)
    np.testing.assert_allclose(weigh_columns(spreads, GraphRule(uniform=True)), 0.25)


def test_the_size_of_signatures_has_no_effect_on_a_relative_sharpness() -> None:
    low, high = draw(4)
    found = advance_weights(low, high, begin_weights(6), GraphRule())
    other = advance_weights(10 * low, 10 * high, begin_weights(6), GraphRule())
    np.testing.assert_allclose(other.weights, found.weights, rtol=0, atol=1e-9)
    literal = GraphRule(gamma=1.0)
    assert not np.allclose(
        advance_weights(low, high, begin_weights(6), literal).weights,
        advance_weights(10 * low, 10 * high, begin_weights(6), literal).weights,
    )


def test_columns_that_hardly_differ_take_all_weight_as_published_and_not_with_a_floor() -> None:
    """Then W is 1 / M to many digits: the literal method on wide features is plain averaging."""
    low, high = draw(5, clients=10, width=1433)
    low[:, 0] *= 1e-4
    high[:, 0] *= 1e-4
    low, high = low / 100, high / 100
    literal = advance_weights(low, high, begin_weights(10), GraphRule(weight_floor=0.0, gamma=1.0))
    assert literal.effective_columns[0] < 1.01
    np.testing.assert_allclose(literal.weights, 0.1, rtol=0, atol=1e-6)
    floored = advance_weights(low, high, begin_weights(10), GraphRule())
    assert floored.effective_columns[0] > 900
    assert np.abs(floored.weights - 0.1).max() > 0.01


def test_clients_that_are_all_alike_get_the_plain_mean() -> None:
    same = np.ones((4, 3))
    for rule in (GraphRule(), GraphRule(weight_floor=0.0), GraphRule(uniform=True)):
        found = advance_weights(same, same, begin_weights(4), rule)
        np.testing.assert_allclose(found.weights, 0.25)
        assert found.effective_columns == (0.0, 0.0)


def test_one_client_alone_keeps_its_own() -> None:
    one = np.ones((1, 3))
    assert advance_weights(one, one, begin_weights(1), GraphRule()).weights.tolist() == [[1.0]]


def test_leavers_and_newcomers_keep_rows_on_the_simplex() -> None:
    weights = np.array([[0.0, 0.75, 0.25], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
    without = carry_weights(weights, ("ada", "bob", "cyd"), ("ada", "cyd"))
    np.testing.assert_allclose(without, [[0.0, 1.0], [1.0, 0.0]])  # cyd learnt from bob alone: it begins anew
    joined = carry_weights(weights, ("ada", "bob", "cyd"), ("ada", "bob", "cyd", "dan"))
    np.testing.assert_allclose(joined.sum(axis=1), 1.0)
    np.testing.assert_allclose(joined[0, 1] / joined[0, 2], 3.0)
    np.testing.assert_allclose(joined[3], [1 / 3, 1 / 3, 1 / 3, 0.0])
    np.testing.assert_allclose(carry_weights(weights, (), ("x", "y")), begin_weights(2))


def test_distances_by_products_are_those_of_differences() -> None:
    rows = np.random.default_rng(7).normal(size=(5, 11))
    expected = np.square(rows[:, None] - rows).sum(axis=2)
    np.testing.assert_allclose(square_distances(rows), expected, rtol=0, atol=1e-12)


def test_fifty_clients_with_cora_s_features_and_ten_orders_take_less_than_two_seconds() -> None:
    sides = [draw(order, clients=50, width=1433) for order in range(10)]
    begun = time.process_time()
    for low, high in sides:
        advance_weights(low, high, begin_weights(50), GraphRule())
    assert time.process_time() - begun < 2.0
