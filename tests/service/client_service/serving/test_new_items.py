"""New items, which nobody has bought yet, have places of their own in lists; what applications post appears at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from client_service.compiled.publication import SERVING, read_publication
from client_service.event_log.messages import InteractionIn, ItemIn
from client_service.event_log.store import EventStore
from client_service.serving.item_answers import Catalogue
from client_service.serving.messages import ItemOut
from client_service.serving.new_items import reserved_places
from client_service.serving.ranking import Basket, ListRequest
from client_service.serving.recommender import Recommender, open_recommender
from client_service.settings import ClientSettings
from shared.errors import NotFoundError
from tests.support.kept import absorb_and_forget, keep_first_model
from tests.support.new_items import write_shop
from tests.support.small import small_client

BUYER, READER = "user-00", "user-01"  # of boots, of novels
NEW_BOOTS, NEW_NOVELS = ({f"new-{kind}-{number}" for number in range(4)} for kind in ("boots", "novel"))
WHITE = ItemIn(title="Black boots of green", categories=("boots",))


def open_shop(folder: Path, **changes: object) -> tuple[ClientSettings, Recommender]:
    """A server's recommender of the shop, with all lists computed."""
    settings = small_client(write_shop(folder / "shop", **changes), folder / "state")  # type: ignore[arg-type]
    keep_first_model(settings, published=True)
    serving = settings.state_directory / SERVING
    published = read_publication(serving)
    assert published is not None
    return settings, open_recommender(serving, published, None)


@pytest.fixture(scope="module", params=[False, True], ids=["rows", "unmet"])
def plain(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Recommender:
    """Nothing is told of its items; those that nobody has bought have a row, or none."""
    return open_shop(tmp_path_factory.mktemp("plain"), unmet=request.param)[1]


@pytest.fixture(params=[False, True], ids=["rows", "unmet"])
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Recommender, EventStore]]:
    settings, recommender = open_shop(tmp_path, unmet=request.param)
    store = EventStore(settings.state_directory)
    recommender.overlay.attach_store(store)
    yield recommender, store
    store.close()


def tell(store: EventStore, item: str, facts: ItemIn) -> None:
    store.put_each([(item, facts)])


def ids(items: tuple[ItemOut, ...]) -> list[str]:
    return [one.item for one in items]


def places(items: tuple[ItemOut, ...]) -> list[int]:
    """From 1 on, as people count."""
    return [place for place, one in enumerate(items, 1) if one.reason == "new"]


def test_places_in_lists_of_each_length() -> None:
    assert [reserved_places(1, k) for k in (1, 4, 5, 9, 10, 20, 1000)] == [(), (), (4,), (8,), (9,), (9,), (9,)]
    assert [reserved_places(2, k) for k in (4, 5, 9, 10, 20)] == [(), (3, 4), (7, 8), (4, 9), (4, 9)]
    assert reserved_places(0, 20) == ()


def test_the_tenth_place_is_a_new_item_of_the_user_s_taste(plain: Recommender) -> None:
    for user, new in ((BUYER, NEW_BOOTS), (READER, NEW_NOVELS)):
        without = plain.for_user(user, ListRequest(20, new=0)).items
        assert places(without) == []
        one, two = (plain.for_user(user, ListRequest(20, new=count)).items for count in (1, 2))
        assert places(one) == [10] and places(two) == [5, 10]
        assert one[9].item in new and one[9].title is not None and 0.0 < one[9].score < 1.0
        assert {two[4].item, two[9].item} < new and two[4].item == one[9].item
        chosen = one[9].item
        others = [item for item in ids(without) if item != chosen]
        assert [item for item in ids(one) if item != chosen] == others[:19]
        assert plain.for_user(user, ListRequest(20)).items == one, "one place is the default where there are new items"


