"""A list in another order: unlike items beside each other, or newer ones first, by weights from 0 to 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from client_service.compilation.shard import item_freshness
from client_service.data.interaction_files import load_shard, write_shard
from client_service.data.interactions import Shard
from client_service.model_store.model_files import freeze
from client_service.serving import ranking as requests
from client_service.serving.item_answers import order_by_variety, stretch
from client_service.serving.ranking import ListRequest
from client_service.serving.recommender import Recommender
from client_service.settings import ClientSettings
from client_service.training.item_trainer import ItemTrainer
from client_service.training.spectrum_cache import cached_spectrum
from shared.errors import ProtocolError
from shared.method.settings import MethodSettings
from tests.support.compiled import TrainedRecommender
from tests.support.given import Opened, Silos

ALL = 12


@pytest.fixture
def shard(silos: Silos) -> Shard:
    return load_shard(silos(1)[0])


def serving(shard: Shard, small: MethodSettings) -> Recommender:
    training = ItemTrainer(shard, cached_spectrum(shard, small.cutoff, None), small, torch.device("cpu"))
    found = TrainedRecommender(shard)
    found.served = freeze("run-1.0", training)
    return found


def timed(folder: Path, shard: Shard, times: list[int | None]) -> Shard:
    """The same shard, in which each item was met at one time."""
    events = shard.events_with_ids().with_columns(time=pl.Series([times[row] for row in shard.events["item"]]))
    write_shard(folder, shard.name, events, shard.items_with_ids())
    return load_shard(folder)


def ids(recommender: Recommender, **wishes: Any) -> list[str]:
    user = recommender._shard.user_ids[0]
    return [one.item for one in recommender.for_user(user, ListRequest(ALL, exclude_seen=False, **wishes)).items]


def naive(values: np.ndarray, likeness: np.ndarray, weight: float, count: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(count):
        rest = [place for place in range(len(values)) if place not in chosen]
        gains = [
            (1 - weight) * values[one] - weight * max((likeness[one, other] for other in chosen), default=0.0)
            for one in rest
        ]
        chosen.append(rest[int(np.argmax(gains))])
    return chosen


@given(seed=st.integers(0, 1 << 32), size=st.integers(1, 15), weight=st.sampled_from([0.0, 0.3, 0.7, 1.0]))
@settings(max_examples=60, deadline=None)
def test_each_item_has_the_highest_marginal_relevance_of_those_that_are_left(
    seed: int, size: int, weight: float
) -> None:
    generator = np.random.default_rng(seed)
    values, directions = generator.random(size), generator.standard_normal((size, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    count = int(generator.integers(1, size + 1))
    found = order_by_variety(values, directions, weight, count)
    assert found.tolist() == naive(values, directions @ directions.T, weight, count)


def test_without_weights_the_order_is_by_score_and_with_them_it_has_the_same_items(
    shard: Shard, small: MethodSettings
) -> None:
    recommender = serving(shard, small)
    plain = ids(recommender)
    varied = ids(recommender, mmr=0.9)
    assert ids(recommender, mmr=0.0) == plain != varied
    assert sorted(varied) == sorted(plain) and varied[0] == plain[0]


def test_neighbours_are_less_alike_with_more_variety(shard: Shard, small: MethodSettings) -> None:
    recommender = serving(shard, small)
    assert recommender.served is not None
    directions = recommender.served.directions

    def likeness(items: list[str]) -> float:
        rows = [row for one in items[:4] if (row := shard.item_row(one)) is not None]
        return float((directions[rows] @ directions[rows].T).sum())

    assert likeness(ids(recommender, mmr=1.0)) < likeness(ids(recommender))


def test_pages_of_a_varied_list_are_the_varied_list(shard: Shard, small: MethodSettings) -> None:
    recommender, user = serving(shard, small), shard.user_ids[0]
    whole = ids(recommender, mmr=0.6)
    pages = [
        recommender.for_user(user, ListRequest(5, exclude_seen=False, mmr=0.6, offset=offset)).items
        for offset in (0, 5, 10)
    ]
    assert [one.item for page in pages for one in page] == whole
    basket = recommender.for_basket(["item-00"], ListRequest(3, mmr=1.0))
    assert len(basket.items) == 3 and "item-00" not in [one.item for one in basket.items]


def test_only_the_pool_is_reordered(shard: Shard, small: MethodSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    recommender = serving(shard, small)
    plain = ids(recommender)
    monkeypatch.setattr(requests, "POOL", 4)
    assert sorted(ids(recommender, mmr=1.0)) == sorted(plain[:4])


def test_newer_items_come_first_as_much_as_was_asked_for(tmp_path: Path, shard: Shard, small: MethodSettings) -> None:
    times: list[int | None] = [1000 + row for row in range(ALL)]
    recommender = serving(timed(tmp_path / "timed", shard, times), small)
    assert ids(recommender, freshness=1.0) == sorted(shard.item_ids, reverse=True)
    assert ids(recommender, freshness=0.0) == ids(serving(shard, small))
    little = ids(recommender, freshness=0.3)
    newest, plain = sorted(shard.item_ids)[-3:], ids(recommender)
    assert sum(map(little.index, newest)) <= sum(map(plain.index, newest))
    unknown = recommender.for_user("nobody", ListRequest(ALL, freshness=1.0))
    assert [one.item for one in unknown.items] == sorted(shard.item_ids, reverse=True)


def test_freshness_is_the_share_of_items_that_are_no_newer(tmp_path: Path, shard: Shard) -> None:
    times: list[int | None] = [None, 5, 5, 9, *[1] * (ALL - 4)]
    found = item_freshness(timed(tmp_path / "timed", shard, times))
    assert found is not None
    assert found[:5] == pytest.approx([0.0, 10 / 11, 10 / 11, 1.0, 8 / 11])
    assert stretch(np.array([3.0, 3.0], dtype=np.float32)).tolist() == [0.0, 0.0]


def test_test_interactions_do_not_tell_when_an_item_was_met(tmp_path: Path) -> None:
    pairs = {"user": ["u", "u", "v", "v"], "item": ["a", "b", "b", "a"], "split": ["train", "train", "train", "test"]}
    events = pl.DataFrame({**pairs, "time": [9, 5, 6, 1]})
    write_shard(tmp_path / "shop", "shop", events, None)
    found = item_freshness(load_shard(tmp_path / "shop"))
    assert found is not None and found.tolist() == [1.0, 0.5]


def test_a_silo_without_times_refuses_freshness(shard: Shard, small: MethodSettings) -> None:
    recommender = serving(shard, small)
    with pytest.raises(ProtocolError, match="expected interactions with times"):
        recommender.limits(5, freshness=0.5)
    assert recommender.limits(5, freshness=0.0).depth == 5


@pytest.mark.anyio
async def test_over_http(settings: ClientSettings, opened: Opened) -> None:
    async with opened(settings) as http:
        path = "/v1/users/user-01/recommendations"
        assert (await http.get(f"{path}?mmr=0.5&k=3")).status_code == 200
        none = await http.get(f"{path}?freshness=0.5")
        assert none.status_code == 422 and "times" in none.json()["detail"]
        deep = await http.get(f"{path}?mmr=0.5&k=150&offset=51")
        assert deep.status_code == 422 and "at most 200 with mmr or freshness, got 201" in deep.json()["detail"]
        for wrong in ("mmr=1.1", "mmr=-0.1", "mmr=nan", "freshness=2"):
            assert (await http.get(f"{path}?{wrong}")).status_code == 422, wrong
        body: dict[str, Any] = {"basket": ["item-00"], "mmr": 0.5, "freshness": 0.5}
        answers: list[httpx.Response] = [await http.post("/v1/recommendations", json=body)]
        answers.append(await http.post("/v1/recommendations", json={**body, "freshness": 0}))
        assert [one.status_code for one in answers] == [422, 200]
