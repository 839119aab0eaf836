"""What every closed-form scorer of the registry must hold, and that one line makes a further one a part of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from client_service.data.interactions import Shard
from client_service.models.closed_form.edlae import EDLAE, RIDGE, edlae_by_users, edlae_from_pairs
from client_service.models.closed_form.registry import PARTS, ClosedFormScorers, score_sums
from client_service.models.closed_form.rp3beta import RP3BETA, make_rp3beta
from client_service.models.closed_form.scorer_part import ItemWeights, ScorerPart, SummedPairs, TrainingGraph
from client_service.models.initial_filter import Filter
from client_service.models.score_fusion import build_fusion, standard_scores
from client_service.sums.basis import CommonBasis
from client_service.sums.scorers import PairsOfAll, common_scorers
from client_service.training.fusion_search import best_recipe
from shared.method.parameters import Float32
from shared.method.spectrum import low_spectrum


def cosine(pairs: Float32) -> ItemWeights:
    size = np.sqrt(np.maximum(np.diag(pairs), 1.0))
    return ItemWeights((pairs / size / size[:, None]).astype(np.float32))


def of_graph(graph: TrainingGraph, power: float) -> ItemWeights:
    return ItemWeights(cosine(graph.pairs).weights ** np.float32(power))


def from_sums(pairs: SummedPairs) -> ItemWeights:
    return cosine(pairs.counts)


COSINE = ScorerPart("cosine", 0.5, lambda _: (1.0, 2.0), 1.0, of_graph, from_sums=from_sums)


@pytest.mark.parametrize("name", PARTS)
def test_a_scorer_gives_a_number_for_each_item_and_says_its_usual_setting(planted: Shard, name: str) -> None:
    features = np.random.default_rng(1).standard_normal((40, 5)).astype(np.float32)
    part, made = PARTS[name], ClosedFormScorers(planted.train, low_spectrum(planted.train, 12), features)
    settings = part.settings(made.graph)
    assert part.name == name and part.usual in (*settings, None)
    baskets = planted.train[[3, 5]].astype(np.float32)
    scores = [standard_scores(made.make(name, setting), baskets) for setting in settings]
    assert all(one.shape == (2, 40) and np.isfinite(one).all() for one in scores)
    for one, other in zip(scores, made.make_each(name, settings), strict=True):
        np.testing.assert_allclose(standard_scores(other, baskets), one, rtol=1e-4, atol=1e-6)


def test_the_scorers_of_sums_serve_a_silo_by_its_part_of_the_catalogue(planted: Shard) -> None:
    pairs = PairsOfAll((planted.train.T @ planted.train).toarray().astype(np.float32))
    places = np.random.default_rng(0).permutation(40)[:25]
    baskets = sparse.csr_array(planted.train[[3, 5]].astype(np.float32)[:, places])
    whole = sparse.csr_array((2, 40), dtype=np.float32).tolil()
    whole[:, places] = baskets.toarray()
    for one in score_sums(pairs):
        scores = standard_scores(one.select_items(places), baskets)
        assert np.isfinite(scores).all()
        if isinstance(one, ItemWeights):
            np.testing.assert_allclose(scores, standard_scores(one, whole.tocsr())[:, places], rtol=1e-5, atol=1e-6)


def test_a_line_in_the_registry_makes_a_scorer_a_part_of_the_fusion_and_of_the_sums(
    planted: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    spectrum, start = low_spectrum(planted.train, 12), Filter(8, 0.4, 0.3)
    counts = (planted.train.T @ planted.train).toarray().astype(np.float32)
    basis = CommonBasis("exact", 0.25, np.diag(counts).astype(np.int64), pairs=counts)
    before = best_recipe(planted, spectrum, start), len(common_scorers(basis, np.arange(40), planted.train))
    monkeypatch.setitem(PARTS, "cosine", COSINE)
    recipe = best_recipe(planted, spectrum, start)
    assert {one.name for one in recipe.parts} == {one.name for one in before[0].parts} | {"cosine"}
    assert recipe.setting("cosine") in (1.0, 2.0) and recipe.loudness("cosine") > 0
    assert len(build_fusion(recipe, planted.train, spectrum).parts) == sum(one.loudness > 0 for one in recipe.parts)
    other = CommonBasis("exact", 0.25, basis.degrees, pairs=counts + np.float32(1.0))  # another: scorers are kept
    assert len(common_scorers(other, np.arange(40), planted.train)) == before[1] + 1


def test_a_scorer_without_a_usual_weight_costs_nothing_unless_validation_wants_it(
    planted: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    spectrum, start = low_spectrum(planted.train, 12), Filter(8, 0.4, 0.3)

    def nothing(graph: TrainingGraph, _: float) -> ItemWeights:
        return ItemWeights(np.zeros_like(graph.pairs))

    monkeypatch.setitem(PARTS, "cosine", replace(COSINE, weight=0.0, make=nothing))
    recipe = best_recipe(planted, spectrum, start)
    assert recipe.loudness("cosine") == 0.0
    monkeypatch.delitem(PARTS, "cosine")
    assert [one for one in recipe.parts if one.name != "cosine"] == list(best_recipe(planted, spectrum, start).parts)


def test_edlae_is_the_least_squares_of_baskets_with_items_left_out_by_either_side(planted: Shard) -> None:
    """Column by column: the ridge regression of an item on all others, its ridge growing with their frequency."""
    train = planted.train
    found = edlae_from_pairs((train.T @ train).toarray().astype(np.float32), 0.4)
    dense = train.toarray().astype(float)
    strength = 0.4 / 0.6 * dense.sum(0) + RIDGE
    for item in (0, 7, 39):
        others = np.arange(40) != item
        of_others = dense[:, others]
        expected = np.linalg.solve(of_others.T @ of_others + np.diag(strength[others]), of_others.T @ dense[:, item])
        np.testing.assert_allclose(found[others, item], expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(edlae_by_users(train, 0.4), found, rtol=1e-3, atol=1e-5)


def test_rp3beta_walks_from_item_to_user_to_item_and_damps_what_is_popular(shard_of: Callable[..., Shard]) -> None:
    train = shard_of([[1, 1, 0], [1, 1, 1], [0, 1, 0]]).train
    found = make_rp3beta(TrainingGraph(train, low_spectrum(train, 1)), 0.5).weights
    # from item 0 to users 0 and 1, each by 1/2; from user 0 to item 1 by 1/2, from user 1 by 1/3; 3 users have item 1
    assert found[0, 1] == pytest.approx((0.5 * 0.5 + 0.5 / 3) / 3**0.5)
    assert found[1, 2] == pytest.approx(1 / 3 / 3)
    assert (np.diag(found) == 0).all()


def test_scorers_of_dense_weights_are_left_out_of_large_graphs() -> None:
    spectrum = low_spectrum(sparse.csr_array(np.ones((2, 2))), 1)
    large, small = (TrainingGraph(sparse.csr_array((100, items)), spectrum) for items in (4097, 4096))
    assert not EDLAE.settings(large) and not RP3BETA.settings(large)
    assert EDLAE.settings(small) and RP3BETA.settings(small)