def test_looked_up_and_computed_lists_have_the_same_new_item(plain: Recommender) -> None:
    """An item excluded that no list has makes the look-up a computation of nothing else."""
    for user in plain._shard.user_ids:
        model = plain.model
        assert model is not None and model.cold is not None
        row = plain._shard.user_row(user)
        assert row is not None
        listed = model.cold_list_of(row)
        assert listed is not None
        profile = model.cold.profile(plain._shard.train.row(row))
        scores = model.cold.scores(profile)
        assert np.allclose(np.sort(scores)[::-1], listed[1][: len(scores)], atol=1e-3 * np.abs(scores).max())
        varied = plain.for_user(user, ListRequest(20, mmr=1e-9)).items
        assert varied[9].item == plain.for_user(user, ListRequest(20)).items[9].item


@pytest.mark.parametrize("k", [5, 7, 10, 12])
def test_pages_repeat_and_omit_nothing(plain: Recommender, k: int) -> None:
    for new in (0, 1, 2):
        whole = plain.for_user(BUYER, ListRequest(1000, new=0)).items
        pages = [plain.for_user(BUYER, ListRequest(k, offset=at, new=new)).items for at in range(0, 60, k)]
        found = [item for page in pages for item in ids(page)]
        assert len(found) == len(set(found)) and set(ids(whole)) <= set(found)
        unmet = plain._shard.unmet is not None  # they are in the reserved places alone
        assert set(found) - set(ids(whole)) <= (NEW_BOOTS | NEW_NOVELS if unmet and new else set())
        assert not unmet or not set(ids(whole)) & (NEW_BOOTS | NEW_NOVELS)


def test_only_new_items(plain: Recommender) -> None:
    found = plain.for_user(BUYER, ListRequest(20, only_new=True))
    assert set(ids(found.items[:4])) == NEW_BOOTS and set(ids(found.items)) == NEW_BOOTS | NEW_NOVELS
    assert all(one.reason == "new" for one in found.items) and found.fallback is None
    page = plain.for_user(BUYER, ListRequest(3, only_new=True, offset=2)).items
    assert page == found.items[2:5]
    basket = plain.for_basket(["novel-01", "novel-02"], ListRequest(4, only_new=True))
    assert set(ids(basket.items)) == NEW_NOVELS
    nobody = plain.for_user("nobody", ListRequest(20, only_new=True))
    assert nobody.fallback == "unknown user" and len(nobody.items) == 8


def test_baskets_batches_and_unknown_users_have_the_place_too(plain: Recommender) -> None:
    basket = plain.for_basket(["boots-01", "boots-02"], ListRequest(10))
    assert places(basket.items) == [10] and basket.items[9].item in NEW_BOOTS
    two = plain.recommend_users((BUYER, "nobody"), ListRequest(10))
    assert [places(one.items) for one in two] == [[10], [10]] and two[1].fallback == "unknown user"
    assert two[0] == plain.for_user(BUYER, ListRequest(10))
    several = plain.recommend_baskets([Basket(("boots-01", "boots-02"), ListRequest(10))])
    assert several == (basket,)


def test_filters_exclusions_and_allowed_items_hold(plain: Recommender) -> None:
    best = plain.for_user(BUYER, ListRequest(10)).items[9].item
    without = plain.for_user(BUYER, plain.limits(10, exclude=[best])).items
    assert places(without) == [10] and without[9].item in NEW_BOOTS - {best}
    novels = plain.for_user(BUYER, plain.limits(30, filters=["kind:novel"])).items
    assert places(novels) == [10] and novels[9].item in NEW_NOVELS
    allowed = plain.for_user(BUYER, plain.limits(10, allow=["boots-01", "novel-01", "new-novel-2"])).items
    assert allowed[-1].item == "new-novel-2" and places(allowed) == [len(allowed)], "behind the end of a shorter list"
    assert places(plain.for_user(BUYER, plain.limits(10, allow=["novel-01"])).items) == []


