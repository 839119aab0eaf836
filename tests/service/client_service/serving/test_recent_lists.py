"""A user of whom something has come is computed once, and looked up until something else comes of him."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import pytest

from client_service.compilation.shard import compile_in_memory
from client_service.data.interactions import Shard
from client_service.event_log.messages import InteractionIn, ItemIn
from client_service.event_log.overlay import Overlay
from client_service.event_log.store import EventStore
from client_service.serving.messages import RecommendationsOut
from client_service.serving.ranking import ListKey, ListRanking, RecentLists
from client_service.serving.recommender import Recommender
from client_service.serving.requests import ListRequest
from client_service.settings import ClientSettings
from tests.support.kept import keep_first_model


class Silo:
    """A recommender, what it is told, and how often it has computed a basket."""

    def __init__(self, settings: ClientSettings) -> None:
        self.shard, before = keep_first_model(settings)
        self.store = EventStore(settings.state_directory)
        self.overlay = Overlay(compile_in_memory(self.shard), self.store)
        self.recommender = Recommender(compile_in_memory(self.shard), None, self.overlay)
        self.recommender.served, self.events, self.computed = before.served, 0, 0

    def tell(self, user: str, item: str, rating: float | None = None) -> None:
        self.events += 1
        told = InteractionIn(event=str(self.events), user=user, item=item, rating=rating, time=None)
        self.overlay.add(self.store.append([told]))

    def show(self, item: str, *, hidden: bool) -> None:
        facts = ItemIn(hidden=hidden)
        self.overlay.put_items(self.store.put_item(item, facts), {item: facts})

    def ask(self, user: str, limits: ListRequest) -> RecommendationsOut:
        return self.recommender.for_user(user, limits)


@pytest.fixture
def silo(settings: ClientSettings, monkeypatch: pytest.MonkeyPatch) -> Silo:
    found, rank = Silo(settings), ListRanking.rank_baskets

    def count(ranking: ListRanking, served: object, asked: object, *begun: object) -> object:
        found.computed += len(asked)  # type: ignore[arg-type]
        return rank(ranking, served, asked, *begun)  # type: ignore[arg-type]

    monkeypatch.setattr(ListRanking, "rank_baskets", count)
    return found


def items(answer: RecommendationsOut) -> list[str]:
    return [one.item for one in answer.items]


@pytest.mark.parametrize("user", ["new", "user-03"])
def test_a_list_is_computed_once_until_the_user_does_something(silo: Silo, user: str) -> None:
    silo.tell(user, "item-00")
    first = silo.ask(user, ListRequest(3))
    assert (
        silo.recommender.at_once(user, ListRequest(3)) == first == silo.ask(user, ListRequest(3)) and silo.computed == 1
    )
    listed = silo.recommender.listed_for(user, 3)
    assert listed is not None and [one[0] for one in listed.items] == items(first)
    deeper = silo.ask(user, ListRequest(2, offset=1))
    assert items(deeper) == items(first)[1:] and silo.computed == 1
    forbidden = np.array([item == items(first)[0] for item in silo.shard.item_ids])
    assert items(silo.ask(user, ListRequest(2, forbidden=forbidden))) == items(first)[1:] and silo.computed == 1
    silo.tell("somebody else", "item-01")
    assert silo.ask(user, ListRequest(3)) == first and silo.computed == 1
    silo.tell(user, items(first)[0])
    assert items(first)[0] not in items(silo.ask(user, ListRequest(3))) and silo.computed == 2
    silo.ask(user, ListRequest(3, exclude_seen=False))
    assert silo.computed == 3  # that is another list, and is not kept


def test_it_is_computed_anew_for_another_model_another_hidden_item_and_an_erasure(silo: Silo) -> None:
    silo.tell("new", "item-00")
    best = items(silo.ask("new", ListRequest(3)))[0]
    silo.show(best, hidden=True)
    assert best not in items(silo.ask("new", ListRequest(3))) and silo.computed == 2
    silo.show("not in the catalogue", hidden=True)
    silo.ask("new", ListRequest(3))
    assert silo.computed == 2
    silo.show(best, hidden=False)
    assert items(silo.ask("new", ListRequest(3)))[0] == best
    served = silo.recommender.served
    assert served is not None
    silo.recommender.served = type(served)(
        served.version, served.model, ranker=served.ranker.fused(served.ranker.fusion, ())
    )
    silo.ask("new", ListRequest(3))
    assert silo.computed == 4
    silo.store.erasures.erase_user("other", known=False)
    silo.overlay.begin_anew()
    silo.ask("new", ListRequest(3))
    assert silo.computed == 4  # of this user nothing has changed
    silo.store.erasures.erase_user("new", known=False)
    silo.overlay.begin_anew()
    assert silo.ask("new", ListRequest(3)).fallback == "unknown user"


def test_who_has_seen_more_and_likes_the_same_is_ranked_by_his_row(silo: Silo) -> None:
    user = silo.shard.user_ids[2]
    before = items(silo.ask(user, ListRequest(40)))
    silo.tell(user, before[0], rating=1.0)
    assert items(silo.ask(user, ListRequest(40))) == before[1:] and silo.computed == 0
    trained = silo.shard.item_ids[silo.shard.train[[2]].indices[0]]
    silo.tell(user, trained, rating=1.0)
    assert before[0] not in items(silo.ask(user, ListRequest(40))) and silo.computed == 1


def test_who_likes_nothing_any_more_gets_popular_items(silo: Silo) -> None:
    user = silo.shard.user_ids[2]
    for row in silo.shard.train[[2]].indices:
        silo.tell(user, silo.shard.item_ids[row], rating=1.0)
    assert silo.ask(user, ListRequest(3)).fallback == "unknown user" and silo.computed == 0


def test_the_list_that_was_not_asked_for_longest_goes_first(planted: Shard) -> None:
    del planted
    kept, ranker = RecentLists(most=2), object()
    rows, scores = np.array([3, 1, -1]), np.array([2.0, 1.0, -np.inf], dtype=np.float32)

    def asked(user: str) -> ListKey:
        return ListKey(user, None, None, False, None, np.zeros(0, dtype=np.int64))

    def has(user: str) -> Callable[[], bool]:
        return lambda: kept.begin(ranker, asked(user), None) is not None  # type: ignore[arg-type]

    for user in "ab":
        kept.keep(ranker, asked(user), rows, scores)  # type: ignore[arg-type]
    assert has("a")()
    kept.keep(ranker, asked("c"), rows, scores)  # type: ignore[arg-type]
    assert (has("a")(), has("b")(), has("c")()) == (True, False, True)
    assert kept.begin(object(), asked("a"), None) is None  # type: ignore[arg-type]


class Ranking:
    """What a weak reference can be to."""


def test_no_model_stays_in_memory_for_the_lists_that_it_gave() -> None:
    kept, rows, scores = RecentLists(), np.array([3, 1, -1]), np.array([2.0, 1.0, -np.inf], dtype=np.float32)
    one, other = Ranking(), Ranking()
    gone = weakref.ref(one)
    kept.keep(one, ListKey("a", None, None, False, None, np.zeros(0, dtype=np.int64)), rows, scores)  # type: ignore[arg-type]
    kept.keep(other, ListKey("b", None, None, False, None, np.zeros(0, dtype=np.int64)), rows, scores)  # type: ignore[arg-type]
    del one
    assert gone() is None
