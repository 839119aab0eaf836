"""Lists that were computed ahead are those that would be computed now; they outlive a restart, and are one model's."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from client_service.compilation.shard import compile_in_memory
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.model_store.model_files import Served, freeze
from client_service.models.ranker import Ranker
from client_service.runtime.interruption import NEVER, Interrupt, Interrupted
from client_service.serving import precomputed_lists as module
from client_service.serving.precomputed_lists import ListBuilder, fill, lists_digest, open_lists
from client_service.serving.recommender import Recommender
from client_service.serving.requests import ListRequest
from client_service.training.item_trainer import ItemTrainer
from client_service.training.spectrum_cache import cached_spectrum
from shared.method.settings import MethodSettings
from tests.support.given import Silos
from tests.support.questions import LONGEST_SECONDS


@pytest.fixture(scope="module")
def shard(shared_silos: Silos) -> Shard:
    return load_shard(shared_silos(1)[0])


@pytest.fixture(scope="module")
def served(shard: Shard, small: MethodSettings) -> Served:
    training = ItemTrainer(shard, cached_spectrum(shard, small.cutoff, None), small, torch.device("cpu"))
    return freeze("run-1.0", training)


@pytest.fixture
def ranker(served: Served) -> Ranker:
    return served.ranker


@pytest.fixture(autouse=True)
def blocks(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two users, each of which is settled."""
    monkeypatch.setattr(module, "BLOCK", 2 * len(shard.item_ids))
    monkeypatch.setattr(module, "SETTLED", 1)


def listed(folder: Path, shard: Shard, served: Served) -> tuple[Recommender, Recommender]:
    """One that has its lists, and one that computes each."""
    ahead, computing = (
        Recommender(compile_in_memory(shard), ListBuilder(folder, shard)),
        Recommender(compile_in_memory(shard)),
    )
    ahead.served = computing.served = served
    until = time.monotonic() + LONGEST_SECONDS
    while ahead.lists_share < 1.0:
        assert time.monotonic() < until
        time.sleep(0.005)
    return ahead, computing


@pytest.mark.parametrize("k", [1, 5, 1000])
@pytest.mark.parametrize("excluded", [[], ["item-00", "item-07"]])
def test_a_looked_up_list_is_the_one_that_would_be_computed(
    tmp_path: Path, shard: Shard, served: Served, k: int, excluded: list[str]
) -> None:
    ahead, computing = listed(tmp_path, shard, served)
    limits = ahead.limits(k, True, None, excluded)
    for user in shard.user_ids:
        looked_up, computed = ahead.at_once(user, limits), computing.for_user(user, limits)
        assert looked_up is not None
        assert [one.item for one in looked_up.items] == [one.item for one in computed.items]
        assert np.allclose([one.score for one in looked_up.items], [one.score for one in computed.items])
    ahead.close()


def test_what_a_list_does_not_reach_is_computed(
    tmp_path: Path, shard: Shard, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen items are in no list, and a list that exclusions cut short is not an answer."""
    monkeypatch.setattr(module, "LENGTH", 3)
    ahead, computing = listed(tmp_path, shard, served)
    user = shard.user_ids[3]
    first = [one.item for one in computing.for_user(user, ListRequest(1)).items]
    for limits in (ListRequest(4), ListRequest(2, exclude_seen=False), ahead.limits(3, True, None, first)):
        assert ahead.at_once(user, limits) is None
        assert [one.item for one in ahead.for_user(user, limits).items] == [
            one.item for one in computing.for_user(user, limits).items
        ]
    assert ahead.at_once(user, ahead.limits(2, True, None, first)) is not None
    ahead.close()


def test_a_batch_is_answered_in_its_order_looked_up_or_computed(tmp_path: Path, shard: Shard, served: Served) -> None:
    ahead, computing = listed(tmp_path, shard, served)
    assert ahead._keeper is not None and ahead._keeper.lists is not None
    ahead._keeper.lists.ready = 3
    users = (*reversed(shard.user_ids), "nobody")
    answers = ahead.for_users(users, ListRequest(4))
    assert [one.user for one in answers] == [*users] and answers[-1].fallback == "unknown user"
    for user, answer in zip(users, answers, strict=True):
        assert [one.item for one in answer.items] == [
            one.item for one in computing.for_user(user, ListRequest(4)).items
        ]
    ahead.close()


def test_work_that_was_cut_off_goes_on_where_it_was(tmp_path: Path, shard: Shard, ranker: Ranker) -> None:
    class AfterTwo(Interrupt):
        looks = 0

        def check(self) -> None:
            self.looks += 1
            if self.looks > 2:
                raise Interrupted

    lists, progress = open_lists(tmp_path, ranker, shard)
    with pytest.raises(Interrupted):
        fill(lists, shard, AfterTwo(), 1, progress)
    assert lists.ready == 4
    again, progress = open_lists(tmp_path, ranker, shard)
    assert again.ready == 4 and np.array_equal(again.items[:4], lists.items[:4])
    before = again.items[:4].copy()
    again.items[0, 0] = 7  # what is there is not computed again
    fill(again, shard, NEVER, 2, progress)
    assert again.ready == len(shard.user_ids) and again.items[0, 0] == 7
    assert np.array_equal(again.items[1:4], before[1:4])


def test_lists_of_another_model_or_with_damaged_progress_are_computed_anew(
    tmp_path: Path, shard: Shard, ranker: Ranker
) -> None:
    lists, progress = open_lists(tmp_path, ranker, shard)
    fill(lists, shard, NEVER, 1, progress)
    assert open_lists(tmp_path, ranker, shard)[0].ready == len(shard.user_ids)
    progress.write_text('{"rows": 99', encoding="utf-8")
    assert open_lists(tmp_path, ranker, shard)[0].ready == 0
    other = replace(ranker, users=replace(ranker.users, embedding=ranker.users.embedding * np.float32(1.01)))
    assert lists_digest(other, shard) != lists_digest(ranker, shard)
    assert open_lists(tmp_path, other, shard)[0].ready == 0
    assert len({path.name.split(".")[0] for path in tmp_path.glob("lists-*")}) == 1  # the old ones are gone


def test_another_model_ends_the_lists_of_the_one_before(
    tmp_path: Path, shard: Shard, small: MethodSettings, served: Served
) -> None:
    """No list of the old model is given out under the new one's version."""
    ahead, _ = listed(tmp_path, shard, served)
    training = ItemTrainer(shard, cached_spectrum(shard, small.cutoff, None), small, torch.device("cpu"))
    with torch.no_grad():
        training.model.encoder.embedding.neg_()
    ahead.served = freeze("run-1.1", training)
    expected = Recommender(compile_in_memory(shard))
    expected.served = ahead.served
    user, until = shard.user_ids[0], time.monotonic() + LONGEST_SECONDS
    while (found := ahead.at_once(user, ListRequest(5))) is None:
        assert time.monotonic() < until
    assert found.model == "run-1.1"
    assert [one.item for one in found.items] == [one.item for one in expected.for_user(user, ListRequest(5)).items]
    ahead.close()
