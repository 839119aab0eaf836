"""EASE: what it solves, and that both sides of the graph give the same scores."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from client_service.models.closed_form.ease import BLOCK, ease_scores, ease_weights

X = np.array([[1.0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 1, 1], [1, 1, 0, 1], [0, 0, 1, 1]])
RIDGE = 2.0


def drawn(users: int, items: int) -> sparse.csr_array:
    """Edges with probability .02, and one user and one item that have none."""
    dense = np.random.default_rng(0).random((users, items)) < 0.02
    dense[1], dense[:, 2] = False, False
    return sparse.csr_array(dense.astype(np.float32))


def by_its_formula(train: sparse.csr_array, ridge: float) -> np.ndarray:
    """X B with B = I - P diag(P)^-1 in double precision."""
    x = train.toarray().astype(np.float64)
    inverse = np.linalg.inv(x.T @ x + ridge * np.eye(x.shape[1]))
    return x @ (np.eye(x.shape[1]) - inverse / np.diag(inverse))


def test_a_column_is_the_ridge_regression_of_its_item_on_the_others() -> None:
    expected = np.zeros((4, 4))
    for j in range(4):
        others = [i for i in range(4) if i != j]
        a = X[:, others]
        expected[others, j] = np.linalg.solve(a.T @ a + RIDGE * np.eye(3), a.T @ X[:, j])
    weights = ease_weights(sparse.csr_array(X.astype(np.float32)), RIDGE)
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    assert np.diag(weights).tolist() == [0.0] * 4


def test_no_change_of_a_weight_off_the_diagonal_lowers_the_objective() -> None:
    weights = ease_weights(sparse.csr_array(X.astype(np.float32)), RIDGE).astype(np.float64)

    def objective(b: np.ndarray) -> float:
        return float(((X - X @ b) ** 2).sum() + RIDGE * (b**2).sum())

    best = objective(weights)
    for i, j in zip(*np.nonzero(1 - np.eye(4)), strict=True):
        for change in (-0.01, 0.01):
            moved = weights.copy()
            moved[i, j] += change
            assert objective(moved) > best


@pytest.mark.parametrize("shape", [(90, 60), (60, 90), (BLOCK + 50, 2 * BLOCK + 70), (2 * BLOCK + 70, BLOCK + 50)])
@pytest.mark.parametrize("ridge", [1.0, 100.0])
def test_the_scores_are_those_of_the_formula_on_whichever_side_is_smaller(shape: tuple[int, int], ridge: float) -> None:
    train = drawn(*shape)
    rows = np.array([3, 0, 1, shape[0] - 1])
    np.testing.assert_allclose(ease_scores(train, ridge)(rows), by_its_formula(train, ridge)[rows], atol=2e-5)


def test_a_ridge_that_leaves_it_indefinite_is_refused() -> None:
    with pytest.raises(np.linalg.LinAlgError, match="expected a ridge that makes the matrix definite, got -5"):
        ease_scores(drawn(90, 60), -5.0)
