"""The list of a user of whom something has come follows from all that he likes now, in the very next answer."""

from __future__ import annotations

import numpy as np
import pytest

from client_service.compilation.shard import compile_in_memory
from client_service.event_log.messages import InteractionIn, ItemIn
from client_service.event_log.overlay import Overlay
from client_service.event_log.store import EventStore
from client_service.serving.messages import RecommendationsOut
from client_service.serving.ranking import ListRequest
from client_service.settings import ClientSettings
from tests.support.compiled import TrainedRecommender
from tests.support.kept import keep_first_model


class Silo:
    """A recommender, and what it is told."""

    def __init__(self, settings: ClientSettings) -> None:
        self.shard, before = keep_first_model(settings)
        self.store = EventStore(settings.state_directory)
        self.overlay = Overlay(compile_in_memory(self.shard), self.store)
        self.recommender = TrainedRecommender(self.shard, self.overlay)
        self.recommender.served, self.events = before.served, 0

    def tell(self, user: str, item: str, rating: float | None = None) -> None:
        self.events += 1
        told = InteractionIn(event=str(self.events), user=user, item=item, rating=rating, time=None)
        self.overlay.add_interactions(self.store.append([told]))

    def ask(self, user: str, limits: ListRequest) -> RecommendationsOut:
        return self.recommender.for_user(user, limits)


@pytest.fixture
def silo(settings: ClientSettings) -> Silo:
    return Silo(settings)


def items(answer: RecommendationsOut) -> list[str]:
    return [one.item for one in answer.items]


@pytest.mark.parametrize("user", ["new", "user-03"])
def test_a_list_is_that_of_a_basket_of_all_that_the_user_likes(silo: Silo, user: str) -> None:
    silo.tell(user, "item-00")
    first = silo.ask(user, ListRequest(3))
    row = silo.shard.user_row(user)
    trained = [] if row is None else [silo.shard.item_ids[one] for one in silo.shard.train[[row]].indices]
    met = [] if row is None else [silo.shard.item_ids[one] for one in silo.shard.known_pairs[[row]].indices]
    limits = silo.recommender.limits(3, exclude=met)
    assert first.items == silo.recommender.for_basket(["item-00", *trained], limits).items
    assert silo.recommender.answer_by_lookup(user, ListRequest(3)) is None and silo.ask(user, ListRequest(3)) == first
    assert items(silo.ask(user, ListRequest(2, offset=1))) == items(first)[1:]
    forbidden = np.array([item == items(first)[0] for item in silo.shard.item_ids])
    assert items(silo.ask(user, ListRequest(2, forbidden=forbidden))) == items(first)[1:]
    silo.tell("somebody else", "item-01")
    assert silo.ask(user, ListRequest(3)) == first
    silo.tell(user, items(first)[0])
    assert items(first)[0] not in items(silo.ask(user, ListRequest(3)))


def test_a_hidden_item_and_an_erased_user_are_gone_from_the_next_list(silo: Silo) -> None:
    silo.tell("new", "item-00")
    best = items(silo.ask("new", ListRequest(3)))[0]
    silo.store.put_item(best, ItemIn(hidden=True))
    assert best not in items(silo.ask("new", ListRequest(3)))
    silo.store.put_item(best, ItemIn(hidden=False))
    assert items(silo.ask("new", ListRequest(3)))[0] == best
    silo.store.erasures.erase_user("other", known=False)
    assert silo.ask("new", ListRequest(3)).fallback is None
    silo.store.erasures.erase_user("new", known=False)
    assert silo.ask("new", ListRequest(3)).fallback == "unknown user"


def test_who_has_seen_more_and_likes_the_same_is_ranked_by_his_row(silo: Silo) -> None:
    user = silo.shard.user_ids[2]
    before = items(silo.ask(user, ListRequest(40)))
    silo.tell(user, before[0], rating=1.0)
    known = silo.recommender.answer_by_lookup(user, ListRequest(40))
    assert known is not None and items(known) == before[1:]
    trained = silo.shard.item_ids[silo.shard.train[[2]].indices[0]]
    silo.tell(user, trained, rating=1.0)
    assert silo.recommender.answer_by_lookup(user, ListRequest(40)) is None
    assert before[0] not in items(silo.ask(user, ListRequest(40)))


def test_who_likes_nothing_any_more_gets_popular_items(silo: Silo) -> None:
    user = silo.shard.user_ids[2]
    for row in silo.shard.train[[2]].indices:
        silo.tell(user, silo.shard.item_ids[row], rating=1.0)
    assert silo.ask(user, ListRequest(3)).fallback == "unknown user"


def test_a_batch_is_answered_in_its_order_looked_up_or_computed(silo: Silo) -> None:
    silo.tell("new", "item-00")
    silo.tell("user-01", "item-02")
    users = (*reversed(silo.shard.user_ids), "new", "nobody")
    answers = silo.recommender.recommend_users(users, ListRequest(4))
    assert [one.user for one in answers] == [*users] and answers[-1].fallback == "unknown user"
    assert answers == tuple(silo.ask(user, ListRequest(4)) for user in users)
