"""The graph over items: the lists it leads to are scored exactly, hold nothing excluded, and are nearly the best."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from client_service.compilation.shard import compile_in_memory
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.model_store.model_files import Served, freeze
from client_service.models.ranker import Predictor, Ranker, Side
from client_service.models.score_fusion import Fusion
from client_service.runtime.interruption import NEVER, Interrupt, Interrupted
from client_service.serving import ann_index, precomputed_lists, ranking
from client_service.serving.ann_index import Nearest, lengthened, load_nearest, make_nearest, searchable
from client_service.serving.precomputed_lists import ListBuilder, ListReader
from client_service.serving.recommender import Recommender
from client_service.serving.requests import ListRequest
from client_service.training.item_trainer import ItemTrainer
from client_service.training.spectrum_cache import cached_spectrum
from shared.method.settings import MethodSettings
from tests.support.given import Silos
from tests.support.questions import LONGEST_SECONDS

ITEMS, USERS, WIDTH = 3000, 40, 16
PROMISED = 0.9  # of docs/operations.md, for small catalogues
NOTHING = np.zeros((0, 0), dtype=np.float32)
NO_MLP = Predictor(NOTHING, np.zeros(0, dtype=np.float32), np.float32(0.5))
extra = pytest.mark.skipif(not ann_index.installed(), reason="the extra `approximate` is not installed")


def planted() -> Ranker:
    """Thirty clusters, items of unequal length."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((30, WIDTH))
    users = centres[random.integers(30, size=USERS)] + 0.3 * random.standard_normal((USERS, WIDTH))
    items = centres[random.integers(30, size=ITEMS)] + 0.3 * random.standard_normal((ITEMS, WIDTH))
    items *= random.uniform(0.5, 2.0, (ITEMS, 1))
    bare = [Side(one.astype(np.float32), NOTHING, NOTHING) for one in (users, items)]
    return Ranker(bare[0], bare[1], NO_MLP, residual=True)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Nearest:
    made = make_nearest(tmp_path_factory.mktemp("model"), planted(), NEVER, 1)
    assert made is not None
    return made


@extra
@pytest.mark.parametrize("k", [20, 100])
def test_most_of_the_best_are_found_and_their_scores_are_exact(graph: Nearest, k: int) -> None:
    ranker, excluded = graph.ranker, np.zeros((USERS, ITEMS), dtype=bool)
    found = graph.top_scored(ranker.users, excluded, k)
    assert found is not None
    exact, _ = ranker.top_scored(ranker.users, excluded, k)
    rows, scores = found
    assert np.mean([len({*a} & {*b}) / k for a, b in zip(rows.tolist(), exact.tolist(), strict=True)]) >= PROMISED
    every = ranker.users.embedding @ ranker.items.embedding.T + ranker.predictor.bias
    assert np.allclose(scores, np.take_along_axis(every, rows, 1), atol=1e-5)
    assert (np.diff(scores, axis=1) <= 0).all() and all(len({*row}) == k for row in rows.tolist())


@extra
def test_what_is_excluded_is_in_no_list_and_the_next_ones_take_its_place(graph: Nearest) -> None:
    ranker, nothing = graph.ranker, np.zeros((USERS, ITEMS), dtype=bool)
    best, _ = ranker.top_scored(ranker.users, nothing, 30)
    excluded = nothing.copy()
    np.put_along_axis(excluded, best, True, axis=1)
    found = graph.top_scored(ranker.users, excluded, 20)
    assert found is not None and not np.take_along_axis(excluded, found[0], 1).any()
    exact, _ = ranker.top_scored(ranker.users, excluded, 20)
    shares = [len({*a} & {*b}) / 20 for a, b in zip(found[0].tolist(), exact.tolist(), strict=True)]
    assert np.mean(shares) >= PROMISED


@extra
def test_where_filters_leave_too_few_there_is_no_answer(graph: Nearest) -> None:
    users, allowed = graph.ranker.users, np.ones((USERS, ITEMS), dtype=bool)
    allowed[:, :50] = False  # a list of what is allowed
    assert graph.top_scored(users, allowed, 20) is None
    assert graph.top_scored(users, np.zeros((USERS, ITEMS), dtype=bool), ITEMS) is None


