"""Lists of known users are exactly the trained model's; they outlive a restart, and are one model's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from client_service.compilation import item_publisher as module
from client_service.compilation.item_publisher import ItemPublisher, fill_lists
from client_service.compiled.model import CompiledModel, MappedLists, open_model
from client_service.compiled.publication import read_publication
from client_service.compiled.shard import open_shard
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.model_store.model_files import Served, freeze
from client_service.runtime.interruption import NEVER, Interrupt, Interrupted
from client_service.training.item_trainer import ItemTrainer
from client_service.training.spectrum_cache import cached_spectrum
from shared.method.settings import MethodSettings
from tests.support.compiled import list_known_users
from tests.support.given import Silos


@pytest.fixture(scope="module")
def shard(shared_silos: Silos) -> Shard:
    return load_shard(shared_silos(1)[0])


@pytest.fixture(scope="module")
def served(shard: Shard, small: MethodSettings) -> Served:
    training = ItemTrainer(shard, cached_spectrum(shard, small.cutoff, None), small, torch.device("cpu"))
    return freeze("run-1.0", training)


@pytest.fixture(autouse=True)
def blocks(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two users, each of which is settled."""
    monkeypatch.setattr(module, "BLOCK", 2 * len(shard.item_ids))
    monkeypatch.setattr(module, "SETTLED", 1)


@pytest.fixture
def publisher(tmp_path: Path, shard: Shard) -> Iterator[ItemPublisher]:
    made = ItemPublisher(shard, tmp_path / "serving", 1)
    yield made
    made.close()


def no_lists(shard: Shard, width: int) -> MappedLists:
    shape = len(shard.user_ids), width
    return MappedLists(np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(1, np.int64))


def finish(publisher: ItemPublisher) -> None:
    publisher._job.join()


def listed(model: CompiledModel, shard: Shard) -> list[tuple[list[int], list[float]]]:
    found = [model.list_of(row) for row in range(len(shard.user_ids))]
    return [(one[0].tolist(), one[1].tolist()) for one in found if one is not None]


def test_published_lists_are_the_model_s_own(publisher: ItemPublisher, shard: Shard, served: Served) -> None:
    model = publisher.take_up(served)
    assert model is not None
    finish(publisher)
    exact = list_known_users(served, shard, model.head.length)
    assert model.lists_ready == len(shard.user_ids)
    for row, (items, scores) in enumerate(listed(model, shard)):
        assert items == exact.items[row].tolist()
        np.testing.assert_allclose(scores, exact.scores[row], rtol=1e-5)


def test_another_process_reads_what_is_published(
    publisher: ItemPublisher, shard: Shard, served: Served, tmp_path: Path
) -> None:
    publisher.publish_shard()
    serving = tmp_path / "serving"
    alone = read_publication(serving)
    assert alone is not None and alone.model is None and open_shard(serving / alone.shard).digest == shard.digest
    own = publisher.take_up(served)
    found = read_publication(serving)
    assert own is not None and found is not None and found.model is not None and found.version == "run-1.0"
    other = open_model(serving / found.model, open_shard(serving / found.shard))
    finish(publisher)  # the other sees the lists come
    assert listed(other, shard) == listed(own, shard) and other.lists_ready == len(shard.user_ids)
    publisher.take_up(None)
    assert read_publication(serving) == alone
    assert sorted(path.name for path in serving.iterdir()) == sorted([alone.shard, "current.json"])
    assert listed(other, shard) == listed(own, shard)  # what is mapped stays


def test_lists_that_are_there_are_not_computed_again_after_a_restart(
    publisher: ItemPublisher, shard: Shard, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.take_up(served)
    finish(publisher)
    again = ItemPublisher(shard, tmp_path / "serving", 1)
    again.publish_shard()
    published = read_publication(tmp_path / "serving")
    assert published is not None and published.model is not None  # it answers until the trainer has read its own
    monkeypatch.setattr(module, "_known_items", lambda *_: pytest.fail("the lists are there"))
    model = again.take_up(served)
    finish(again)
    assert model is not None and model.lists_ready == len(shard.user_ids)


def test_a_model_of_other_users_has_lists_of_its_own(publisher: ItemPublisher, shard: Shard, served: Served) -> None:
    first = publisher.take_up(served)
    finish(publisher)
    turned = np.arange(len(shard.user_ids))[::-1]
    other = replace(served, ranker=replace(served.ranker, users=served.ranker.users[turned]))
    second = publisher.take_up(other)
    finish(publisher)
    assert first is not None and second is not None
    exact = list_known_users(other, shard, second.head.length)
    assert [items for items, _ in listed(second, shard)] == exact.items.tolist()
    assert listed(first, shard) != listed(second, shard)


def test_work_that_was_cut_off_goes_on_where_it_was(shard: Shard, served: Served) -> None:
    class AfterTwo(Interrupt):
        looks = 0

        def check(self) -> None:
            self.looks += 1
            if self.looks > 2:
                raise Interrupted

    lists = no_lists(shard, 5)
    with pytest.raises(Interrupted):
        fill_lists(served.ranker, lists, shard, AfterTwo(), 1)
    assert lists.ready[0] == 4
    lists.items[0, 0] = 7  # what is there is not computed again
    fill_lists(served.ranker, lists, shard, NEVER, 2)
    assert lists.ready[0] == len(shard.user_ids) and lists.items[0, 0] == 7
    exact = list_known_users(served, shard, 5)
    assert np.array_equal(lists.items[1:], exact.items[1:])
