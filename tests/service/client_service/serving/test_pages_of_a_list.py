"""A list page by page is the whole list: nothing twice, nothing missing, however each page is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.compilation import item_model
from client_service.compilation.shard import compile_in_memory
from client_service.compiled.model import LENGTH
from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.event_log.messages import InteractionIn
from client_service.event_log.overlay import Overlay
from client_service.event_log.store import EventStore
from client_service.model_store.model_files import ServedItems, freeze
from client_service.serving.ranking import DEEPEST, ListRequest
from client_service.serving.recommender import Recommender
from client_service.training.item_trainer import ItemTrainer
from client_service.training.spectrum_cache import cached_spectrum
from shared.method.settings import MethodSettings
from tests.support.compiled import TrainedRecommender

ITEMS, USERS = 900, 150
WAYS = ["looked up", "computed", "trained", "rescored"]


@pytest.fixture(scope="module")
def shard() -> Shard:
    """Of 480 items every 40 have the same users, so that their scores are equal; the others have hardly any."""
    generator = np.random.default_rng(0)
    taste = np.repeat(generator.random((USERS, 12)) < 0.4, 40, axis=1)
    train = np.concatenate([taste, generator.random((USERS, ITEMS - taste.shape[1])) < 0.02], axis=1)
    train[:, 0] = True
    held_out = (generator.random(train.shape) < 0.02) & ~train
    users, items = ([f"{kind}-{row:03}" for row in range(n)] for kind, n in (("user", USERS), ("item", ITEMS)))
    parts = (train, held_out, np.zeros_like(train))
    return build_shard_from_matrices(
        "shop", users, items, [sparse.csr_array(part.astype(np.float64)) for part in parts]
    )


@pytest.fixture(scope="module")
def models(shard: Shard) -> dict[str, ServedItems]:
    """As training begins, and with an MLP that tells items apart."""
    method = MethodSettings(width=64, cutoff=64)
    frozen = freeze("run-1.0", ItemTrainer(shard, cached_spectrum(shard, 64, None), method, torch.device("cpu")))
    ranker, generator = frozen.ranker, np.random.default_rng(1)
    output = generator.standard_normal(ranker.predictor.output.shape).astype(np.float32)
    trained = replace(ranker, predictor=replace(ranker.predictor, output=0.1 * output))
    return {
        "looked up": frozen,
        "computed": frozen,
        "trained": replace(frozen, ranker=trained),
        "rescored": replace(frozen, ranker=trained),
    }


@pytest.fixture
def recommender(
    request: pytest.FixtureRequest,
    shard: Shard,
    models: dict[str, ServedItems],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Recommender]:
    """One that has its lists, and one that has none; a user has done something since."""
    way, store = request.param, EventStore(tmp_path)
    if way == "rescored":
        options = [item_model.Option("rescored", 200), item_model.EXACT]
        monkeypatch.setattr(item_model.FormBuilder, "options", lambda _: options)
        monkeypatch.setattr(item_model, "NO_WORSE", -1.0)
    overlay = Overlay(compile_in_memory(shard), store)
    told = InteractionIn(event="e", user=shard.user_ids[2], item="item-600", time=None, rating=None)
    seen = InteractionIn(event="f", user=shard.user_ids[3], item="item-601", time=None, rating=1.0)
    overlay.add_interactions(store.append([told, seen]))
    made = TrainedRecommender(shard, overlay, lists=way != "computed")
    made.served = models[way]
    assert made.model is not None and (way != "rescored" or made.model.form == "rescored")
    yield made
    store.close()


def read_pages(recommender: Recommender, user: str, limits: ListRequest, size: int) -> tuple[list[str], list[float]]:
    """All pages of a list, one after the other, some with reasons of their own to be computed."""
    found: list[tuple[str, float]] = []
    for offset in range(0, DEEPEST - size + 1, size):
        page = replace(limits, k=size, offset=offset)
        answer = recommender.answer_by_lookup(user, page) or recommender.recommend_users((user, "user-007"), page)[0]
        found += [(one.item, one.score) for one in answer.items]
    return [item for item, _ in found], [score for _, score in found]


@pytest.mark.parametrize("recommender", WAYS, indirect=True)
@pytest.mark.parametrize("size", [25, 90])
def test_no_page_repeats_or_passes_over_an_item(recommender: Recommender, shard: Shard, size: int) -> None:
    """With and without filters, of users with and without later interactions, with and without what they have met."""
    odd = list(shard.item_ids[1::2])
    later = {2: {"item-600"}, 3: {"item-601"}}
    for row in (0, 2, 3):
        user, known = shard.user_ids[row], {shard.item_ids[one] for one in shard.known_pairs[[row]].indices}
        known |= later.get(row, set())
        cases = (
            (recommender.limits(1, raw=True), set(shard.item_ids) - known),
            (recommender.limits(1, True, None, odd, raw=True), set(shard.item_ids) - known - {*odd}),
            (recommender.limits(1, True, odd[:240], raw=True), set(odd[:240]) - known),
            (recommender.limits(1, False, raw=True), set(shard.item_ids)),
        )
        for limits, expected in cases:
            items, scores = read_pages(recommender, user, limits, size)
            assert len(expected) > 100 and len(items) == len({*items}) and {*items} == expected
            assert np.all(np.diff(scores) <= 0)
            whole = recommender.for_user(user, replace(limits, k=DEEPEST))
            assert [one.item for one in whole.items] == items


def test_of_equal_scores_the_first_id_comes_first(shard: Shard, models: dict[str, ServedItems]) -> None:
    """Equal scores are equal to the last bit."""
    recommender = TrainedRecommender(shard)
    recommender.served = models["trained"]
    tied = 0
    for user in shard.user_ids[:6]:
        items = recommender.for_user(user, ListRequest(LENGTH, raw=True)).items
        rows = [shard.item_row(one.item) or 0 for one in items]
        for (one, first), (other, second) in pairwise(zip(items, rows, strict=True)):
            assert one.score > other.score or first < second
            tied += one.score == other.score
    assert tied > 0
