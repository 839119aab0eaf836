"""The weighted least squares: each side is the minimiser of its objective, and strangers are served like users."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, sparse

import client_service.models.closed_form.least_squares
from client_service.models.closed_form.least_squares import Weighting, least_squares
from client_service.models.score_fusion import standard_scores
from shared.method.spectrum import low_spectrum

RNG = np.random.default_rng(5)
GRAPH = sparse.csr_array((RNG.random((25, 18)) < 0.3).astype(np.float64))
WEIGHTING = Weighting((4,), 0.2, 0.05)


def objective(w: np.ndarray, items: np.ndarray, row: np.ndarray) -> float:
    """sum_known (1 - wv)^2 + alpha sum_all (wv)^2 + lambda (n + alpha N) |w|^2."""
    scores = items @ w
    strength = WEIGHTING.ridge * (row.sum() + WEIGHTING.absent * len(row))
    return float((row * (1 - scores) ** 2).sum() + WEIGHTING.absent * (scores**2).sum() + strength * (w**2).sum())


def test_a_basket_s_scores_are_those_of_the_vector_that_explains_it_best() -> None:
    found = least_squares(GRAPH, low_spectrum(GRAPH, 8), WEIGHTING)
    items = found.items.astype(np.float64)
    scores = standard_scores(found, GRAPH.astype(np.float32))
    for user in (0, 7, 24):
        row = GRAPH.toarray()[user]
        best = optimize.minimize(objective, np.zeros(4), args=(items, row), tol=1e-12).x
        assert np.allclose(scores[user], items @ best, atol=1e-4)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = least_squares(GRAPH, low_spectrum(GRAPH, 8), WEIGHTING)
    monkeypatch.setattr(client_service.models.closed_form.least_squares, "BLOCK", 7 * 16)
    cut = least_squares(GRAPH, low_spectrum(GRAPH, 8), WEIGHTING)
    assert np.allclose(whole.items, cut.items, atol=1e-6)


def test_a_short_spectrum_shortens_the_vectors() -> None:
    found = least_squares(GRAPH, low_spectrum(GRAPH, 3), Weighting((2, 16, 64), 0.2, 0.05))
    assert found.ranks == (2, 3) and found.items.shape == (18, 5)


def test_ranks_are_averaged() -> None:
    spectrum, baskets = low_spectrum(GRAPH, 8), GRAPH.astype(np.float32)
    both = standard_scores(least_squares(GRAPH, spectrum, Weighting((2, 5), 0.2, 0.05)), baskets)
    alone = [standard_scores(least_squares(GRAPH, spectrum, Weighting((rank,), 0.2, 0.05)), baskets) for rank in (2, 5)]
    assert np.allclose(both, np.mean(alone, axis=0), atol=1e-6)


def test_an_empty_basket_scores_nothing() -> None:
    found = least_squares(GRAPH, low_spectrum(GRAPH, 8), WEIGHTING)
    assert standard_scores(found, sparse.csr_array((1, 18), dtype=np.float32))[0] == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("rank", [2, 8, 40])
def test_it_solves_each_row_s_own_equations_however_many_entries_it_has(rank: int) -> None:
    """Few entries against d: by as many equations; more: by d. Both give (alpha V^T V + V_u^T V_u + strength) w."""
    drawn = np.random.default_rng(9)
    other = drawn.standard_normal((90, rank)).astype(np.float32)
    rows = (drawn.random((60, 90)) < np.linspace(0.0, 0.9, 60)[:, None]).astype(np.float32)
    turned = client_service.models.closed_form.least_squares._diagonalise(other, WEIGHTING.absent)
    found = client_service.models.closed_form.least_squares._solve(turned, sparse.csr_array(rows), WEIGHTING)
    wide = other.astype(np.float64)
    for row, vector in zip(rows, found, strict=True):
        strength = WEIGHTING.ridge * (row.sum() + WEIGHTING.absent * len(row))
        matrix = (wide.T * (row + WEIGHTING.absent)) @ wide + strength * np.eye(rank)
        np.testing.assert_allclose(vector, np.linalg.solve(matrix, wide.T @ row), rtol=2e-4, atol=2e-5)
