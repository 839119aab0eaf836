"""What is compiled of cold items scores them nearly as the scorer itself, in far fewer numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import sparse

from client_service.compilation.cold_items import compress_factors, find_cold_items
from client_service.data.interactions import build_shard_from_matrices
from client_service.models.closed_form.scorer_part import ItemWeights
from client_service.models.cold_items import ColdSetting, fit_cold_items
from client_service.text.projection import unit_rows

USERS, ITEMS, WIDE = 200, 300, 16


def test_compressed_factors_score_as_the_scorer_does() -> None:
    generator = np.random.default_rng(3)
    features = unit_rows(generator.standard_normal((ITEMS, WIDE)).astype(np.float32))
    likes = features @ generator.standard_normal((WIDE, USERS)) > 1.0
    train = sparse.csr_array(likes.T.astype(np.float64))
    scorer = fit_cold_items(train, features, ColdSetting())
    left, narrow = compress_factors(scorer.factors, scorer.map.apply(features), 64)
    assert left.shape == (ITEMS, 64) and narrow.shape[1] == 64 < scorer.factors.shape[1]
    new = unit_rows(generator.standard_normal((40, WIDE)).astype(np.float32))
    exact = scorer.score(train, new)
    found = np.asarray(train.astype(np.float32) @ left) @ (scorer.map.apply(new) @ narrow).T
    likeness = [np.corrcoef(one, other)[0, 1] for one, other in zip(exact, found, strict=True) if one.std() > 0]
    assert np.mean(likeness) > 0.99


def test_an_item_that_nobody_has_stays_cold_where_its_scores_differ_by_rounding_alone() -> None:
    """The scores by all silos' sums of an item that nobody has are 0, but for rounding."""
    train = sparse.csr_array(np.eye(4, 6))
    shard = build_shard_from_matrices("shop", "abcd", "uvwxyz", [train] * 3)
    weights = np.ones((6, 6), np.float32) + np.eye(6, dtype=np.float32)
    weights[:, 4:] = np.arange(1, 7, dtype=np.float32)[:, None] * np.float32(1e-15)
    served: Any = SimpleNamespace(ranker=SimpleNamespace(fusion=SimpleNamespace(parts=[(1.0, ItemWeights(weights))])))
    assert find_cold_items(served, shard).tolist() == [False] * 4 + [True] * 2
    weights[:, 5] = np.arange(6)
    assert find_cold_items(served, shard).tolist() == [False] * 4 + [True, False]
