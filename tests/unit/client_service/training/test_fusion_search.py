"""What is fused with the trained score: the arithmetic, and the choice by validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.evaluation.metrics import K
from client_service.evaluation.ranking import measure_test, measure_validation, rank_by_scores
from client_service.model_store.model_files import freeze
from client_service.models.closed_form.ease import EASE, RIDGES, ease, ridges_for
from client_service.models.closed_form.frequency import item_frequency
from client_service.models.closed_form.least_squares import Weighting
from client_service.models.closed_form.registry import PARTS, ClosedFormScorers
from client_service.models.closed_form.scorer_part import TrainingGraph
from client_service.models.initial_filter import Filter
from client_service.models.score_fusion import (
    ChosenPart,
    Fusion,
    Recipe,
    build_fusion,
    select_codes,
    standard_scores,
    standardise,
)
from client_service.runtime.interruption import NEVER
from client_service.serving.ranking import ListRequest
from client_service.training import fusion_search, recipe_evaluator
from client_service.training.filter_search import best_filter, filter_scores
from client_service.training.fusion_search import (
    OWN_SHARES,
    SHARE_USERS,
    USUAL_SHARE,
    OwnParts,
    _drop_light_parts,
    _own_share,
    _prefer_single_part,
    best_recipe,
    default_share,
    fused_top,
)
from client_service.training.item_trainer import ItemTrainer
from client_service.training.recipe_evaluator import KeptItemsEvaluator, RecipeEvaluator
from shared.method.parameters import Float32
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from tests.support.compiled import TrainedRecommender

SMALL = MethodSettings(width=4, layers=1, cutoff=12, negatives=4)
WEIGHTING = Weighting((4,), 0.3, 0.01)


def recipe_of(filter_loudness: float, squares_loudness: float) -> Recipe:
    return Recipe((ChosenPart("filter", 3.0, filter_loudness), ChosenPart("squares", WEIGHTING, squares_loudness)))


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
    found = fusion.add_to(base, fusion.encode(sparse.csr_array((1, 3))))
    unit = 0.5 * np.sqrt(8 / 3)
    assert np.allclose(found, [[-unit / np.sqrt(2), 2 - unit / np.sqrt(2), 4 + unit * np.sqrt(2)]])


def test_a_part_without_an_opinion_adds_nothing() -> None:
    base = np.array([[0.0, 2.0, 4.0]], dtype=np.float32)
    fusion = Fusion(((1.0, Says([3.0, 3.0, 3.0])),))
    assert np.array_equal(fusion.add_to(base, fusion.encode(sparse.csr_array((1, 3)))), base)
    assert np.array_equal(standardise(np.full((2, 3), 7.0, dtype=np.float32)), np.zeros((2, 3)))


def test_a_silent_recipe_is_no_fusion(planted: Shard) -> None:
    spectrum = low_spectrum(planted.train, 12)
    assert build_fusion(None, planted.train, spectrum) == build_fusion(recipe_of(0.0, 0.0), planted.train, spectrum)
    assert len(build_fusion(recipe_of(1.0, 0.5), planted.train, spectrum).parts) == 2


def test_training_begins_with_the_recipe_that_validation_prefers(planted: Shard) -> None:
    spectrum = low_spectrum(planted.train, 12)
    chosen = best_filter(planted, spectrum)
    training = ItemTrainer(planted, spectrum, SMALL, torch.device("cpu"), chosen.choice)
    assert training.recipe == best_recipe(planted, spectrum, chosen.choice)


@pytest.mark.parametrize("changes", [{"fusion": False}, {"start": "random"}])
def test_without_fusion_or_without_a_start_the_trained_score_ranks_alone(
    planted: Shard, changes: dict[str, object]
) -> None:
    method = SMALL.model_copy(update=changes)
    training = ItemTrainer(planted, low_spectrum(planted.train, 12), method, torch.device("cpu"))
    assert training.recipe is None and training.fusion.parts == ()


def test_a_stranger_with_a_user_s_basket_is_served_by_the_fused_score_like_the_user(planted: Shard) -> None:
    loud = recipe_of(20.0, 10.0)
    training = ItemTrainer(planted, low_spectrum(planted.train, 12), SMALL, torch.device("cpu"), recipe=loud)
    recommender = TrainedRecommender(planted)
    recommender.served = freeze("run-1.0", training)
    own = planted.train[[3]].indices
    user = recommender.for_user("u3", ListRequest(5, exclude_seen=False))
    stranger = recommender.for_basket([f"i{item}" for item in own], ListRequest(5, exclude_seen=False))
    assert [item.item for item in user.items] == [item.item for item in stranger.items]


def repeated(shard: Shard, times: int, judged: int) -> Shard:
    """The users so many times, of whom the first `judged` have a validation item."""
    train, valid, test = (
        sparse.csr_array(sparse.vstack([part] * times)) for part in (shard.train, shard.valid, shard.test)
    )
    count = train.shape[0]
    valid = sparse.csr_array(sparse.diags_array((np.arange(count) < judged).astype(float)) @ valid)
    valid.eliminate_zeros()
    return build_shard_from_matrices(
        "shop", [f"u{row:04d}" for row in range(count)], shard.item_ids, (train, valid, test)
    )


@pytest.mark.parametrize(("judged", "share"), [(0, 0.0), (10, 10 / 110), (50, 50 / 150), (1000, 1000 / 1100)])
def test_weights_are_the_usual_ones_as_far_as_there_are_few_validation_users(
    planted: Shard, judged: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = repeated(planted, max(2, judged // 40), judged)
    judge = RecipeEvaluator(shard, NEVER)
    assert judge.count == judged
    spectrum = low_spectrum(shard.train, 12)
    monkeypatch.setattr("client_service.training.fusion_search._best_weights", lambda *_: {"base": 1.0})
    monkeypatch.setattr("client_service.training.fusion_search.LEAST_WEIGHT", 0.0)
    monkeypatch.setattr(
        "client_service.training.fusion_search._prefer_single_part", lambda _judge, _parts, weights: weights
    )
    recipe = best_recipe(shard, spectrum, Filter(8, 0.4, 0.3))
    offered = {name: part for name, part in PARTS.items() if name != "content"}  # these items have no text
    usual = (1 - share) / (1.0 + sum(part.weight for part in offered.values()))  # of a part that counts once
    base = share + usual
    assert {part.name for part in recipe.parts} == set(offered)
    for name, part in offered.items():
        assert recipe.loudness(name) == pytest.approx(part.weight * usual / base)


def test_a_part_that_would_hardly_be_heard_is_left_out_unless_the_search_begins_with_it() -> None:
    weights = {"base": 0.5, "filter": 0.465, "frequency": 0.01, "edlae": 0.015, "rp3beta": 0.01}
    found = _drop_light_parts(weights)
    assert found == pytest.approx({name: weights[name] / 0.975 for name in ("base", "filter", "frequency")})
    assert _drop_light_parts({**weights, "edlae": 0.02, "rp3beta": 0.02}) == {**weights, "edlae": 0.02, "rp3beta": 0.02}


def test_without_validation_users_every_setting_is_the_usual_one(planted: Shard) -> None:
    shard = repeated(planted, 2, 0)
    recipe = best_recipe(shard, low_spectrum(shard.train, 12), Filter(8, 0.4, 0.3))
    usual = {name: part.usual for name, part in PARTS.items() if name != "content"}  # these items have no text
    assert {part.name: part.setting for part in recipe.parts} == usual


@pytest.mark.parametrize(
    ("covered_share", "expected"), [(1.0, USUAL_SHARE), (0.0, 1.0), (0.5, 0.75 + 0.25 * USUAL_SHARE)]
)
def test_the_common_parts_count_as_far_as_the_sums_tell_of_a_silo_s_items(
    covered_share: float, expected: float
) -> None:
    assert default_share(40, None, covered_share) == pytest.approx(expected)
    assert default_share(40) == USUAL_SHARE


def test_few_users_cannot_vote_for_sums_that_tell_of_few_items(planted: Shard) -> None:
    """The common part is right about each validation item, so that the votes alone are for the least own share."""
    shard = repeated(planted, 5, 200)
    judge = RecipeEvaluator(shard, NEVER)
    own, common = -shard.valid[judge.users].toarray(), shard.valid[judge.users].toarray()
    shares = [_own_share(judge, own.astype(np.float32), [common.astype(np.float32)], 0.8, t) for t in (1.0, 0.1, 0.0)]
    assert _own_share(judge, own.astype(np.float32), [common.astype(np.float32)], 0.96, 0.0) == 1.0
    least = OWN_SHARES[0]
    votes = [(200 * t * least + SHARE_USERS * 0.8) / (200 * t + SHARE_USERS) for t in (1.0, 0.1, 0.0)]
    assert shares == pytest.approx(votes)


@pytest.mark.parametrize(
    ("judged", "wrong", "trust", "alone"),
    [
        (0, 0, 1.0, False),  # nobody to say so
        (4, 2, 1.0, False),  # half of a few users lose all, which may be chance
        (4, 2, 0.0, True),  # of sums that tell nothing, nothing is expected
        (160, 80, 1.0, True),
        (160, 80, 0.1, True),
        (160, 0, 0.1, False),
    ],
)
def test_a_silo_is_served_alone_where_the_sums_lose_more_than_chance(
    planted: Shard, judged: int, wrong: int, trust: float, *, alone: bool
) -> None:
    """The own part is right about each validation item, the common one wrong about those of `wrong` users."""
    shard = repeated(planted, max(2, judged // 40), judged)
    judge = RecipeEvaluator(shard, NEVER)
    own = shard.valid[judge.users].toarray().astype(np.float32)
    common = own.copy()
    common[:wrong] *= -100.0
    share = _own_share(judge, own, [common], USUAL_SHARE, trust)
    assert (share == 1.0) == alone


@pytest.mark.parametrize(
    ("directions", "least", "most"), [(1, 0.8, 0.99), (5, 0.5, 0.8), (128, USUAL_SHARE, 0.2), (None, 0.0, USUAL_SHARE)]
)
def test_a_silo_with_more_users_than_a_noised_basis_has_directions_keeps_to_its_own_parts(
    directions: int | None, least: float, most: float
) -> None:
    """With the usual share, silos of 59 users served a sum under the noise of epsilon 1 at .6 of their own quality."""
    assert least <= default_share(40, directions) <= most


def test_a_large_silo_is_never_served_what_validation_says_is_worse_than_one_part(planted: Shard) -> None:
    shard = repeated(planted, 6, 240)
    spectrum = low_spectrum(shard.train, 12)
    chosen = best_filter(shard, spectrum)
    fused = measure_validation(shard, fused_top(shard, spectrum, chosen.choice), np.arange(240))
    assert fused.primary_value >= chosen.validation.primary_value - 1e-6
    judge = RecipeEvaluator(shard, NEVER)
    usual = judge.quality(judge.score_part(ease(shard.train, EASE.usual)))
    assert fused.primary_value >= usual - 1e-6


def test_a_user_of_whom_the_base_path_knows_nothing_is_ranked_by_the_others() -> None:
    fusion = Fusion(((0.5, Says([1.0, 2.0, 3.0])),))
    found = fusion.add_to(np.zeros((1, 3), np.float32), fusion.encode(sparse.csr_array((1, 3))))
    assert np.argsort(-found[0]).tolist() == [2, 1, 0]


def drawn_by_frequency(seed: int) -> Shard:
    """60 users who each like 8 of 120 items, drawn by their rank alone: there is nothing to know of anybody."""
    generator, items = np.random.default_rng(seed), 120
    chances = 1.0 / np.arange(1, items + 1)
    parts = np.zeros((3, 60, items))
    for user in range(60):
        liked = generator.permutation(generator.choice(items, 8, replace=False, p=chances / chances.sum()))
        for split, own in enumerate((liked[:6], liked[6:7], liked[7:])):
            parts[split, user, own] = 1.0
    known = np.flatnonzero(parts[0].sum(0))
    ids = [f"u{row:02d}" for row in range(60)], [f"i{item:03d}" for item in known]
    return build_shard_from_matrices("shop", *ids, [sparse.csr_array(part[:, known]) for part in parts])


def test_a_small_silo_in_which_the_frequent_items_are_all_that_is_known_is_served_them() -> None:
    """At the mean of a few draws: in one of them 60 users may prefer anything."""

    def qualities(seed: int) -> tuple[float, float]:
        shard = drawn_by_frequency(seed)
        spectrum = low_spectrum(shard.train, 32)
        start = best_filter(shard, spectrum).choice
        recipe = best_recipe(shard, spectrum, start)
        others = tuple(one for one in recipe.parts if one.name != "frequency")

        def quality(one: Recipe) -> float:
            fusion = build_fusion(one, shard.train, spectrum)
            base, codes = filter_scores(start, spectrum, shard.train), fusion.encode(shard.train)
            top = rank_by_scores(lambda rows: fusion.add_to(base(rows), select_codes(codes, rows)))
            return measure_test(shard, top).primary_value

        return quality(recipe), quality(replace(recipe, parts=others))

    served, without = np.mean([qualities(seed) for seed in range(4)], axis=0)
    assert served > 1.02 * without


def test_the_frequency_of_an_item_is_the_logarithm_of_its_edges_whoever_asks(shard_of: Callable[..., Shard]) -> None:
    train = shard_of([[1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0]]).train
    found = standard_scores(item_frequency(train), sparse.csr_array([[1.0, 0, 0, 0], [0, 0, 0, 0]]))
    assert np.allclose(found, [np.log([2, 4, 3, 1])] * 2)


@pytest.mark.parametrize(
    ("users", "better", "alone"),
    [
        (20, 10, False),  # too few users to say anything
        (40, 2, False),  # .05 in the mean, 1.4 standard errors
        (40, 6, True),  # .15, 2.6 of them
        (240, 2, True),  # .0083, 1.4 of them, but so many users
        (240, 0, False),
    ],
)
def test_a_single_part_replaces_the_sum_by_two_errors_or_with_many_users_by_one(
    shard_of: Callable[..., Shard], users: int, better: int, *, alone: bool
) -> None:
    """The sum puts everybody's held-out item last, and one part puts it first for some of them."""
    train, valid = np.zeros((2, users, 30))
    train[:, 0] = valid[:, 1] = 1.0
    total = np.tile(np.arange(30, dtype=np.float32), (users, 1))
    total[:, 1] = -1.0
    good = total.copy()
    good[:better, 1] = 99.0
    parts = OwnParts({}, {"sum": total, "good": good})
    judge = RecipeEvaluator(shard_of(train, valid), NEVER)
    assert _prefer_single_part(judge, parts, {"sum": 1.0}) == ({"good": 1.0} if alone else {"sum": 1.0})


