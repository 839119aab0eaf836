"""What is fused with the trained score: the arithmetic, and the choice by validation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.learning.evaluate import on_validation
from client_service.learning.filters import best_filter
from client_service.learning.fusing import best_recipe
from client_service.learning.local import LocalTraining
from client_service.models.fusion import Fusion, Recipe, fuse, standardise
from client_service.models.least_squares import Weighting
from client_service.serving.recommender import Limits, Recommender, freeze
from client_service.shard import Shard
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


def test_the_recipe_is_never_worse_on_validation_than_the_filter_alone(planted: Shard) -> None:
    spectrum = low_spectrum(planted.train, 12)
    chosen = best_filter(planted, spectrum)
    training = LocalTraining(planted, spectrum, SMALL, torch.device("cpu"), chosen.choice)
    everybody = np.arange(40)
    fused = on_validation(planted, freeze("run-1.0", training).ranker.top, everybody)
    assert training.recipe == best_recipe(planted, spectrum, chosen.choice)
    assert fused.primary_value >= on_validation(planted, chosen.top, everybody).primary_value


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
