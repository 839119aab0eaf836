"""Is a user whose items are known among those of the other silos? By the content sums less one's own part.

Who: a silo in the sum, or all but one together. With A of the others and a known list's sum of features p, somebody in
the sum has p^T A^+ p <= 1 and lies in the space of A. Of fewer users than columns the test never errs; of 2,000 it says
nothing. The page says so, and a silo is warned.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from client_service.models.closed_form.content import add_constant, sum_content
from client_service.sums.content import CONTENT_SILO_SUM
from shared.method.settings import method_settings

ITEMS, WIDTH, TRIED = 600, 64, 200


def area_under_curve(inside: np.ndarray, outside: np.ndarray) -> float:
    """How often somebody inside has the larger score."""
    both = inside[:, None] - outside[None]
    return float((both > 0).mean() + (both == 0).mean() / 2)


def tell_members(users: int, seed: int) -> float:
    """The area under the curve of the best known test, for members and for others of the same habits."""
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((ITEMS, WIDTH)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    tastes = generator.standard_normal((users + TRIED, 8)) @ generator.standard_normal((8, ITEMS)) / 3
    chance = 0.05 * np.exp(tastes) / np.exp(tastes).mean()
    baskets = sparse.csr_array((generator.random(tastes.shape) < chance).astype(float))
    table = add_constant(features)
    sums = sum_content(sparse.csr_array(baskets[:users]), table).profiles
    values, vectors = np.linalg.eigh(sums)
    kept = values > 1e-9 * values[-1]
    tried = np.asarray(baskets @ table)
    inside_space = (tried @ vectors[:, kept]) ** 2
    beyond = (tried**2).sum(1) - inside_space.sum(1)  # of a member: nothing
    leverage = (inside_space / values[kept]).sum(1)  # at most 1 of a member, and smaller than of others on average
    score = -leverage - 1e6 * (beyond > 1e-6 * (tried**2).sum(1))
    return area_under_curve(score[:users][:TRIED], score[users:])


@pytest.mark.parametrize(
    ("users", "least", "most"), [(20, 0.999, 1.0), (40, 0.999, 1.0), (400, 0.6, 0.75), (2000, 0.45, 0.6)]
)
def test_few_users_are_told_apart_for_sure_and_many_hardly(users: int, least: float, most: float) -> None:
    found = np.mean([tell_members(users, seed) for seed in range(3)])
    assert least <= found <= most, found


def test_a_silo_is_warned_of_it() -> None:
    (words,) = CONTENT_SILO_SUM.warnings(method_settings(**{"basis.kind": "content"}))
    assert "fewer users than columns" in words and "65 columns" in words
