"""Lists of known users are exactly the trained model's; they outlive a restart, and are one model's."""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_service.compilation import item_model
from client_service.compilation import item_publisher as module
from client_service.compilation.item_publisher import ItemPublisher, fill_lists
from client_service.compiled.model import CompiledModel, MappedLists, open_model
from client_service.compiled.publication import HEAD, read_publication
from client_service.compiled.shard import open_shard
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.model_store.model_files import ServedItems, freeze
from client_service.models.initial_filter import Filter
from client_service.models.score_fusion import ChosenPart, Recipe
from client_service.runtime.interruption import NEVER, Interrupt, Interrupted
from client_service.training.item_trainer import ItemTrainer
from client_service.training.spectrum_cache import cached_spectrum
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from tests.support.compiled import list_known_users
from tests.support.given import Silos
from tests.support.new_items import write_shop
from tests.support.questions import LONGEST_SECONDS


@pytest.fixture(scope="module")
def shard(shared_silos: Silos) -> Shard:
    return load_shard(shared_silos(1)[0])


@pytest.fixture(scope="module")
def served(shard: Shard, small: MethodSettings) -> ServedItems:
    training = ItemTrainer(shard, cached_spectrum(shard, small.cutoff, None), small, torch.device("cpu"))
    return freeze("run-1.0", training)


@pytest.fixture(scope="module")
def fused(shard: Shard, small: MethodSettings) -> ServedItems:
    """A model with closed forms beside its own scores."""
    spectrum, recipe = low_spectrum(shard.train, small.cutoff), Recipe((ChosenPart("filter", 10.0, 1.0),))
    method = small.model_copy(update={"fusion": True})
    training = ItemTrainer(shard, spectrum, method, torch.device("cpu"), Filter(8, 0.4, 0.3), recipe=recipe)
    return freeze("run-1.0", training)