@extra
@pytest.mark.parametrize("users", [1, 3])
def test_a_search_that_finds_too_few_is_no_answer(tmp_path: Path, users: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where parts of a graph are not connected; here because the items are fewer than is asked for."""
    graph = make_nearest(tmp_path, planted(), NEVER, 1)
    assert graph is not None
    asked = graph.ranker.users.embedding[:users]
    assert graph.find(asked, ITEMS + 1) is None
    found = graph.find(asked, 7)
    assert found is not None and found.shape == (users, 7)
    monkeypatch.setattr(graph, "find", lambda *_: None)
    assert graph.top_scored(graph.ranker.users, np.zeros((USERS, ITEMS), dtype=bool), 20) is None


def test_only_inner_products_are_searched() -> None:
    ranker = planted()
    with_mlp = Predictor(NOTHING, np.ones(4, dtype=np.float32), np.float32(0.0))
    assert searchable(ranker)
    assert not searchable(replace(ranker, predictor=with_mlp)) and not searchable(replace(ranker, residual=False))
    assert not searchable(replace(ranker, fusion=Fusion(((1.0, object()),))))  # type: ignore[arg-type]


def test_angles_to_lengthened_items_are_ordered_as_inner_products() -> None:
    items = planted().items.embedding
    longer = lengthened(items)
    lengths = np.linalg.norm(longer, axis=1)
    assert np.allclose(lengths, lengths[0], rtol=1e-5) and np.array_equal(longer[:, :-1], items)


@extra
def test_building_that_was_cut_off_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class AfterThree(Interrupt):
        looks = 0

        def check(self) -> None:
            self.looks += 1
            if self.looks > 3:
                raise Interrupted

    monkeypatch.setattr(ann_index, "BLOCK", 500)
    monkeypatch.setattr(ann_index, "SETTLED", 1)
    ranker, after = planted(), AfterThree()
    with pytest.raises(Interrupted):
        make_nearest(tmp_path, ranker, after, 1)
    assert load_nearest(tmp_path, ranker) is None  # half a graph is none
    again = AfterThree()
    assert make_nearest(tmp_path, ranker, again, 1) is not None and again.looks == 3  # of six blocks
    assert [path.suffix for path in tmp_path.iterdir()] == [".usearch"]


@extra
def test_a_graph_is_one_model_s_and_a_damaged_one_is_built_again(tmp_path: Path) -> None:
    ranker = planted()
    assert make_nearest(tmp_path, ranker, NEVER, 1) is not None
    items = replace(ranker.items, embedding=ranker.items.embedding * np.float32(1.5))
    other = replace(ranker, items=items)
    assert load_nearest(tmp_path, other) is None and make_nearest(tmp_path, other, NEVER, 1) is not None
    (file,) = tmp_path.iterdir()  # the old one is gone
    file.write_bytes(b"damaged")
    assert load_nearest(tmp_path, other) is None
    assert make_nearest(tmp_path, other, NEVER, 1) is not None and load_nearest(tmp_path, other) is not None


def test_without_the_library_every_item_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ann_index, "installed", lambda: False)
    assert make_nearest(tmp_path, planted(), NEVER, 1) is None and load_nearest(tmp_path, planted()) is None


@pytest.fixture(scope="module")
def shard(shared_silos: Silos) -> Shard:
    return load_shard(shared_silos(1, users=20, items=150)[0])


@pytest.fixture(scope="module")
def served(shard: Shard, small: MethodSettings) -> Served:
    """One whose scores are inner products."""
    training = ItemTrainer(shard, cached_spectrum(shard, small.cutoff, None), small, torch.device("cpu"))
    frozen = freeze("run-1.0", training)
    return replace(frozen, ranker=replace(frozen.ranker, predictor=NO_MLP, fusion=Fusion()))


def wait_for(question: Callable[[], bool]) -> None:
    until = time.monotonic() + LONGEST_SECONDS
    while not question():
        assert time.monotonic() < until
        time.sleep(0.01)


@extra
def test_the_service_answers_by_the_graph_beyond_the_threshold_alone(
    tmp_path: Path, shard: Shard, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precomputed_lists, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(ranking, "LENGTH", 5)
    asked: list[int] = []
    search = Nearest.find

    def find(self: Nearest, users: np.ndarray, count: int) -> np.ndarray | None:
        asked.append(count)
        return search(self, users, count)

    monkeypatch.setattr(Nearest, "find", find)
    below = Recommender(
        compile_in_memory(shard), ListBuilder(tmp_path / "b", shard, approximate_beyond=len(shard.item_ids))
    )
    beyond = Recommender(
        compile_in_memory(shard), ListBuilder(tmp_path / "a", shard, approximate_beyond=len(shard.item_ids) - 1)
    )
    reader = Recommender(compile_in_memory(shard), ListReader(tmp_path / "a", shard, approximate_beyond=1))
    for one in (below, beyond, reader):
        one.served = served
        wait_for(lambda one=one: one.lists_share == 1.0)
    basket = [shard.item_ids[row] for row in (1, 2, 5)]
    exact = [one.item for one in below.for_basket(basket, ListRequest(5)).items]
    assert asked == []
    for one in (beyond, reader):
        assert [found.item for found in one.for_basket(basket, ListRequest(5)).items] == exact
        assert not {*exact} & {*basket}
        kept = one.for_user(shard.user_ids[0], ListRequest(5, exclude_seen=False)).items
        assert [found.item for found in kept] == [
            found.item for found in below.for_user(shard.user_ids[0], ListRequest(5, exclude_seen=False)).items
        ]
    assert len(asked) == 4
    narrow = beyond.limits(5, True, [*shard.item_ids[:8]], basket)
    assert [one.item for one in beyond.for_basket(basket, narrow).items] == [
        one.item for one in below.for_basket(basket, narrow).items
    ]
    for one in (below, beyond, reader):
        one.close()


@extra
def test_a_disk_that_refuses_the_graph_costs_the_graph_alone(
    tmp_path: Path, shard: Shard, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ann_index, "put_in_place", refuse)
    recommender = Recommender(compile_in_memory(shard), ListBuilder(tmp_path, shard, approximate_beyond=1))
    recommender.served = served
    wait_for(lambda: recommender.lists_share == 1.0)
    assert recommender._keeper is not None and recommender._keeper.nearest is None
    recommender.close()
