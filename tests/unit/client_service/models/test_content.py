"""Content-EASE: its formula, its sums over silos, and that it scores items that nobody has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter
from scipy import sparse

from client_service.compilation.item_model import (
    EXACT,
    FormBuilder,
    Option,
    digest_model,
    digest_ranker,
)
from client_service.compiled.model import BasketRanker
from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.model_store.model_files import ServedItems
from client_service.models.closed_form.content import (
    CONTENT,
    PAIRS,
    ContentSetting,
    ContentSums,
    add_constant,
    content_weights,
    find_item_features,
    predicts_taste,
    sum_content,
)
from client_service.models.closed_form.registry import ClosedFormScorers
from client_service.models.closed_form.scorer_part import TrainingGraph
from client_service.models.initial_filter import Filter
from client_service.models.score_fusion import ChosenPart, Recipe, build_fusion, standard_scores
from client_service.runtime.interruption import NEVER
from client_service.training.fusion_search import best_recipe
from client_service.training.recipe_evaluator import RecipeEvaluator
from client_service.training.start_choice import Choice, build_start_model, load_choice, save_choice
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum

KINDS = ("space station rocket", "forest river wolf", "kitchen soup pepper", "football stadium goal")
SETTING = ContentSetting(0.003)
START = Filter(8, 0.3, 0.25)


@pytest.fixture
def told(planted: Shard) -> Shard:
    """The planted shard with titles that say each item's community, and places in a list."""
    titles = tuple(f"{KINDS[item // 10]} {item}" for item in range(40))
    return replace(planted, titles=titles, places=np.arange(40))


def test_the_weights_are_those_of_the_formula_written_out() -> None:
    generator = np.random.default_rng(0)
    x = (generator.random((7, 5)) < 0.5).astype(float)
    features = generator.standard_normal((5, 2)).astype(np.float32)
    table = np.column_stack([features.astype(float), np.ones(5)])
    a, off = np.zeros((3, 3)), np.zeros((3, 3))
    for basket in x:
        for i in np.flatnonzero(basket):
            for j in np.flatnonzero(basket):
                a += np.outer(table[i], table[j])
                off += np.outer(table[i], table[j]) * (i != j)
    sums = sum_content(sparse.csr_array(x), add_constant(features))
    np.testing.assert_allclose(sums.profiles, a, rtol=1e-12)
    np.testing.assert_allclose(sums.pairs, off, rtol=1e-12, atol=1e-12)
    expected = np.linalg.inv(a + 0.5 * np.trace(a) / 3 * np.eye(3)) @ off @ np.linalg.inv(table.T @ table + np.eye(3))
    np.testing.assert_allclose(content_weights(sums, table, 0.5), expected, rtol=1e-9)


