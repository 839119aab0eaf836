"""Nobody is recommended what he has met: liked, held out, rated low, in the file or since, by whichever way he asks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from client_service.compilation.shard import compile_in_memory
from client_service.data.interaction_files import change_shard, load_shard
from client_service.data.interactions import Shard
from client_service.event_log.messages import InteractionIn
from client_service.event_log.overlay import Overlay
from client_service.event_log.shard_update import append_events
from client_service.event_log.store import EventStore
from client_service.serving.ranking import Basket, ListRequest
from client_service.settings import ClientSettings
from tests.support.compiled import TrainedRecommender
from tests.support.kept import absorb_and_forget, keep_first_model

GRUMP, NOBODY = "user-grump", "user-nobody"
ALL = ListRequest(1000)
Met = dict[str, set[str]]


@pytest.fixture
def shard(settings: ClientSettings) -> Shard:
    """Each user has two met events besides, and one user has no positive."""
    before = load_shard(settings.shard)
    free = [np.flatnonzero(row == 0) for row in before.known_pairs.toarray()]
    rows = [
        (user, before.item_ids[item]) for user, items in zip(before.user_ids, free, strict=True) for item in items[:2]
    ]
    rows += [(GRUMP, item) for item in before.item_ids[:4]] + [(before.user_ids[0], "item-unheard-of")]
    table = pl.DataFrame(rows, schema=["user", "item"], orient="row").with_columns(split=pl.lit("met"))
    return change_shard(settings.shard, lambda one: append_events(one, table, Path("file.csv")))[1]


def met_by_user(shard: Shard) -> Met:
    table = shard.all_events_with_ids().group_by("user").agg("item")
    return {user: set(items) for user, items in table.iter_rows()}


def items_of(answer: object) -> list[str]:
    return [one.item for one in answer.items]  # type: ignore[attr-defined]


def test_no_list_has_what_its_user_has_met(settings: ClientSettings, shard: Shard) -> None:
    """Looked up, computed, in a batch, without a model; and each has everything else."""
    met, everything = met_by_user(shard), set(shard.item_ids)
    assert shard.valid.nnz and shard.test.nnz and shard.met.nnz
    ahead, computing = TrainedRecommender(shard), TrainedRecommender(shard, lists=False)
    modelless = TrainedRecommender(shard)
    ahead.served = computing.served = keep_first_model(settings)[1].served
    users = (*shard.user_ids, GRUMP, NOBODY)
    for recommender in (ahead, computing, modelless):
        single = [recommender.for_user(user, ALL) for user in users]
        assert recommender.recommend_users(users, ALL) == tuple(single)
        for user, answer in zip(users, single, strict=True):
            assert set(items_of(answer)) == everything - met.get(user, set())
            assert (answer.fallback == "unknown user") == (recommender is not modelless and user in (GRUMP, NOBODY))
    user = shard.user_ids[0]
    assert set(items_of(computing.for_user(user, ListRequest(1000, exclude_seen=False)))) == everything
    first = ahead.look_up_list(user, 3)
    assert first is not None and not {item for item, _, _ in first.items} & met[user]


def test_a_user_who_has_met_everything_gets_an_empty_list(settings: ClientSettings, shard: Shard) -> None:
    user = shard.user_ids[1]
    rest = [item for item in shard.item_ids if item not in met_by_user(shard)[user]]
    table = pl.DataFrame({"user": user, "item": rest[1:], "split": "met"})
    last = append_events(shard, table, Path("file.csv"))
    for model in (None, keep_first_model(settings)[1].served):
        recommender = TrainedRecommender(last)
        recommender.served = model
        assert items_of(recommender.for_user(user, ALL)) == rest[:1]
        assert items_of(recommender.for_user(user, ListRequest(10, offset=1))) == []


def test_a_basket_s_items_are_left_out_without_a_model_too(shard: Shard) -> None:
    (answer,) = TrainedRecommender(shard).recommend_baskets([Basket(shard.item_ids[:2], ALL)])
    assert answer.fallback == "no model yet" and set(items_of(answer)) == set(shard.item_ids[2:])


class Told:
    """A store, and answers with what it was told since."""

    def __init__(self, settings: ClientSettings, shard: Shard) -> None:
        settings.state_directory.mkdir(parents=True, exist_ok=True)
        self.store, self.settings = EventStore(settings.state_directory), settings
        self.events = 0
        self.answer_from(shard)

    def answer_from(self, shard: Shard) -> None:
        self.overlay = Overlay(compile_in_memory(shard), self.store)
        self.recommender = TrainedRecommender(shard, self.overlay)
        self.recommender.served = keep_first_model(self.settings)[1].served

    def tell(self, user: str, item: str, rating: float | None, at: int | None = None) -> None:
        self.events += 1
        one = InteractionIn(event=f"e-{self.events}", user=user, item=item, rating=rating, time=at)
        self.overlay.add_interactions(self.store.append([one]))

    def lists(self, user: str) -> set[str]:
        return set(items_of(self.recommender.for_user(user, ALL)))

    def absorb(self) -> Shard:
        absorb_and_forget(self.settings, self.store)
        return load_shard(self.settings.shard)


def test_what_is_told_since_is_met_too_before_and_after_a_refresh(settings: ClientSettings, shard: Shard) -> None:
    """By a low rating, by a positive that is withdrawn, and by one that comes again."""
    told, met, everything = Told(settings, shard), met_by_user(shard), set(shard.item_ids)
    liked, low, back, new = shard.user_ids[1], shard.user_ids[2], shard.user_ids[3], "user-new"
    item = {user: min(everything - met.get(user, set())) for user in (liked, low, back, GRUMP, new)}
    for user, ratings in ((liked, [5.0]), (low, [1.0]), (back, [5.0, 1.0, 5.0]), (GRUMP, [5.0]), (new, [5.0, 1.0])):
        for rating in ratings:
            told.tell(user, item[user], rating)
    expected = {user: everything - met.get(user, set()) - {one} for user, one in item.items()}
    assert {user: told.lists(user) for user in item} == expected
    after = told.absorb()
    told.answer_from(after)
    assert {user: told.lists(user) for user in item} == expected
    assert {after.item_ids[row] for row in after.met_items(low)} == (met[low] | {item[low]}) - liked_by(shard, low)
    assert GRUMP in after.user_ids and new in after.met_only_users
    assert told.absorb().lists_digest == after.lists_digest  # done again it changes nothing


def liked_by(shard: Shard, user: str) -> set[str]:
    return set(shard.events_with_ids().filter(user=user)["item"])


def test_a_positive_that_is_older_than_what_the_shard_says_counts_for_nothing(
    settings: ClientSettings, shard: Shard
) -> None:
    user = shard.user_ids[1]
    item = min(set(shard.item_ids) - met_by_user(shard)[user])
    table = pl.DataFrame({"user": [user, GRUMP], "item": item, "split": "met", "time": 2_000_000_000})
    told = Told(settings, change_shard(settings.shard, lambda one: append_events(one, table, Path("file.csv")))[1])
    for one in (user, GRUMP):
        told.tell(one, item, 5.0, 1_900_000_000)
        assert told.overlay.latest_events(one) is None
    assert told.absorb().item_row(item) in load_shard(settings.shard).met_items(user)
    told.tell(user, item, 5.0, 2_000_000_001)
    assert told.overlay.latest_events(user) is not None and item in liked_by(told.absorb(), user)


def test_low_ratings_outlive_a_log_without_room(settings: ClientSettings, shard: Shard) -> None:
    told = Told(settings, shard)
    told.store._most = 2
    user, other = shard.user_ids[1:3]
    one, two = (min(set(shard.item_ids) - met_by_user(shard)[who]) for who in (user, other))
    told.tell(user, one, 1.0)
    told.tell(other, two, 1.0)
    after = told.absorb()
    assert len(told.store.interactions()) == 1
    told.answer_from(after)
    assert one not in told.lists(user) and two not in told.lists(other)


@pytest.mark.parametrize("user", ["user-00", GRUMP])
def test_an_erasure_takes_what_was_met_too(settings: ClientSettings, shard: Shard, user: str) -> None:
    """Also of who likes nothing, and has no row: he is marked, unknown at once, and in no file afterwards."""
    told, everything = Told(settings, shard), set(shard.item_ids)
    assert told.lists(user) < everything and told.overlay.contains(user)
    other = Overlay(compile_in_memory(shard), EventStore(settings.state_directory, most=100))
    known = told.overlay.known_users
    told.store.erasures.erase_user(user, known=told.overlay.contains(user))
    told.overlay.reload()
    assert told.lists(user) == everything and not told.overlay.contains(user)
    assert told.overlay.known_users == known - (user != GRUMP)
    after = told.absorb()
    assert user not in {*after.user_ids, *after.met_only_users}
    told.store.erasures.complete()
    assert not any(user.encode() in path.read_bytes() for path in settings.shard.rglob("*") if path.is_file())
    kept = [path for path in settings.state_directory.rglob("*") if path.is_file() and "feedback" in str(path)]
    assert kept and not any(user.encode() in path.read_bytes() for path in kept)
    other.follow()
    assert other.is_absorbed_elsewhere and not other.contains(user)  # who answers from the shard before knows it
    later = Overlay(compile_in_memory(after), EventStore(settings.state_directory, most=100))
    assert not later.is_absorbed_elsewhere
