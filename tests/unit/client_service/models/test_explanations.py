"""What a user's items contribute to a score sums to the part of the score that is explained, exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.compilation.shard import compile_in_memory
from client_service.data.interactions import Shard
from client_service.event_log.messages import ItemIn
from client_service.event_log.overlay import Overlay
from client_service.model_store.model_files import freeze
from client_service.models.closed_form import full_spectrum
from client_service.models.closed_form.ease import UserWeights, ease, ease_weights
from client_service.models.closed_form.frequency import item_frequency
from client_service.models.closed_form.full_spectrum import FullSpectrum
from client_service.models.closed_form.least_squares import Weighting, least_squares
from client_service.models.ranker import BasketSum, Ranker, contributions
from client_service.models.score_fusion import ChosenPart, Fusion, Recipe, select_codes, standard_scores
from client_service.serving.messages import MOST_REASONS, ItemOut, RecommendationsOut
from client_service.serving.ranking import ListRequest
from client_service.serving.recommender import Recommender
from client_service.sums.scorers import _narrow_filter
from client_service.training.item_trainer import ItemTrainer
from shared.method.graph import Float64
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from tests.support.compiled import TrainedRecommender
from tests.support.full_spectrum import filter_of_ridge, quarter_spectrum

SMALL = MethodSettings(width=4, layers=1, cutoff=12, negatives=4)
WEIGHTING = Weighting((4, 8), 0.3, 0.01)
RECIPE = Recipe(
    (
        ChosenPart("filter", 3.0, 1.0),
        ChosenPart("squares", WEIGHTING, 0.5),
        ChosenPart("ease", 50.0, 2.0),
        ChosenPart("frequency", 0.0, 0.25),
    )
)


def narrow(train: sparse.csr_array) -> FullSpectrum:
    """As of an iterated common basis: nothing above its frequencies."""
    spectrum = quarter_spectrum(train)
    degrees: Float64 = np.asarray(train.sum(axis=0)).ravel()
    return _narrow_filter(spectrum.singular**2, spectrum.items, degrees, 0.25)


def few_users(train: sparse.csr_array) -> UserWeights:
    return UserWeights(*_kernel(train))


def _kernel(train: sparse.csr_array) -> tuple[Any, ...]:
    binary = train.astype(np.float32)
    dense = binary.toarray()
    inverse = np.linalg.inv(dense @ dense.T + 20.0 * np.eye(len(dense))).astype(np.float32)
    scale = 1.0 / (1.0 - np.einsum("ui,uv,vi->i", dense, inverse, dense))
    return inverse, binary, sparse.csr_array(binary.T), scale.astype(np.float32)


PARTS = {
    "ease by items": lambda train: ease(train, 20.0),
    "ease by users": few_users,
    "filter": lambda train: filter_of_ridge(train, quarter_spectrum(train), 3.0),
    "narrow filter": narrow,
    "least squares": lambda train: least_squares(train, low_spectrum(train, 12), WEIGHTING),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("size", [1, 3, 12])
def test_contributions_sum_to_the_part_s_scores(planted: Shard, name: str, size: int) -> None:
    part = PARTS[name](planted.train)
    assert isinstance(part, BasketSum)
    basket = np.sort(np.random.default_rng(size).permutation(40)[:size])
    row = np.zeros((1, 40), dtype=np.float32)
    row[0, basket] = 1.0
    scores = standard_scores(part, sparse.csr_array(row))[0]
    columns = np.array([7, 3, *basket.tolist(), 39])
    found = part.contributions(basket, columns)
    assert found.shape == (size, len(columns))
    np.testing.assert_allclose(found.sum(axis=0), scores[columns], rtol=2e-3, atol=2e-5)


def test_a_filter_without_the_whole_matrix_contributes_what_the_matrix_does(
    planted: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    basket, columns = np.array([1, 4, 22]), np.array([4, 9, 30])
    whole = PARTS["filter"](planted.train).contributions(basket, columns)
    monkeypatch.setattr(full_spectrum, "DENSE_ITEMS", 1)
    thin = PARTS["filter"](planted.train)
    assert thin.weights is None
    np.testing.assert_allclose(thin.contributions(basket, columns), whole, rtol=1e-3, atol=1e-6)


def test_ease_by_users_contributes_the_weights_of_items(planted: Shard) -> None:
    basket, columns = np.array([1, 4, 22]), np.array([4, 9, 30])
    expected = ease_weights(planted.train.astype(np.float32), 20.0)[np.ix_(basket, columns)]
    np.testing.assert_allclose(few_users(planted.train).contributions(basket, columns), expected, rtol=1e-3, atol=1e-6)


def fused(shard: Shard, recipe: Recipe | None = RECIPE, **changes: Any) -> Recommender:
    method = SMALL.model_copy(update=changes)
    training = ItemTrainer(shard, low_spectrum(shard.train, 12), method, torch.device("cpu"), recipe=recipe)
    found = TrainedRecommender(shard)
    found.served = freeze("run-1.0", training)
    return found


def ranker_of(recommender: Recommender) -> Ranker:
    assert recommender.served is not None
    return recommender.served.ranker


def test_contributions_sum_to_what_the_closed_forms_add_to_the_fused_score(planted: Shard) -> None:
    ranker, rows = ranker_of(fused(planted)), np.array([3])
    user, basket, columns = ranker.users[rows], planted.train[[3]].indices.astype(np.int64), np.arange(40)
    found = contributions(ranker, user, basket, columns)
    assert found is not None and len(ranker.fusion.parts) == 4
    linear = [place for place, (_, part) in enumerate(ranker.fusion.parts) if isinstance(part, BasketSum)]
    assert len(linear) == 3  # all but the frequencies
    parts = Fusion(tuple(ranker.fusion.parts[place] for place in linear))
    codes = select_codes(tuple(ranker.users.codes[place] for place in linear), rows)
    base = user.embedding @ ranker.items.embedding.T
    added = parts.add_to(base.copy(), codes) - base
    # Standardising moves all items of a user alike.
    moved = added[0] - found.sum(axis=0)
    np.testing.assert_allclose(moved, np.full(40, moved.mean()), atol=1e-4)
    assert np.ptp(found.sum(axis=0)) > 0.1


def explained(answer: RecommendationsOut) -> list[ItemOut]:
    return [one for one in answer.items if one.because is not None]


def test_each_item_of_a_list_is_explained_by_at_most_three_of_the_user_s_own(planted: Shard) -> None:
    recommender = fused(planted)
    answer = recommender.for_user("u3", ListRequest(2, explain=True))
    own = {planted.item_ids[row] for row in planted.train[[3]].indices}
    assert len(explained(answer)) == 2
    for one in answer.items:
        assert one.because and one.explained is not None and len(one.because) <= MOST_REASONS
        values = [reason.contribution for reason in one.because]
        assert values == sorted(values, reverse=True) and {reason.item for reason in one.because} <= own
    held_out = [planted.item_ids[row] for part in (planted.valid, planted.test) for row in part[[3]].indices]
    basket = recommender.for_basket(sorted(own), recommender.limits(2, exclude=held_out, explain=True))
    for one, other in zip(answer.items, basket.items, strict=True):
        assert one.item == other.item and one.because and other.because
        assert [reason.item for reason in one.because] == [reason.item for reason in other.because]
    plain = recommender.for_user("u3", ListRequest(2))
    assert explained(plain) == [] and [one.item for one in plain.items] == [one.item for one in answer.items]


def test_the_largest_contribution_comes_first(planted: Shard) -> None:
    recommender = fused(planted)
    basket, model = planted.train[[3]].indices.astype(np.int64), recommender.model
    (first,) = recommender.for_user("u3", ListRequest(1, explain=True)).items
    row = planted.item_row(first.item)
    assert row is not None and first.because and model is not None
    found = model.contributions(basket, np.array([row]))
    assert first.explained == pytest.approx(float(found.sum()), rel=1e-5)
    assert first.because[0].item == planted.item_ids[basket[found[:, 0].argmax()]]


def test_an_item_is_no_reason_for_itself_and_a_hidden_one_is_none(planted: Shard) -> None:
    recommender = fused(planted)
    for one in recommender.for_user("u3", ListRequest(40, exclude_seen=False, explain=True)).items:
        assert one.because is not None and one.item not in [reason.item for reason in one.because]
    overlay = Overlay(compile_in_memory(planted))
    other = TrainedRecommender(planted, overlay)
    other.served = recommender.served
    (first,) = other.for_user("u3", ListRequest(1, explain=True)).items
    assert first.because
    overlay.update_items(1, {first.because[0].item: ItemIn(hidden=True)})
    (again,) = other.for_user("u3", ListRequest(1, explain=True)).items
    assert again.because and again.because[0].item != first.because[0].item


def test_without_a_closed_form_and_for_popular_items_there_are_no_reasons(planted: Shard) -> None:
    alone = fused(planted, None, fusion=False)
    assert explained(alone.for_user("u3", ListRequest(5, explain=True))) == []
    assert explained(fused(planted).for_user("nobody", ListRequest(5, explain=True))) == []
    frequent = replace(ranker_of(alone), fusion=Fusion(((1.0, item_frequency(planted.train)),)))
    user = replace(frequent.users[np.array([3])], codes=(np.empty((1, 0), dtype=np.float32),))
    assert contributions(frequent, user, np.array([1]), np.array([2])) is None