def test_the_reason_names_items_of_the_user_s_own(plain: Recommender) -> None:
    item = plain.for_user(BUYER, ListRequest(10, explain=True)).items[9]
    row = plain._shard.user_row(BUYER)
    assert row is not None and item.because and item.explained
    own = {plain._shard.item_ids[one] for one in plain._shard.train.row(row)}
    assert {reason.item for reason in item.because} <= own
    assert item.explained == pytest.approx(plain.for_user(BUYER, ListRequest(10, raw=True)).items[9].score, rel=0.01)


def test_similar_items_of_a_new_one_are_nearest_by_text(plain: Recommender) -> None:
    found = plain.similar("new-boots-1", 5)
    assert found.reason == "new" and all("boots" in one.item for one in found.items)
    assert found.items[0].item in {"boots-01", "boots-09"}, "the same words"
    assert plain.similar("boots-01", 5).reason is None


def test_variety_keeps_the_new_items_apart(plain: Recommender) -> None:
    alike, varied = (plain.for_user(BUYER, ListRequest(4, only_new=True, mmr=mmr)).items for mmr in (0.0, 0.9))
    assert set(ids(alike)) == NEW_BOOTS and set(ids(varied)) & NEW_NOVELS


def test_without_titles_nothing_is_new(tmp_path: Path) -> None:
    _, recommender = open_shop(tmp_path, titled=False)
    assert recommender.model is not None and recommender.model.cold is None
    assert places(recommender.for_user(BUYER, ListRequest(20)).items) == []
    assert recommender.for_user(BUYER, ListRequest(20, only_new=True)).items == ()


def test_a_posted_item_is_recommended_at_the_next_request(shop: tuple[Recommender, EventStore]) -> None:
    """It is in no catalogue; once it is hidden it is gone again."""
    recommender, store = shop
    with pytest.raises(NotFoundError):
        recommender.similar("posted", 3)
    tell(store, "posted", WHITE)
    found = recommender.for_user(BUYER, ListRequest(40, only_new=True)).items
    assert "posted" in ids(found)[:5] and found[ids(found).index("posted")].title == WHITE.title
    assert recommender.for_user(READER, ListRequest(40, only_new=True)).items[0].item in NEW_NOVELS
    near = recommender.similar("posted", 3)
    assert near.reason == "new" and all("boots" in one.item for one in near.items)
    only = recommender.limits(10, filters=["category:boots"])
    assert ids(recommender.for_user(BUYER, only).items) == ["posted"]
    assert "posted" not in ids(
        recommender.for_user(BUYER, recommender.limits(40, exclude=["posted"], only_new=True)).items
    )
    tell(store, "posted", ItemIn(hidden=True))
    assert "posted" not in ids(recommender.for_user(BUYER, ListRequest(40, only_new=True)).items)


def test_what_a_user_has_met_is_new_for_others_alone(shop: tuple[Recommender, EventStore]) -> None:
    recommender, store = shop
    tell(store, "posted", WHITE)
    best = recommender.for_user(BUYER, ListRequest(10)).items[9].item
    store.append([InteractionIn(event=item, user=BUYER, item=item) for item in (best, "posted")])
    after = set(ids(recommender.for_user(BUYER, ListRequest(40, only_new=True)).items))
    assert not after & {best, "posted"}
    others = set(ids(recommender.for_user("user-02", ListRequest(40, only_new=True)).items))
    assert {best, "posted"} <= others
    assert "posted" not in ids(recommender.for_basket(["boots-01", "posted"], ListRequest(40, only_new=True)).items)


def test_a_hidden_or_retitled_new_item(shop: tuple[Recommender, EventStore]) -> None:
    recommender, store = shop
    best = recommender.for_user(BUYER, ListRequest(10)).items[9].item
    tell(store, best, ItemIn(title="Gone", hidden=True))
    assert recommender.for_user(BUYER, ListRequest(10)).items[9].item != best
    tell(store, "new-novel-0", ItemIn(title="Brown boots of red", attributes={"kind": "boots"}))
    found = ids(recommender.for_user(BUYER, ListRequest(4, only_new=True)).items)
    assert "new-novel-0" in found, "what an application says of an item holds at once"