@pytest.fixture(autouse=True)
def blocks(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two users, each of which is settled."""
    monkeypatch.setattr(module, "BLOCK", 2 * len(shard.item_ids))
    monkeypatch.setattr(module, "FLUSH_SECONDS", 0.0)


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


def test_published_lists_are_the_model_s_own(publisher: ItemPublisher, shard: Shard, served: ServedItems) -> None:
    model = publisher.serve_model(served)
    assert model is not None
    finish(publisher)
    exact = list_known_users(served, shard, model.head.length)
    assert model.lists_ready == len(shard.user_ids)
    for row, (items, scores) in enumerate(listed(model, shard)):
        assert items == exact.items[row].tolist()
        np.testing.assert_allclose(scores, exact.scores[row], rtol=1e-5)


def test_the_first_items_of_each_list_are_kept_apart_and_a_folder_without_them_is_read(
    publisher: ItemPublisher, shard: Shard, served: ServedItems, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_model, "FIRST", 3)
    model = publisher.serve_model(served)
    assert model is not None
    assert model.first_of(len(shard.user_ids) - 1) is None or model.lists_ready == len(shard.user_ids)
    finish(publisher)
    for row, (items, scores) in enumerate(listed(model, shard)):
        first = model.first_of(row)
        assert first is not None and (first[0].tolist(), first[1].tolist()) == (items[:3], scores[:3])
    published = read_publication(publisher._serving)
    assert published is not None and published.model is not None
    folder = publisher._serving / published.model
    head = json.loads((folder / HEAD).read_text())
    del head["first"], head["sizes"]["list-first-items"], head["sizes"]["list-first-scores"]
    (folder / HEAD).write_text(json.dumps(head))
    earlier = open_model(folder, publisher.compiled)
    for row, (items, scores) in enumerate(listed(model, shard)):
        found = earlier.first_of(row)
        assert found is not None and (found[0].tolist(), found[1].tolist()) == (items, scores)


def test_another_process_reads_what_is_published(
    publisher: ItemPublisher, shard: Shard, served: ServedItems, tmp_path: Path
) -> None:
    publisher.publish_shard()
    serving = tmp_path / "serving"
    alone = read_publication(serving)
    assert alone is not None and alone.model is None and open_shard(serving / alone.shard).digest == shard.digest
    own = publisher.serve_model(served)
    found = read_publication(serving)
    assert own is not None and found is not None and found.model is not None and found.version == "run-1.0"
    other = open_model(serving / found.model, open_shard(serving / found.shard))
    finish(publisher)  # the other sees the lists come
    assert listed(other, shard) == listed(own, shard) and other.lists_ready == len(shard.user_ids)
    publisher.serve_model(None)
    assert read_publication(serving) == alone
    assert sorted(path.name for path in serving.iterdir()) == sorted([alone.shard, "current.json"])
    assert listed(other, shard) == listed(own, shard)  # what is mapped stays


def test_lists_that_are_there_are_not_computed_again_after_a_restart(
    publisher: ItemPublisher, shard: Shard, served: ServedItems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.serve_model(served)
    finish(publisher)
    again = ItemPublisher(shard, tmp_path / "serving", 1)
    again.publish_shard()
    published = read_publication(tmp_path / "serving")
    assert published is not None and published.model is not None  # it answers until the trainer has read its own
    monkeypatch.setattr(module, "_known_items", lambda *_: pytest.fail("the lists are there"))
    model = again.serve_model(served)
    finish(again)
    assert model is not None and model.lists_ready == len(shard.user_ids)


def test_a_model_of_other_users_has_lists_of_its_own(
    publisher: ItemPublisher, shard: Shard, served: ServedItems
) -> None:
    first = publisher.serve_model(served)
    finish(publisher)
    turned = np.arange(len(shard.user_ids))[::-1]
    other = replace(served, ranker=replace(served.ranker, users=served.ranker.users[turned]))
    second = publisher.serve_model(other)
    finish(publisher)
    assert first is not None and second is not None
    exact = list_known_users(other, shard, second.head.length)
    assert [items for items, _ in listed(second, shard)] == exact.items.tolist()
    assert listed(first, shard) != listed(second, shard)


def test_work_that_was_cut_off_goes_on_where_it_was(shard: Shard, served: ServedItems) -> None:
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


@pytest.fixture
def slow_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a catalogue so large that answers do not wait until a form is chosen."""
    monkeypatch.setattr(item_model, "FEW_ITEMS", 0)
    monkeypatch.setattr(item_model, "ENTRIES", (4, 8))
    monkeypatch.setattr(item_model, "LEAST_JUDGING", 2)
    monkeypatch.setattr(item_model, "NO_WORSE", -1.0)  # the first form is good enough


@pytest.mark.usefixtures("slow_choice")
def test_a_model_answers_by_its_own_scores_until_its_form_is_chosen(
    publisher: ItemPublisher, shard: Shard, fused: ServedItems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place, go, chosen = list[CompiledModel](), threading.Event(), item_model.choose_form
    monkeypatch.setattr(item_model, "choose_form", lambda builder: go.wait(LONGEST_SECONDS) and chosen(builder))
    publisher.replace_model = put_in_place.append
    at_once = publisher.serve_model(fused)
    first = read_publication(tmp_path / "serving")
    assert at_once is not None and at_once.head.form == "exact" and not put_in_place
    go.set()
    finish(publisher)
    second = read_publication(tmp_path / "serving")
    [after] = put_in_place
    assert first is not None and second is not None and first.model != second.model and first.version == second.version
    assert after.head.form == "truncated" and after.lists_ready == len(shard.user_ids)
    exact = list_known_users(fused, shard, after.head.length)
    assert [items for items, _ in listed(after, shard)] == exact.items.tolist()

    monkeypatch.setattr(item_model, "choose_form", lambda _: pytest.fail("the form is chosen"))
    again = ItemPublisher(shard, tmp_path / "serving", 1)  # a restart
    again.publish_shard()
    model = again.serve_model(fused)
    finish(again)
    assert model is not None and model.head == after.head and read_publication(tmp_path / "serving") == second


@pytest.mark.usefixtures("slow_choice")
def test_new_items_are_compiled_once_a_model_and_the_first_one_answers_before(
    tmp_path: Path, small: MethodSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, compiled, real = load_shard(write_shop(tmp_path / "shop")), list[str](), item_model.compile_cold_items

    def compile_counted(served: ServedItems, *given: Any) -> Any:
        compiled.append(served.version)
        return real(served, *given)

    for place in (item_model, module):
        monkeypatch.setattr(place, "compile_cold_items", compile_counted)
    recipe = Recipe((ChosenPart("filter", 10.0, 1.0),))
    method = small.model_copy(update={"fusion": True})
    spectrum = low_spectrum(shop.train, small.cutoff)
    training = ItemTrainer(shop, spectrum, method, torch.device("cpu"), Filter(8, 0.4, 0.3), recipe=recipe)
    publisher = ItemPublisher(shop, tmp_path / "serving", 1)
    go, chosen, put_in_place = threading.Event(), item_model.choose_form, list[CompiledModel]()
    monkeypatch.setattr(item_model, "choose_form", lambda builder: go.wait(LONGEST_SECONDS) and chosen(builder))
    publisher.replace_model = put_in_place.append
    first = publisher.serve_model(freeze("run-1.0", training))
    assert first is not None and first.cold is None and "new items get their places" in first.head.why
    assert not compiled
    go.set()
    finish(publisher)
    assert compiled == ["run-1.0"] and put_in_place[0].cold is not None
    second = publisher.serve_model(freeze("run-1.1", training))
    assert second is not None and second.cold is not None and second.head.form == "exact"
    finish(publisher)
    assert compiled == ["run-1.0", "run-1.1"] and put_in_place[1].cold is not None


@pytest.mark.usefixtures("slow_choice")
def test_a_form_that_cannot_be_chosen_leaves_the_published_one_with_its_lists(
    publisher: ItemPublisher, shard: Shard, fused: ServedItems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(builder: item_model.FormBuilder) -> item_model.ChosenForm:
        raise np.linalg.LinAlgError(f"expected a definite matrix of {builder.served.version}")

    monkeypatch.setattr(item_model, "choose_form", fail)
    model = publisher.serve_model(fused)
    published = read_publication(tmp_path / "serving")
    finish(publisher)
    assert model is not None and model.head.form == "exact" and model.lists_ready == len(shard.user_ids)
    assert read_publication(tmp_path / "serving") == published


def test_rows_of_lists_reach_the_disk_before_their_number(
    shard: Shard, served: ServedItems, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists, seen = no_lists(shard, 3), list[int]()
    monkeypatch.setattr(module, "_flush", lambda *arrays: seen.append(int(lists.ready[0])) if len(arrays) > 1 else None)
    fill_lists(served.ranker, lists, shard, NEVER, 1)
    assert seen == list(range(0, len(shard.user_ids), 2)), "each number follows the rows that it counts"


@pytest.mark.usefixtures("slow_choice")
def test_a_model_that_is_taken_up_ends_the_choice_for_the_one_before(
    publisher: ItemPublisher, fused: ServedItems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, put_in_place, chosen = threading.Event(), list[CompiledModel](), item_model.choose_form

    def choose(builder: item_model.FormBuilder) -> item_model.ChosenForm:
        if builder.served.version == "run-1.1":
            begun.set()
            while True:  # until another model is taken up
                builder.interrupt.check()
                time.sleep(0.001)
        return chosen(builder)

    monkeypatch.setattr(item_model, "choose_form", choose)
    publisher.replace_model = put_in_place.append
    publisher.serve_model(replace(fused, version="run-1.1"))
    assert begun.wait(LONGEST_SECONDS)
    publisher.serve_model(replace(fused, version="run-1.2"))
    finish(publisher)
    assert [model.version for model in put_in_place] == ["run-1.2"]
    published = read_publication(tmp_path / "serving")
    assert published is not None and published.version == "run-1.2"


@pytest.mark.usefixtures("slow_choice")
def test_a_form_that_is_chosen_late_takes_nothing_from_the_next_shard(
    publisher: ItemPublisher, shard: Shard, fused: ServedItems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refresh compiles the next shard while the model before is still being compiled: its folder stays."""
    go, chosen = threading.Event(), item_model.choose_form
    monkeypatch.setattr(item_model, "choose_form", lambda builder: go.wait(LONGEST_SECONDS) and chosen(builder))
    publisher.serve_model(fused)
    later = ItemPublisher(replace(shard, name="later"), tmp_path / "serving", 1)
    go.set()
    finish(publisher)
    later.publish_shard()
    found = read_publication(tmp_path / "serving")
    assert found is not None and open_shard(tmp_path / "serving" / found.shard).head.name == "later"


def test_the_memory_of_a_model_is_returned_once_nothing_refers_to_it(
    publisher: ItemPublisher, served: ServedItems, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, dropped, gone = [replace(served, version="run-1.1")], threading.Event(), list[bool]()
    known = weakref.ref(own[0])
    monkeypatch.setattr(module, "fill_lists", lambda *_: dropped.wait(LONGEST_SECONDS))
    monkeypatch.setattr(module, "return_free_memory", lambda: gone.append(known() is None))
    publisher.serve_model(own.pop())
    dropped.set()
    finish(publisher)
    assert gone == [True]