def test_sums_of_silos_without_a_common_item_are_those_of_all_their_users_together() -> None:
    generator = np.random.default_rng(1)
    left, right = ((generator.random((6, 4)) < 0.5).astype(float) for _ in range(2))
    features = generator.standard_normal((8, 3)).astype(np.float32)
    whole = sparse.csr_array(sparse.block_diag([left, right]))
    pooled = sum_content(whole, add_constant(features))
    parts = [
        sum_content(sparse.csr_array(one), add_constant(own))
        for one, own in ((left, features[:4]), (right, features[4:]))
    ]
    for found, expected in zip(parts[0].add(parts[1]), pooled, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_the_others_items_count_as_if_there_were_as_many_as_are_scored() -> None:
    """A catalogue that two silos have in common counts once, and sums of an earlier version have none."""
    generator = np.random.default_rng(0)
    x = sparse.csr_array((generator.random((9, 6)) < 0.5).astype(float))
    table = add_constant(generator.standard_normal((6, 2)).astype(np.float32))
    other = add_constant(generator.standard_normal((12, 2)).astype(np.float32))
    own, twice = sum_content(x, table), sum_content(x, table).add(sum_content(x, table))
    np.testing.assert_allclose(content_weights(twice, table, 0.1), content_weights(own, table, 0.1), rtol=1e-9)
    others = sum_content(sparse.csr_array((generator.random((9, 12)) < 0.5).astype(float)), other)
    both = own.add(others, 0.5)
    a, d, s = own.profiles + others.profiles / 2, own.pairs + others.pairs / 2, table.T @ table + other.T @ other / 2
    regular = a + 0.1 * np.trace(a) / 3 * np.eye(3)
    expected = np.linalg.inv(regular) @ d @ np.linalg.inv(s * 6 / 12 + np.eye(3))
    np.testing.assert_allclose(content_weights(both, table, 0.1), expected, rtol=1e-9)
    earlier = own.add(others._replace(items=None), 0.5)
    expected = np.linalg.inv(regular) @ d @ np.linalg.inv(table.T @ table + np.eye(3))
    assert earlier.items is None
    np.testing.assert_allclose(content_weights(earlier, table, 0.1), expected, rtol=1e-9)


def test_an_item_that_nobody_has_is_ranked_by_what_its_text_has_in_common(told: Shard) -> None:
    cold = [9, 19, 29, 39]
    train = told.train.tolil()
    train[:, cold] = 0
    shard = replace(
        build_shard_from_matrices("shop", told.user_ids, told.item_ids, [train.tocsr(), told.valid, told.test]),
        titles=told.titles,
    )
    made = ClosedFormScorers.from_shard(shard, low_spectrum(shard.train, 12)).make("content", SETTING)
    scores = standard_scores(made, shard.train.astype(np.float32))[:, cold]
    assert (scores.argmax(1) == np.arange(40) // 10).mean() > 0.9


def test_without_titles_and_attributes_nothing_is_offered_and_a_recipe_that_names_it_scores_nothing(
    planted: Shard,
) -> None:
    """So that lists of silos without text stay as they are, and a silo whose texts are gone still starts."""
    made = ClosedFormScorers.from_shard(planted, low_spectrum(planted.train, 12))
    assert find_item_features(planted) is None and CONTENT.settings(made.graph) == ()
    assert "content" not in {part.name for part in best_recipe(planted, made.spectrum, START).parts}
    recipe = Recipe((ChosenPart("ease", 30.0, 1.0), ChosenPart("content", SETTING, 2.0)))
    bare = Recipe(recipe.parts[:1])
    base = np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32)
    lists = []
    for one in (recipe, bare):
        fusion = build_fusion(one, planted.train, made.spectrum, closed_forms=made)
        lists.append(fusion.add_to(base.copy(), fusion.encode(planted.train)))
    np.testing.assert_array_equal(*lists)


def test_a_recipe_comes_back_from_the_disk_with_its_setting_and_for_the_same_texts_alone(
    told: Shard, tmp_path: Path
) -> None:
    recipe = Recipe((ChosenPart("content", ContentSetting(0.01, 0.3), 1.5), ChosenPart("ease", 30.0, 1.0)))
    adapter = TypeAdapter(Recipe)
    assert adapter.validate_json(adapter.dump_json(recipe)) == recipe
    save_choice(told, 12, tmp_path, Choice(start=START, recipe=recipe))
    assert load_choice(told, 12, tmp_path).recipe == recipe
    assert load_choice(replace(told, titles=None), 12, tmp_path) == Choice()


def test_the_share_of_the_others_is_in_the_scores_and_that_of_0_leaves_them_out(told: Shard) -> None:
    spectrum, generator = low_spectrum(told.train, 12), np.random.default_rng(3)
    alien = generator.standard_normal((65, 65)) * 1e3
    others = ContentSums(alien @ alien.T, alien + alien.T)
    alone, beside = (ClosedFormScorers.from_shard(told, spectrum, one) for one in (None, others))
    baskets = told.train.astype(np.float32)
    own = standard_scores(alone.make("content", SETTING), baskets)
    np.testing.assert_array_equal(standard_scores(beside.make("content", SETTING), baskets), own)
    assert not np.allclose(standard_scores(beside.make("content", ContentSetting(0.003, 1.0)), baskets), own)
    recipe = best_recipe(told, spectrum, START, closed_forms=beside)
    assert recipe.setting("content") in (*CONTENT.settings(beside.graph),)


@pytest.mark.parametrize("option", [EXACT, Option("dense", 0)])
def test_answers_are_compiled_with_it(told: Shard, option: Option) -> None:
    method = MethodSettings(width=8, layers=2, cutoff=8, catalogue=40)
    recipe = Recipe((ChosenPart("content", SETTING, 1e6),))
    begun = build_start_model(
        told, low_spectrum(told.train, 8), method, "lgcn", Choice(start=START, recipe=recipe), NEVER
    )
    begun.model.encoder.prepare_inference()
    served = ServedItems("run-1.2", begun.model, ranker=begun.model.freeze().with_fusion(begun.fusion, begun.codes))
    table, exact, arrays = FormBuilder(served, told).build(option)
    ranker, (_, part) = BasketRanker(arrays, table, exact), served.ranker.fusion.parts[0]
    for rows in ([3], [1, 2, 5], [0, 11, 25, 39]):
        basket = np.array(rows)
        expected = part.contributions(basket, np.arange(40)).sum(0)  # type: ignore[attr-defined]
        expected[basket] = -np.inf
        found = ranker.rank(basket, basket, 5).rows
        assert len(set(found) & set(np.argsort(-expected)[:5])) >= 4


def test_a_silo_in_which_nobody_votes_has_it_with_its_usual_weight(told: Shard) -> None:
    nobody = sparse.csr_array(told.valid.shape)
    shard = replace(
        build_shard_from_matrices("shop", told.user_ids, told.item_ids, [told.train, nobody, nobody]),
        titles=told.titles,
    )
    recipe = best_recipe(shard, low_spectrum(told.train, 12), START)
    graph = ClosedFormScorers.from_shard(shard, low_spectrum(told.train, 12)).graph
    setting = recipe.setting("content")
    assert recipe.loudness("content") == pytest.approx(CONTENT.usual_weight(graph, setting))
    assert CONTENT.usual_weight(graph, setting) < CONTENT.weight
    others = replace(setting, others=1.0)
    assert CONTENT.usual_weight(graph, others) == CONTENT.weight  # all silos' sums tell enough
    as_many = TrainingGraph(sparse.csr_array(np.ones((4, PAIRS // 4))), graph.spectrum)
    assert CONTENT.usual_weight(as_many, setting) == CONTENT.weight / 4
    assert setting == CONTENT.settings(graph)[0]


def test_features_that_tell_nothing_of_taste_change_no_list(told: Shard) -> None:
    """Few validation users do not see the noise that such features add."""
    spectrum = low_spectrum(told.train, 12)
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(40)
        assert told.titles is not None
        others = replace(told, titles=tuple(told.titles[item] for item in order))
        assert CONTENT.settings(ClosedFormScorers.from_shard(others, spectrum).graph) == ()
        nothing = best_recipe(replace(told, titles=None), spectrum, START)
        assert best_recipe(others, spectrum, START) == nothing
    assert CONTENT.settings(ClosedFormScorers.from_shard(told, spectrum).graph) != ()
    assert best_recipe(told, spectrum, START) != nothing


def make_few_users(seed: int) -> tuple[sparse.csr_array, np.ndarray[Any, np.dtype[np.float32]]]:
    """Twelve users who like items of four kinds, some 190 interactions, and features that tell the kind, with noise."""
    generator, kinds = np.random.default_rng(seed), np.arange(120) % 4
    taste = generator.dirichlet(np.full(4, 0.5), 12)
    liked = generator.random((12, 120)) < taste[:, kinds] * generator.random(120)
    features = np.eye(4)[kinds] + 0.3 * generator.standard_normal((120, 4))
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return sparse.csr_array(liked.astype(float)), (features / lengths).astype(np.float32)


def test_a_few_users_show_that_features_tell_what_they_like_and_meaningless_ones_do_not() -> None:
    """Standard errors over twelve users see it in 7 of these 12 silos; other orders of the features see it in all."""
    spectrum = low_spectrum(make_few_users(0)[0], 4)
    found = []
    for seed in range(12):
        interactions, features = make_few_users(seed)
        order = np.random.default_rng(seed).permutation(len(features))
        graphs = (TrainingGraph(interactions, spectrum, one) for one in (features, features[order]))
        found.append([predicts_taste(one) for one in graphs])
    assert np.array(found).sum(axis=0).tolist() == [12, 0]


def test_another_share_of_the_others_sums_must_be_better_by_two_standard_errors(
    told: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few users judge many settings: else chance often leaves out what the other silos know."""
    asked = list[float]()

    def prefer(_: RecipeEvaluator, usual: Any, others: Any, errors: float = 1.0) -> Any:
        del others
        asked.append(errors)
        return usual[0]

    monkeypatch.setattr(RecipeEvaluator, "choose_surely", prefer)
    counts = []
    for shard in (replace(told, titles=None), told):
        asked.clear()
        best_recipe(shard, low_spectrum(told.train, 12), START)
        counts.append((asked.count(1.0), asked.count(2.0)))
    (others, _), (again, _) = counts
    assert counts[1][1] == counts[0][1] + 1 and others == again > 0


def test_a_compiled_model_has_what_scores_items_that_nobody_has(told: Shard) -> None:
    method = MethodSettings(width=8, layers=2, cutoff=8, catalogue=40)
    recipe = Recipe((ChosenPart("ease", 30.0, 1.0),))
    begun = build_start_model(
        told, low_spectrum(told.train, 8), method, "lgcn", Choice(start=START, recipe=recipe), NEVER
    )
    begun.model.encoder.prepare_inference()
    ranker = begun.model.freeze().with_fusion(begun.fusion, begun.codes)
    served = ServedItems("run-1.2", begun.model, ranker=ranker, cold=begun.cold)
    assert served.cold is not None
    basket, some = np.array([1, 2, 5]), np.array([9, 19, 29])
    row = sparse.csr_array((np.ones(3), ([0, 0, 0], basket)), (1, 40))
    found = served.cold.left[basket].sum(0) @ served.cold.features[some].T
    np.testing.assert_allclose(found, served.cold.scores(row, some)[0], rtol=1e-4)
    np.testing.assert_allclose(
        served.cold.features[basket] @ served.cold.weights, served.cold.left[basket], rtol=1e-3, atol=1e-5
    )
    assert digest_model(served) != digest_model(replace(served, cold=None)) == digest_ranker(ranker)


def test_the_setting_for_items_that_nobody_has_is_that_which_ranks_hidden_items_unless_the_usual_one_does(
    told: Shard,
) -> None:
    """Sums of other silos that say the contrary are left out; those that say the same are taken."""
    spectrum, features = low_spectrum(told.train, 12), find_item_features(told)
    assert features is not None
    own = sum_content(told.train, add_constant(features.values))
    alone = ClosedFormScorers.from_shard(told, spectrum).choose_cold_setting()
    assert alone is not None and alone.others == 0.0
    friendly = ClosedFormScorers.from_shard(
        told, spectrum, ContentSums(50 * own.profiles, 50 * own.pairs)
    ).choose_cold_setting()
    assert friendly is not None and friendly.others == 1.0
    contrary = ContentSums(50 * own.profiles, -50 * own.pairs)
    hostile = ClosedFormScorers.from_shard(told, spectrum, contrary)
    assert hostile.choose_cold_setting() is not None and hostile.choose_cold_setting().others == 0.0  # type: ignore[union-attr]
    chosen = best_recipe(told, spectrum, START, closed_forms=hostile)
    assert chosen.cold is None, "it is chosen where the model begins"


def test_the_setting_for_items_that_nobody_has_is_kept_with_the_recipe(told: Shard) -> None:
    method = MethodSettings(width=8, layers=2, cutoff=8, catalogue=40)
    recipe = Recipe((ChosenPart("ease", 30.0, 1.0),), cold=ContentSetting(0.3))
    begun = build_start_model(
        told, low_spectrum(told.train, 8), method, "lgcn", Choice(start=START, recipe=recipe), NEVER
    )
    assert begun.recipe is not None and begun.recipe.cold == ContentSetting(0.3)
    adapter = TypeAdapter(Recipe)
    assert adapter.validate_json(adapter.dump_json(begun.recipe)) == begun.recipe
    assert adapter.validate_python({"parts": [], "common_loudness": 0.0}).cold is None
