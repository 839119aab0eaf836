"""What is fused with the trained score: the arithmetic, and the choice by validation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.learning.evaluate import on_validation
from client_service.learning.filters import best_filter
from client_service.learning.fusing import (
    USUAL_EASE_RIDGE,
    USUAL_RIDGE,
    USUAL_SHARE,
    USUAL_WEIGHTING,
    best_recipe,
    fused_top,
    usual_share,
)
from client_service.learning.interrupt import NEVER
from client_service.learning.judging import Judge
from client_service.learning.local import LocalTraining
from client_service.models.ease import ease
from client_service.models.fusion import Fusion, Recipe, fuse, standardise
from client_service.models.least_squares import Weighting
from client_service.models.start import Filter
from client_service.serving.recommender import Limits, Recommender, freeze
from client_service.shard import Shard
from client_service.shard.shard import shard_of_matrices
from shared.method.parameters import Float32
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum

SMALL = MethodSettings(width=4, layers=1, cutoff=12, negatives=4)
WEIGHTING = Weighting((4,), 0.3, 0.01)


class Says:
    """A scorer with an opinion of its own."""

    def __init__(self, row: list[float]) -> None:
        self.row = np.array([row], dtype=np.float32)

    def encode(self, baskets: sparse.csr_array) -> sparse.csr_array:
        return baskets

    def decode(self, codes: sparse.csr_array) -> Float32:
        return np.repeat(self.row, codes.shape[0], axis=0)


def test_a_part_is_as_loud_as_the_base_times_its_loudness() -> None:
    # base 0, 2, 4: deviation sqrt(8/3); the part 10, 10, 40 standardised: -1/sqrt 2, -1/sqrt 2, sqrt 2
    base = np.array([[0.0, 2.0, 4.0]], dtype=np.float32)
    fusion = Fusion(((0.5, Says([10.0, 10.0, 40.0])),))
    found = fusion.added(base, fusion.encoded(sparse.csr_array((1, 3))))
    unit = 0.5 * np.sqrt(8 / 3)
    assert np.allclose(found, [[-unit / np.sqrt(2), 2 - unit / np.sqrt(2), 4 + unit * np.sqrt(2)]])


def test_a_part_without_an_opinion_adds_nothing() -> None:
    base = np.array([[0.0, 2.0, 4.0]], dtype=np.float32)
    fusion = Fusion(((1.0, Says([3.0, 3.0, 3.0])),))
    assert np.array_equal(fusion.added(base, fusion.encoded(sparse.csr_array((1, 3)))), base)
    assert np.array_equal(standardise(np.full((2, 3), 7.0, dtype=np.float32)), np.zeros((2, 3)))


def test_a_silent_recipe_is_no_fusion(planted: Shard) -> None:
    spectrum = low_spectrum(planted.train, 12)
    assert fuse(None, planted.train, spectrum) == fuse(Recipe(3.0, 0.0, WEIGHTING, 0.0), planted.train, spectrum)
    assert len(fuse(Recipe(3.0, 1.0, WEIGHTING, 0.5), planted.train, spectrum).parts) == 2


def test_training_begins_with_the_recipe_that_validation_prefers(planted: Shard) -> None:
    spectrum = low_spectrum(planted.train, 12)
    chosen = best_filter(planted, spectrum)
    training = LocalTraining(planted, spectrum, SMALL, torch.device("cpu"), chosen.choice)
    assert training.recipe == best_recipe(planted, spectrum, chosen.choice)


@pytest.mark.parametrize("changes", [{"fusion": False}, {"start": "random"}])
def test_without_fusion_or_without_a_start_the_trained_score_ranks_alone(
    planted: Shard, changes: dict[str, object]
) -> None:
    method = SMALL.model_copy(update=changes)
    training = LocalTraining(planted, low_spectrum(planted.train, 12), method, torch.device("cpu"))
    assert training.recipe is None and training.fusion.parts == ()


def test_a_stranger_with_a_user_s_basket_is_served_by_the_fused_score_like_the_user(planted: Shard) -> None:
    loud = Recipe(3.0, 20.0, WEIGHTING, 10.0)
    training = LocalTraining(planted, low_spectrum(planted.train, 12), SMALL, torch.device("cpu"), recipe=loud)
    recommender = Recommender(planted)
    recommender.served = freeze("run-1.0", training)
    own = planted.train[[3]].indices
    user = recommender.for_user("u3", Limits(5, exclude_seen=False))
    stranger = recommender.for_basket([f"i{item}" for item in own], Limits(5, exclude_seen=False))
    assert [item.item for item in user.items] == [item.item for item in stranger.items]


def repeated(shard: Shard, times: int, judged: int) -> Shard:
    """The users so many times, of whom the first `judged` have a validation item."""
    train, valid, test = (
        sparse.csr_array(sparse.vstack([part] * times)) for part in (shard.train, shard.valid, shard.test)
    )
    count = train.shape[0]
    valid = sparse.csr_array(sparse.diags_array((np.arange(count) < judged).astype(float)) @ valid)
    valid.eliminate_zeros()
    return shard_of_matrices("shop", [f"u{row:04d}" for row in range(count)], shard.item_ids, (train, valid, test))


@pytest.mark.parametrize(("judged", "share"), [(0, 0.0), (10, 10 / 110), (50, 50 / 150), (1000, 1000 / 1100)])
def test_weights_are_equal_as_far_as_there_are_few_validation_users(
    planted: Shard, judged: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = repeated(planted, max(2, judged // 40), judged)
    judge = Judge(shard, NEVER)
    assert judge.count == judged
    spectrum = low_spectrum(shard.train, 12)
    monkeypatch.setattr("client_service.learning.fusing._best_weights", lambda *_: {"base": 1.0})
    monkeypatch.setattr("client_service.learning.fusing._no_worse_than_one", lambda _judge, _parts, weights: weights)
    recipe = best_recipe(shard, spectrum, Filter(8, 0.4, 0.3))
    others = (1 - share) / 4  # of each of the three parts beside the base score
    expected = others / (share + others)
    for loudness in (recipe.filter_loudness, recipe.squares_loudness, recipe.ease_loudness):
        assert loudness == pytest.approx(expected)


def test_without_validation_users_every_setting_is_the_usual_one(planted: Shard) -> None:
    shard = repeated(planted, 2, 0)
    recipe = best_recipe(shard, low_spectrum(shard.train, 12), Filter(8, 0.4, 0.3))
    assert (recipe.ridge, recipe.weighting, recipe.ease_ridge) == (USUAL_RIDGE, USUAL_WEIGHTING, USUAL_EASE_RIDGE)


@pytest.mark.parametrize(("listed", "expected"), [(1.0, USUAL_SHARE), (0.0, 1.0), (0.5, None)])
def test_the_common_parts_count_as_far_as_a_silo_s_items_are_in_common(
    planted: Shard, listed: float, expected: float | None
) -> None:
    items = len(planted.item_ids)
    places = np.where(np.arange(items) < listed * items, np.arange(items), -1)
    share = usual_share(replace(planted, places=places))
    if expected is not None:
        assert share == pytest.approx(expected)
    assert USUAL_SHARE <= share <= 1.0
    assert usual_share(replace(planted, places=None)) == USUAL_SHARE


def test_a_large_silo_is_never_served_what_validation_says_is_worse_than_one_part(planted: Shard) -> None:
    shard = repeated(planted, 6, 240)
    spectrum = low_spectrum(shard.train, 12)
    chosen = best_filter(shard, spectrum)
    fused = on_validation(shard, fused_top(shard, spectrum, chosen.choice), np.arange(240))
    assert fused.primary_value >= chosen.validation.primary_value - 1e-6
    judge = Judge(shard, NEVER)
    usual = judge.quality(judge.scored(ease(shard.train, USUAL_EASE_RIDGE)))
    assert fused.primary_value >= usual - 1e-6


def test_a_user_of_whom_the_base_path_knows_nothing_is_ranked_by_the_others() -> None:
    fusion = Fusion(((0.5, Says([1.0, 2.0, 3.0])),))
    found = fusion.added(np.zeros((1, 3), np.float32), fusion.encoded(sparse.csr_array((1, 3))))
    assert np.argsort(-found[0]).tolist() == [2, 1, 0]