def test_a_large_graph_has_ease_with_one_ridge_and_a_very_large_one_has_none(
    planted: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    spectrum = low_spectrum(planted.train, 12)

    def ridges(users: int, items: int) -> tuple[float, ...]:
        return ridges_for(TrainingGraph(sparse.csr_array((users, items)), spectrum))

    assert ridges(9000, 6000) == RIDGES
    assert ridges(6001, 20_000) == ridges(12_000, 12_000) == (EASE.usual,)
    assert ridges(12_001, 12_001) == ()
    for given, loud in (((EASE.usual,), True), ((), False)):
        monkeypatch.setitem(PARTS, "ease", replace(EASE, settings=partial(lambda options, _: options, given)))
        recipe = best_recipe(planted, spectrum, Filter(8, 0.4, 0.3))
        assert (recipe.loudness("ease") > 0) == loud
        assert recipe.setting("ease") == (EASE.usual if loud else None)


def test_the_scorers_that_a_choice_has_made_are_those_that_would_be_made_anew(planted: Shard) -> None:
    spectrum = low_spectrum(planted.train, 12)
    made = ClosedFormScorers(planted.train, spectrum)
    recipe = best_recipe(planted, spectrum, Filter(8, 0.4, 0.3), closed_forms=made)
    kept, anew = (build_fusion(recipe, planted.train, spectrum, closed_forms=one) for one in (made, None))
    assert len(kept.parts) == len(anew.parts) == len(PARTS) - 1  # without text there is no content
    for (loudness, one), (other_loudness, other) in zip(kept.parts, anew.parts, strict=True):
        baskets = planted.train.astype(np.float32)
        assert loudness == other_loudness
        np.testing.assert_allclose(standard_scores(one, baskets), standard_scores(other, baskets), rtol=1e-4, atol=1e-5)
    squares = recipe.setting("squares")
    assert made.make("squares", squares) is made.make("squares", squares)


def test_a_choice_is_the_same_on_any_number_of_cores(planted: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    spectrum, found = low_spectrum(planted.train, 12), []
    monkeypatch.setattr("client_service.evaluation.ranking.CHUNK", 7)
    for cores in (1, 3):
        monkeypatch.setattr("shared.cores.available_cores", lambda cores=cores: cores)
        chosen = best_filter(planted, spectrum)
        found.append((chosen.choice, chosen.validation, best_recipe(planted, spectrum, chosen.choice)))
    assert found[0] == found[1]


def choose_twice(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, listed: int
) -> tuple[Recipe, Recipe, list[type[RecipeEvaluator]]]:
    """A recipe by the scores of all items, one by those of kept items, and who judged the second."""
    spectrum, asked = low_spectrum(shard.train, 12), list[type[RecipeEvaluator]]()
    whole = best_recipe(shard, spectrum, Filter(8, 0.4, 0.3))
    monkeypatch.setattr(fusion_search, "_can_keep_best", lambda _: True)
    monkeypatch.setattr(recipe_evaluator, "LISTED", listed)
    choose_best = RecipeEvaluator.choose_best
    monkeypatch.setattr(
        RecipeEvaluator, "choose_best", lambda judge, *given: asked.append(type(judge)) or choose_best(judge, *given)
    )
    return whole, best_recipe(shard, spectrum, Filter(8, 0.4, 0.3)), asked


@pytest.mark.parametrize("listed", [45, 100])
def test_a_choice_by_the_items_that_can_be_among_the_first_is_the_choice_by_all(
    planted: Shard, monkeypatch: pytest.MonkeyPatch, listed: int
) -> None:
    whole, narrow, asked = choose_twice(repeated(planted, 4, 160), monkeypatch, listed)
    assert narrow == whole
    assert set(asked) == {KeptItemsEvaluator}


def test_a_choice_is_made_by_all_items_where_another_may_be_among_the_first(
    planted: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, narrow, asked = choose_twice(repeated(planted, 4, 160), monkeypatch, K)
    assert narrow == whole
    assert asked[-1] is RecipeEvaluator  # the K best of each scorer are too few to be sure of the sums'


def test_kept_items_say_of_any_sum_what_all_items_say(shard_of: Callable[..., Shard]) -> None:
    """Scores of one kind rank by chance, ties among them; users have met few items or nearly all."""
    rng = np.random.default_rng(5)
    users, items = 50, 400
    met = rng.random((users, items)) < np.linspace(0.01, 0.95, users)[:, None]
    valid = ~met & (rng.random((users, items)) < 0.02)
    judge = RecipeEvaluator(shard_of(met.astype(float), valid.astype(float)), NEVER)
    scores = [rng.standard_normal((users, items)).round(1).astype(np.float32) for _ in range(3)]
    narrow, kept = judge.keep_best(lambda rows: (one[rows] for one in scores), len(scores))
    whole = [standardise(one[judge.users]) for one in scores]
    assert kept[0].shape[1] < items and narrow.count == judge.count
    for weights in rng.dirichlet(np.ones(3), 20).astype(np.float32):
        alone = judge.measure_users(
            lambda places, w=weights: sum(a * one[places] for a, one in zip(w, whole, strict=True))
        )
        found = narrow.measure_users(
            lambda places, w=weights: sum(a * one[places] for a, one in zip(w, kept, strict=True))
        )
        np.testing.assert_array_equal(found, alone)
