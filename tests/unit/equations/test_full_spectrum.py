"""The full-spectrum filter against its definition by dense decompositions, and where it leaves the ridge filter."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import client_service.models.closed_form.full_spectrum
from client_service.models.closed_form.full_spectrum import FullSpectrum
from client_service.models.score_fusion import standard_scores
from tests.support.full_spectrum import filter_of_ridge, quarter_spectrum

RNG = np.random.default_rng(3)
GRAPH = sparse.csr_array((RNG.random((30, 22)) < 0.25).astype(np.float64))


def by_definition(ridge: float, components: int) -> np.ndarray:
    """x D^-1/4 W D^1/4 / (1 - diag W) with W = V diag(h - c s^2) V^T + c R^T R and a zero diagonal."""
    rows = GRAPH.toarray()
    by_user, by_item = np.maximum(rows.sum(1), 1), np.maximum(rows.sum(0), 1)
    r = rows / (by_user[:, None] * by_item) ** 0.25
    _, s, vt = np.linalg.svd(r)
    s2, v = s[:components] ** 2, vt[:components].T
    level = ridge * (r**2).sum(0).mean()
    slope = 1 / (level + s2[-1] / 2)
    w = (v * (s2 / (s2 + level) - slope * s2)) @ v.T + slope * r.T @ r
    own = np.diag(w).copy()
    np.fill_diagonal(w, 0.0)
    return (rows / by_item**0.25) @ w * by_item**0.25 / (1 - own)


def test_no_item_of_a_basket_speaks_for_itself(found: FullSpectrum) -> None:
    scores = standard_scores(found, GRAPH.astype(np.float32))
    assert np.allclose(scores, by_definition(3.0, 8), rtol=1e-4, atol=1e-5)  # seen items included


def unseen(scores: np.ndarray) -> np.ndarray:
    return np.where(GRAPH.toarray() > 0, 0.0, scores)


@pytest.fixture(params=["dense", "sparse"])
def found(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FullSpectrum:
    """The same filter, with the item-item matrix and without."""
    monkeypatch.setattr(client_service.models.closed_form.full_spectrum, "COMPONENTS", 8)
    if request.param == "sparse":
        monkeypatch.setattr(client_service.models.closed_form.full_spectrum, "DENSE_ITEMS", 0)
    return filter_of_ridge(GRAPH, quarter_spectrum(GRAPH), 3.0)


def test_it_scores_by_its_formula(found: FullSpectrum) -> None:
    scores = standard_scores(found, GRAPH.astype(np.float32))
    assert np.allclose(unseen(scores), unseen(by_definition(3.0, 8)), rtol=1e-4, atol=1e-5)


def test_with_every_frequency_it_is_the_normalised_linear_autoencoder() -> None:
    # EASE: B = I - P diag(P)^-1, P = (R^T R + lambda I)^-1; W / (1 - diag W) is B off the diagonal (Woodbury).
    rows = GRAPH.toarray()
    by_user, by_item = np.maximum(rows.sum(1), 1), np.maximum(rows.sum(0), 1)
    r = rows / (by_user[:, None] * by_item) ** 0.25
    gram = r.T @ r
    inverse = np.linalg.inv(gram + 3.0 * np.diag(gram).mean() * np.eye(22))
    b = -inverse / np.diag(inverse)
    np.fill_diagonal(b, 0.0)
    expected = (rows / by_item**0.25) @ b * by_item**0.25
    scores = standard_scores(filter_of_ridge(GRAPH, quarter_spectrum(GRAPH), 3.0), GRAPH.astype(np.float32))
    # 21 of 22 frequencies are exact, and the last is the highest: nearly nothing is left to the line.
    assert np.allclose(unseen(scores), unseen(expected), rtol=0.02, atol=0.02)


def test_items_that_are_linked_only_above_the_cut_still_speak_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_service.models.closed_form.full_spectrum, "COMPONENTS", 1)
    rows = np.zeros((12, 7))
    rows[:8, :4] = 1.0  # the lowest frequencies are this block's
    rows[8:, 4:6] = 1.0  # a small community of its own, far above
    basket = sparse.csr_array(np.eye(7, dtype=np.float32)[[4]])
    graph = sparse.csr_array(rows)
    scores = standard_scores(filter_of_ridge(graph, quarter_spectrum(graph), 3.0), basket)[0]
    assert scores[5] > 0.1 > 1e-6 > abs(scores[:4]).max()
    assert scores[6] == 0.0  # an item that nobody has