def test_a_refresh_takes_a_posted_item_into_the_catalogue(tmp_path: Path) -> None:
    """There it stays new until somebody has it."""
    settings, _ = open_shop(tmp_path)
    store = EventStore(settings.state_directory)
    tell(store, "posted", ItemIn(title="Black boots of green", categories=("fancy",), attributes={"kind": "boots"}))
    tell(store, "gone", ItemIn(title="Black boots of green", hidden=True))
    tell(store, "nameless", ItemIn())
    shard = absorb_and_forget(settings, store).after
    assert not {"posted", "gone", "nameless"} & set(shard.item_ids), "no model is fitted to what nobody has"
    assert shard.unmet is not None
    assert shard.unmet.rows() == [("posted", "Black boots of green", "boots")]
    assert absorb_and_forget(settings, store).after.lists_digest == shard.lists_digest, "nothing is added twice"
    assert "posted" in new_items_of(settings, store)
    for user in ("user-02", "user-04", "user-06"):
        store.append([InteractionIn(event=user, user=user, item="posted")])
    assert "posted" in new_items_of(settings, store), "until the refresh it is new for those who have not met it"
    bought = absorb_and_forget(settings, store).after
    row = bought.item_row("posted")
    assert row is not None and bought.train[:, [row]].sum() == 3 and bought.unmet is None
    assert bought.titles is not None and bought.features is not None
    assert bought.titles[row] == "Black boots of green" and bought.features["kind"][row] == "boots"
    assert "posted" not in new_items_of(settings, store)
    store.close()


def new_items_of(settings: ClientSettings, store: EventStore) -> list[str]:
    """Those for one user, from what is compiled of the shard now."""
    keep_first_model(settings, published=True)
    serving = settings.state_directory / SERVING
    published = read_publication(serving)
    assert published is not None
    recommender = open_recommender(serving, published, None)
    recommender.overlay.attach_store(store)
    return ids(recommender.for_user(BUYER, ListRequest(40, only_new=True)).items)


def test_a_silo_without_texts_keeps_its_catalogue(tmp_path: Path) -> None:
    settings, _ = open_shop(tmp_path, titled=False)
    store = EventStore(settings.state_directory)
    tell(store, "posted", WHITE)
    assert "posted" not in absorb_and_forget(settings, store).after.item_ids
    store.close()


def test_very_many_posted_items_are_all_there_soon(shop: tuple[Recommender, EventStore]) -> None:
    """The last ones at the next request, the others once a thread has encoded them."""
    recommender, store = shop
    store.put_each([(f"posted-{number:03}", ItemIn(title=f"Boots {number}")) for number in range(700)])
    found = ids(recommender.for_user(BUYER, ListRequest(1000, only_new=True)).items)
    assert "posted-699" in found and len(found) < 700
    recommender._new._encoding.join()
    found = ids(recommender.for_user(BUYER, ListRequest(1000, only_new=True)).items)
    assert sum(item.startswith("posted-") for item in found) == 700


def test_a_search_finds_posted_items_behind_the_catalogue_s(shop: tuple[Recommender, EventStore]) -> None:
    recommender, store = shop
    before = recommender.catalogue.search("BLACK boots", 0, 100)
    tell(store, "posted-2", ItemIn(title="Boots in black"))
    tell(store, "posted-1", ItemIn(title="Black boots"))
    tell(store, "posted-0", ItemIn(title="Black boots", hidden=True))
    whole = recommender.catalogue.search("BLACK boots", 0, 100)
    assert whole.total == before.total + 2 and whole.items[: before.total] == before.items
    assert [(one.item, one.in_catalogue) for one in whole.items[before.total :]] == [
        ("posted-1", False),
        ("posted-2", False),
    ]
    pages = [recommender.catalogue.search("black boots", at, 3).items for at in range(0, whole.total, 3)]
    assert tuple(item for page in pages for item in page) == whole.items
    assert recommender.catalogue.search("", 0, 100).total == 40


