"""Whoever asks gets a list: a personal one, one for a basket, or popular items with a flag that says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from client_service.compiled.model import CompiledModel
from client_service.data.interaction_files import load_shard, write_shard
from client_service.data.interactions import Shard
from client_service.model_store.model_files import ServedItems, freeze
from client_service.serving.messages import RecommendationsOut, SimilarOut
from client_service.serving.ranking import Basket, ListRequest
from client_service.serving.recommender import QUICK, Recommender
from client_service.training.item_trainer import ItemTrainer
from client_service.training.spectrum_cache import cached_spectrum
from client_service.training.training_state import RoundContext
from shared.errors import NotFoundError
from shared.method.settings import MethodSettings
from tests.support.compiled import TrainedRecommender
from tests.support.given import Silos

EVERYTHING = 12


@pytest.fixture(scope="module")
def shard(shared_silos: Silos) -> Shard:
    return load_shard(shared_silos(1)[0])


@pytest.fixture(scope="module")
def training(shard: Shard, small: MethodSettings) -> ItemTrainer:
    return make_training(shard, small)


def make_training(shard: Shard, small: MethodSettings) -> ItemTrainer:
    """Not trained yet: the model is the filter."""
    return ItemTrainer(shard, cached_spectrum(shard, small.cutoff, None), small, torch.device("cpu"))


@pytest.fixture
def recommender(shard: Shard, training: ItemTrainer) -> Recommender:
    found = TrainedRecommender(shard)
    found.served = freeze("run-1.0", training)
    return found


def ids(answer: RecommendationsOut) -> list[str]:
    return [item.item for item in answer.items]


def items_of(shard: Shard, user: str, *splits: str) -> set[str]:
    row = shard.user_row(user)
    return {shard.item_ids[column] for split in splits for column in getattr(shard, split)[[row]].indices}


def served(recommender: Recommender) -> ServedItems:
    assert recommender.served is not None
    return recommender.served


def test_a_user_gets_unseen_items_best_first_with_title_and_version(recommender: Recommender, shard: Shard) -> None:
    answer = recommender.for_user("user-03", ListRequest(5))
    assert (answer.user, answer.model, answer.fallback, len(answer.items)) == ("user-03", "run-1.0", None, 5)
    assert set(ids(answer)) & items_of(shard, "user-03", "train", "valid") == set()
    scores = [item.score for item in answer.items]
    assert scores == sorted(scores, reverse=True) and len(set(ids(answer))) == 5
    assert all(item.title == f"Title of {item.item}" for item in answer.items)


def test_the_unseen_item_of_one_s_own_taste_mostly_comes_first(recommender: Recommender, shard: Shard) -> None:
    firsts = []
    for user in shard.user_ids:
        limits = recommender.limits(1, False, None, [*items_of(shard, user, "train", "valid")])
        firsts.append(ids(recommender.for_user(user, limits)) == [*items_of(shard, user, "test")])
    assert np.mean(firsts) > 0.5, np.mean(firsts)  # it is one of seven; the others are of the other taste


def test_seen_items_come_back_when_they_are_asked_for(recommender: Recommender, shard: Shard) -> None:
    seen = items_of(shard, "user-03", "train")
    whole = ids(recommender.for_user("user-03", ListRequest(EVERYTHING, exclude_seen=False)))
    assert sorted(whole) == list(shard.item_ids)
    assert seen <= set(whole[:6])


def test_more_than_there_are_gives_all_there_are(recommender: Recommender) -> None:
    assert len(recommender.for_user("user-03", ListRequest(1000)).items) == EVERYTHING - 6
    assert len(recommender.for_user("nobody", ListRequest(1000)).items) == EVERYTHING
    assert len(recommender.for_basket(["item-00"], ListRequest(1000)).items) == EVERYTHING - 1
    assert len(recommender.similar("item-00", 1000).items) == EVERYTHING - 1


def test_only_allowed_items_and_no_excluded_ones_are_recommended(recommender: Recommender) -> None:
    allow, exclude = ["item-00", "item-06", "item-07", "unknown"], ["item-06", "also unknown"]
    limits = recommender.limits(10, False, allow, exclude)
    for answer in (
        recommender.for_user("user-03", limits),
        recommender.for_user("nobody", limits),
        recommender.for_basket(["item-01"], limits),
    ):
        assert set(ids(answer)) == {"item-00", "item-07"}
    assert ids(recommender.for_user("user-03", recommender.limits(10, False, [], []))) == []
    assert ids(recommender.for_basket(["item-01"], recommender.limits(10, False, ["unknown"], []))) == []
    assert "item-06" not in ids(recommender.for_user("user-03", recommender.limits(12, False, None, ["item-06"])))


def test_an_unknown_user_gets_popular_items_and_a_flag(recommender: Recommender, shard: Shard) -> None:
    answer = recommender.for_user("nobody", ListRequest(3))
    counts = np.asarray(shard.train.sum(axis=0)).ravel()
    assert (answer.fallback, answer.model, answer.user) == ("unknown user", None, "nobody")
    shares = counts / len(shard.user_ids)
    assert [item.score for item in answer.items] == sorted(shares, reverse=True)[:3]
    assert all(item.score == shares[shard.item_ids.index(item.item)] for item in answer.items)
    raw = recommender.for_user("nobody", ListRequest(3, raw=True))
    assert [item.score for item in raw.items] == sorted(counts, reverse=True)[:3]


def test_of_equally_popular_items_the_first_by_id_comes_first(shard: Shard) -> None:
    by_item = dict(zip(shard.item_ids, np.asarray(shard.train.sum(axis=0)).ravel(), strict=True))
    expected = sorted(by_item, key=lambda item: (-by_item[item], item))
    assert len({*by_item.values()}) < len(by_item)
    for k in range(1, EVERYTHING + 1):
        assert ids(TrainedRecommender(shard).for_user("nobody", ListRequest(k))) == expected[:k]


def test_without_a_model_everybody_gets_unseen_popular_items_and_a_flag(shard: Shard) -> None:
    recommender = TrainedRecommender(shard)
    known = recommender.for_user("user-03", ListRequest(EVERYTHING))
    assert known.fallback == "no model yet"
    assert set(ids(known)) == set(shard.item_ids) - items_of(shard, "user-03", "train", "valid", "test")
    for answer in (recommender.for_user("nobody", ListRequest(3)), recommender.for_basket(["item-00"], ListRequest(3))):
        assert (answer.fallback, answer.model, len(answer.items)) == ("no model yet", None, 3)
    assert recommender.similar("item-00", 3) == SimilarOut(item="item-00", items=())


def test_baskets_computed_together_are_answered_as_each_alone(recommender: Recommender) -> None:
    asked = [
        Basket(("item-00",), ListRequest(5)),
        Basket(("mystery",), ListRequest(3)),
        Basket(("item-06", "item-07", "enigma"), recommender.limits(2, True, None, ["item-01"])),
        Basket(("item-03", "item-00"), ListRequest(1000, exclude_seen=False)),
    ]
    alone = [recommender.for_basket(one.items, one.limits) for one in asked]
    for one, other in zip(recommender.recommend_baskets(asked), alone, strict=True):
        assert [item.item for item in one.items] == [item.item for item in other.items]
        assert [item.score for item in one.items] == pytest.approx([item.score for item in other.items], rel=1e-4)
        assert (one.fallback, one.unknown_items, one.model) == (other.fallback, other.unknown_items, other.model)


def test_a_small_basket_is_answered_at_once_and_a_long_computation_is_left_to_a_thread(
    recommender: Recommender, shard: Shard
) -> None:
    quick = CompiledModel.is_quick
    basket = Basket(("item-00", "enigma"), ListRequest(3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompiledModel, "is_quick", lambda *_: True)
        found = recommender.answer_quick_basket(basket)
        assert found == recommender.for_basket(basket.items, basket.limits)
        costly = [recommender.limits(3, explain=True), recommender.limits(3, mmr=0.5), ListRequest(QUICK + 1)]
        assert [recommender.answer_quick_basket(replace(basket, limits=one)) for one in costly] == [None] * 3
        assert recommender.answer_quick_basket(Basket(("enigma",) * 2, ListRequest(3))) is None
        assert recommender.answer_quick_basket(Basket(("item-00",) * (QUICK + 1), ListRequest(3))) is None
    model = recommender.model
    assert model is not None and model.form == "exact" and not quick(model, np.array([0]))
    assert recommender.answer_quick_basket(basket) is None
    assert TrainedRecommender(shard).answer_quick_basket(basket) is None


def test_unknown_items_of_a_basket_are_counted_and_change_nothing(recommender: Recommender) -> None:
    plain = recommender.for_basket(["item-00", "item-01"], ListRequest(4))
    mixed = recommender.for_basket(["item-01", "mystery", "item-00", "enigma", "item-00"], ListRequest(4))
    assert (plain.unknown_items, mixed.unknown_items, mixed.fallback) == (0, 2, None)
    assert mixed.items == plain.items and mixed.model == "run-1.0"
    assert {"item-00", "item-01"} & set(ids(mixed)) == set()
    kept = recommender.for_basket(["item-00", "item-01"], ListRequest(EVERYTHING, exclude_seen=False))
    assert {"item-00", "item-01"} < set(ids(kept))


def test_a_basket_of_nothing_known_gets_popular_items_and_a_flag(recommender: Recommender) -> None:
    answer = recommender.for_basket(["mystery", "enigma"], ListRequest(3))
    assert (answer.fallback, answer.unknown_items, answer.model) == ("no known item in the basket", 2, None)
    assert ids(answer) == ids(recommender.for_user("nobody", ListRequest(3)))


def test_a_user_s_own_training_items_as_a_basket_give_the_user_s_own_scores(
    recommender: Recommender, shard: Shard
) -> None:
    for user in shard.user_ids:
        own = recommender.for_user(user, ListRequest(EVERYTHING, exclude_seen=False))
        basket = recommender.for_basket(items_of(shard, user, "train"), ListRequest(EVERYTHING, exclude_seen=False))
        scores = {item.item: item.score for item in basket.items}
        for item in own.items:
            assert scores[item.item] == pytest.approx(item.score, abs=1e-3)


def test_similar_items_are_the_nearest_by_cosine_and_never_the_item_itself(
    recommender: Recommender, shard: Shard, training: ItemTrainer
) -> None:
    found = recommender.similar("item-04", 3)
    version, items = found.model, found.items
    with torch.no_grad():
        rows = training.model.pooled()[1].embedding.double()
    cosines = torch.nn.functional.cosine_similarity(rows, rows[4][None], dim=1)
    cosines[4] = -2.0
    own = dict(zip(shard.item_ids, cosines.tolist(), strict=True))
    assert version == "run-1.0" and len({item.item for item in items} - {"item-04"}) == 3
    assert [item.score for item in items] == pytest.approx(sorted(own.values(), reverse=True)[:3], abs=1e-5)
    assert [item.score for item in items] == pytest.approx([own[item.item] for item in items], abs=1e-5)


def test_an_unknown_item_has_nothing_similar_and_is_not_named(recommender: Recommender) -> None:
    with pytest.raises(NotFoundError) as raised:
        recommender.similar("private-item", 3)
    assert "private-item" not in str(raised.value)


def test_a_catalogue_without_titles_is_served_without(tmp_path: Path) -> None:
    pairs = pl.DataFrame({"user": ["a", "a", "b"], "item": ["x", "y", "y"], "split": ["train"] * 3})
    write_shard(tmp_path / "shop", "shop", pairs, None)
    bare = load_shard(tmp_path / "shop")
    assert [item.title for item in TrainedRecommender(bare).for_user("b", ListRequest(5)).items] == [None]


def test_what_is_served_does_not_change_while_the_model_trains_on(shard: Shard, small: MethodSettings) -> None:
    training, recommender = make_training(shard, small), TrainedRecommender(shard)
    recommender.served = freeze("run-1.0", training)
    before = recommender.for_user("user-03", ListRequest(5)), recommender.for_basket(["item-00"], ListRequest(5))
    training.context = RoundContext(round=1, rounds=1, seed=0)
    kept = {name: value.clone() for name, value in served(recommender).model.named_parameters()}
    training.train()
    changed = [name for name, value in training.model.named_parameters() if not torch.equal(value, kept[name])]
    assert "embedding" in changed
    after = recommender.for_user("user-03", ListRequest(5)), recommender.for_basket(["item-00"], ListRequest(5))
    assert after == before
    assert freeze("run-1.1", training).ranker.items.embedding.tolist() != (
        served(recommender).ranker.items.embedding.tolist()
    )