def test_items_that_nobody_has_met_change_nothing_else(tmp_path: Path) -> None:
    _, without = open_shop(tmp_path / "without", new=0)
    _, among = open_shop(tmp_path / "among", unmet=True)
    assert among._shard.digest == without._shard.digest
    for user in (BUYER, READER, "nobody"):
        few, many = (one.for_user(user, ListRequest(30, new=0)).items for one in (without, among))
        assert few == many and len(few) > 10
    basket = (one.for_basket(["boots-01", "boots-02"], ListRequest(30, new=0)).items for one in (without, among))
    assert next(basket) == next(basket)
    assert without.similar("boots-01", 9).items == among.similar("boots-01", 9).items


def test_an_item_that_nobody_has_met_is_searched_filtered_and_hidden(shop: tuple[Recommender, EventStore]) -> None:
    recommender, store = shop
    catalogue = Catalogue(recommender._shard, recommender.overlay)
    assert catalogue.read("new-boots-1").in_catalogue and catalogue.read("new-boots-1").title == "Brown boots of winter"
    assert catalogue.search("", 0, 100).total == 40
    words = catalogue.search("brown winter boots", 0, 100)
    assert "new-boots-1" in [one.item for one in words.items]
    near = catalogue.search("browm wintre boots", 0, 100).near
    assert near is not None and "new-boots-1" in [one.item for one in near]
    only = recommender.limits(20, filters=["kind:boots"], only_new=True)
    assert set(ids(recommender.for_user(READER, only).items)) == NEW_BOOTS
    both = recommender.limits(20, filters=["kind:boots"], allow=["new-boots-1", "new-novel-1"], only_new=True)
    assert ids(recommender.for_user(READER, both).items) == ["new-boots-1"]
    tell(store, "new-boots-1", ItemIn(hidden=True))
    assert "new-boots-1" not in [one.item for one in catalogue.search("brown winter boots", 0, 100).items]
    assert "new-boots-1" not in ids(recommender.for_user(BUYER, ListRequest(40, only_new=True)).items)


def test_who_has_met_and_not_liked_one_does_not_get_it_again(tmp_path: Path) -> None:
    settings, recommender = open_shop(tmp_path, unmet=True)
    best = recommender.for_user(BUYER, ListRequest(10)).items[9].item
    store = EventStore(settings.state_directory)
    store.append([InteractionIn(event="one", user=BUYER, item=best, rating=1.0)])
    after = absorb_and_forget(settings.model_copy(update={"least_rating": 4.0}), store).after
    assert after.unmet is not None and best in after.unmet["item"].to_list()
    store.close()
    keep_first_model(settings, published=True)
    published = read_publication(settings.state_directory / SERVING)
    assert published is not None
    again = open_recommender(settings.state_directory / SERVING, published, None)
    assert best not in ids(again.for_user(BUYER, ListRequest(40, only_new=True)).items)
    assert best in ids(again.for_user("user-02", ListRequest(40, only_new=True)).items)


def test_a_single_new_item_has_a_place_in_lists_of_users_whom_its_text_suits(tmp_path: Path) -> None:
    settings, recommender = open_shop(tmp_path, new=0)
    store = EventStore(settings.state_directory)
    recommender.overlay.attach_store(store)
    users = [f"user-{number:02}" for number in range(24)]
    before = {user: recommender.for_user(user, ListRequest(10)).items for user in users}
    assert not any(places(items) for items in before.values())
    tell(store, "white", WHITE)
    shown = {user: recommender.for_user(user, ListRequest(10)).items for user in users}
    assert [places(shown[user]) for user in users[::2]] == [[10]] * 12
    for user in users[1::2]:  # readers of novels
        assert shown[user] == before[user]
        [only] = recommender.for_user(user, ListRequest(5, only_new=True)).items
        assert only.item == "white"
    store.close()
