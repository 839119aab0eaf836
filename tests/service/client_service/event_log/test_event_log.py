"""What applications tell is on the disk before it is answered, changes the next answer, and can be taken back."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from client_service.compilation.shard import compile_in_memory
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.event_log.database import EARLIER_NAME, NAME
from client_service.event_log.messages import InteractionIn, InteractionsIn, ItemIn
from client_service.event_log.overlay import Overlay
from client_service.event_log.service import EventLog
from client_service.event_log.store import EventStore
from client_service.serving.ranking import ListRequest
from client_service.settings import ClientSettings
from shared.errors import ConflictError, DataError, UnavailableError
from tests.support.compiled import TrainedRecommender
from tests.support.given import Opened, Until
from tests.support.kept import absorb, absorb_and_forget, keep_first_model
from tests.support.telling import all_listed, is_erased

CANARY = "canary-4711-user"


def told(*pairs: tuple[str, str], rating: float | None = None, begin: int = 0) -> list[InteractionIn]:
    """Interactions with event ids of their own."""
    return [
        InteractionIn(event=f"e{begin + place}", user=user, item=item, rating=rating, time=None)
        for place, (user, item) in enumerate(pairs)
    ]


def message(*pairs: tuple[str, str], **given: Any) -> dict[str, Any]:
    return {"interactions": [one.model_dump(mode="json", exclude_none=True) for one in told(*pairs, **given)]}


async def items_of(http: httpx.AsyncClient, user: str, query: str = "k=40") -> list[str]:
    answer = await http.get(f"/v1/users/{user}/recommendations?{query}")
    assert answer.status_code == 200, answer.text
    return [one["item"] for one in answer.json()["items"]]


@pytest.fixture
def served(settings: ClientSettings) -> Shard:
    """The shard of a silo that has a model."""
    shard, _ = keep_first_model(settings)
    return shard


Serving = Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def serving(settings: ClientSettings, served: Shard, opened: Opened, until: Until) -> Serving:
    """The service once it serves its model, and every known user's list is computed."""
    del served

    @asynccontextmanager
    async def begin() -> AsyncIterator[httpx.AsyncClient]:
        async with opened(settings) as http:
            await until(lambda: all_listed(http))
            yield http

    return begin


@pytest.mark.anyio
async def test_a_new_user_and_a_known_one_are_answered_by_what_they_have_just_done(
    served: Shard, serving: Serving
) -> None:
    user, items = served.user_ids[0], served.item_ids
    async with serving() as http:
        before, other = await items_of(http, user), await items_of(http, served.user_ids[1])
        answer = await http.post(
            "/v1/interactions", json=message(("new", items[0]), ("new", items[3]), (user, before[0]))
        )
        assert answer.json() == {"accepted": 3, "repeated": 0, "unknown_items": 0}
        basket = await http.post("/v1/recommendations", json={"basket": [items[0], items[3]], "k": 40})
        assert await items_of(http, "new") == [one["item"] for one in basket.json()["results"][0]["items"]]
        after = await items_of(http, user)
        assert before[0] not in after and {*after} == {*before[1:]}
        assert before[0] in await items_of(http, user, "k=40&exclude_seen=false")
        assert await items_of(http, served.user_ids[1]) == other
        batch = await http.post("/v1/recommendations", json={"users": ["new", user, served.user_ids[1]], "k": 40})
        lists = [[item["item"] for item in one["items"]] for one in batch.json()["results"]]
        assert lists == [await items_of(http, "new"), after, other]
    async with serving() as http:  # it is on the disk
        assert await items_of(http, user) == after and "fallback" not in batch.json()["results"][0]


@pytest.mark.anyio
async def test_a_known_user_s_basket_is_all_that_he_has_and_no_held_out_item_comes_back(
    served: Shard, serving: Serving
) -> None:
    user = served.user_ids[2]
    async with serving() as http:
        new = (await items_of(http, user))[0]
        await http.post("/v1/interactions", json=message((user, new)))
        train = [served.item_ids[row] for row in served.train[[2]].indices]
        valid = [served.item_ids[row] for row in (served.valid + served.test)[[2]].indices]
        asked = {"basket": [*train, new], "exclude": valid, "k": 40}
        (expected,) = (await http.post("/v1/recommendations", json=asked)).json()["results"]
        answer = (await http.get(f"/v1/users/{user}/recommendations?k=40")).json()
        assert valid and answer["items"] == expected["items"]


@pytest.mark.anyio
async def test_the_same_event_counts_once_and_an_unknown_item_waits(served: Shard, serving: Serving) -> None:
    async with serving() as http:
        first = message(("new", served.item_ids[0]), ("new", "not sold yet"))
        assert (await http.post("/v1/interactions", json=first)).json()["unknown_items"] == 1
        again = message(("new", served.item_ids[5]), ("new", "x"), ("new", served.item_ids[1]))
        assert (await http.post("/v1/interactions", json=again)).json() == {
            "accepted": 1,
            "repeated": 2,
            "unknown_items": 0,
        }
        seen = {served.item_ids[0], served.item_ids[1]}
        assert {*await items_of(http, "new")} == {*served.item_ids} - seen


@pytest.mark.anyio
async def test_a_low_rating_is_seen_and_not_positive(served: Shard, serving: Serving) -> None:
    async with serving() as http:
        liked = message(("new", served.item_ids[0]), rating=4.0)
        await http.post("/v1/interactions", json=liked)
        before = await items_of(http, "new")
        await http.post("/v1/interactions", json=message(("new", before[0]), ("low", before[0]), rating=1.0, begin=9))
        assert await items_of(http, "new") == before[1:]
        low = (await http.get("/v1/users/low/recommendations?k=40")).json()
        assert low["fallback"] == "unknown user" and before[0] not in [one["item"] for one in low["items"]]


@pytest.mark.anyio
async def test_a_hidden_item_appears_nowhere_and_a_title_is_shown(served: Shard, serving: Serving) -> None:
    user = served.user_ids[0]
    async with serving() as http:
        first, second, *_ = await items_of(http, user)
        assert (await http.put(f"/v1/items/{first}", json={"hidden": True})).status_code == 200
        await http.put(
            f"/v1/items/{second}", json={"title": "Second", "categories": ["x"], "attributes": {"year": 1999}}
        )
        assert (await http.delete("/v1/items/not-there")).json()["hidden"] is True
        top = (await http.get(f"/v1/users/{user}/recommendations?k=1")).json()["items"][0]
        assert (top["item"], top["title"]) == (second, "Second")
        for asked in ({"basket": [served.item_ids[1]], "k": 40}, {"users": [user], "k": 40, "exclude_seen": False}):
            (answer,) = (await http.post("/v1/recommendations", json=asked)).json()["results"]
            assert first not in [one["item"] for one in answer["items"]]
        assert first not in await items_of(http, "nobody")
        like = (await http.get(f"/v1/items/{second}/similar?k=40")).json()["items"]
        assert first not in [one["item"] for one in like]
        await http.put(f"/v1/items/{first}", json={})  # shown again
        assert (await items_of(http, user))[0] == first


@pytest.mark.anyio
async def test_an_erased_user_is_in_no_file_and_unknown_from_then_on(
    settings: ClientSettings, served: Shard, serving: Serving
) -> None:
    known = served.user_ids[0]
    async with serving() as http:
        pairs = [(CANARY, item) for item in served.item_ids[:9]]
        await http.post("/v1/interactions", json=message(*pairs, ("other", served.item_ids[0])))
        assert [path for path in state_files(settings) if CANARY.encode() in path.read_bytes()] != []
        erased = (await http.delete(f"/v1/users/{CANARY}")).json()
        assert erased["interactions"] == 9 and erased["done_at"] is not None  # the shard never knew this user
        assert [path for path in state_files(settings) if CANARY.encode() in path.read_bytes()] == []
        assert (await http.get(f"/v1/users/{CANARY}/recommendations")).json()["fallback"] == "unknown user"
        answer = (await http.delete(f"/v1/users/{known}")).json()
        assert answer["interactions"] == 0 and "follow with the next refresh" in answer["remains"]
    async with serving() as http:
        assert (await http.get(f"/v1/users/{known}/recommendations")).json()["fallback"] == "unknown user"
        await http.post("/v1/interactions", json=message((known, served.item_ids[7]), begin=50))
        again = (await http.get(f"/v1/users/{known}/recommendations?k=40&exclude_seen=false")).json()
        basket = await http.post(
            "/v1/recommendations", json={"basket": [served.item_ids[7]], "k": 40, "exclude_seen": False}
        )
        assert again["items"] == basket.json()["results"][0]["items"]  # nothing of before


def state_files(settings: ClientSettings) -> Sequence[Path]:
    return [path for path in settings.state_directory.rglob("*") if path.is_file()]


@pytest.mark.anyio
async def test_bad_messages_are_refused_whole_and_nothing_of_them_comes_back(served: Shard, serving: Serving) -> None:
    good = {"event": "e", "user": "u", "item": served.item_ids[0]}
    async with serving() as http:
        for wrong in (
            {"event": ""},
            {"user": "a\x00" + CANARY},
            {"user": "x" * 513},
            {"item": None},
            {"rating": "many " + CANARY},
            {"time": "yesterday " + CANARY},
            {"time": "2026-01-01T00:00:00"},
            {"time": "9999-12-31T23:59:59-12:00"},
            {"time": "0001-01-01T00:00:00+14:00"},
            {"user": "nan"},
            {"item": "NaN"},
            {CANARY: 1},
        ):
            answer = await http.post("/v1/interactions", json={"interactions": [good, good | wrong]})
            assert answer.status_code == 422 and CANARY not in answer.text, wrong
        nan = b'{"interactions": [{"event": "e", "user": "u", "item": "i", "rating": NaN}]}'
        headers = {"Content-Type": "application/json"}
        assert (await http.post("/v1/interactions", content=nan, headers=headers)).status_code == 422
        assert (await http.post("/v1/interactions", json={"interactions": []})).status_code == 422
        assert (await http.put("/v1/items/a", json={"hidden": True, "colour": 1})).status_code == 422
        assert (await http.get("/v1/users/u/recommendations")).json()["fallback"] == "unknown user"


@pytest.mark.anyio
async def test_a_number_that_is_none_is_refused_and_bricks_nothing(
    served: Shard, serving: Serving, until: Until
) -> None:
    headers = {"Content-Type": "application/json"}
    async with serving() as http:
        for number in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 400):
            body = f'{{"attributes": {{"price": {number}}}}}'
            answer = await http.put(f"/v1/items/{served.item_ids[0]}", content=body, headers=headers)
            assert answer.status_code == 422, number
        erased = (await http.delete(f"/v1/users/{served.user_ids[3]}")).json()
        await until(lambda: is_erased(http, erased["receipt"]))
    async with serving() as http:
        assert (await http.get(f"/v1/items/{served.item_ids[0]}")).json()["attributes"] == {}


@pytest.mark.parametrize("damage", [b'{"attributes": {"canary-price": null}}', b"\xff\xfe canary-price"])
def test_a_stored_row_that_cannot_be_read_is_named_by_its_number_and_not_quoted(
    tmp_path: Path, settings: ClientSettings, damage: bytes
) -> None:
    store = EventStore(tmp_path)
    for item in ("canary-a", "canary-b"):
        store.put_item(item, ItemIn())
    with sqlite3.connect(tmp_path / NAME) as rows:
        rows.execute("UPDATE items SET facts = CAST(? AS TEXT) WHERE item = 'canary-b'", [damage])
    with pytest.raises(DataError, match=r"feedback.sqlite: expected facts of an item in row 2 of") as refused:
        Overlay(compile_in_memory(load_shard(settings.shard)), store)
    assert "canary" not in str(refused.value) and refused.value.__cause__ is None
    store.close()


@pytest.mark.anyio
async def test_only_the_application_s_key_may_tell_anything(settings: ClientSettings, opened: Opened) -> None:
    operator = secrets.token_hex(32)
    own = settings.model_copy(
        update={"application_key": SecretStr(secrets.token_hex(32)), "operator_key": SecretStr(operator)}
    )
    async with opened(own) as http:
        calls = [
            ("POST", "/v1/interactions"),
            ("PUT", "/v1/items/a"),
            ("DELETE", "/v1/items/a"),
            ("DELETE", "/v1/users/u"),
        ]
        for method, path in calls:
            for key, status in ((secrets.token_hex(32), 401), (operator, 403)):
                headers = {"Authorization": f"Bearer {key}"}
                assert (await http.request(method, path, json={}, headers=headers)).status_code == status, path


def test_a_log_that_is_full_takes_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    store = EventStore(tmp_path, most=3)
    store.append(told(("u", "a"), ("u", "b")))
    with pytest.raises(ConflictError, match=r"at most 3 .* there are 2: let the shard absorb them"):
        store.append(told(("u", "c"), ("u", "d"), begin=5))
    assert len(store.append(told(("u", "c"), begin=5))) == 1 and len(store.interactions()) == 3
    store.erasures.erase_user("u", known=False)  # numbers go on, and room is there again
    assert len(store.append(told(("v", "c"), ("v", "d"), ("v", "e"), begin=9))) == 3
    for item in "abc":
        store.put_item(item, ItemIn())
    with pytest.raises(ConflictError, match="at most 3 items"):
        store.put_item("d", ItemIn())
    store.put_item("a", ItemIn(hidden=True))
    assert store.read_all()[0].erased == frozenset()
    store.close()


def test_a_file_that_is_no_such_database_or_of_a_later_version_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / EARLIER_NAME).write_bytes(b"something else" * 100)
    with pytest.raises(DataError, match="expected a database of interactions"):
        EventStore(tmp_path, most=3)
    assert (tmp_path / NAME).read_bytes() == b"something else" * 100
    later = tmp_path / "later"
    (later / NAME).parent.mkdir(parents=True)
    with sqlite3.connect(later / NAME) as rows:
        rows.execute("PRAGMA user_version = 7")
    with pytest.raises(DataError, match="expected version 3, got 7"):
        EventStore(later, most=3)


def test_a_disk_that_refuses_changes_no_answer_and_quotes_no_row(tmp_path: Path, settings: ClientSettings) -> None:
    shard = load_shard(settings.shard)
    store = EventStore(tmp_path, most=100)
    feedback = EventLog(store, Overlay(compile_in_memory(shard), store), settings.shard)
    message = InteractionsIn(interactions=tuple(told((CANARY, shard.item_ids[0]))))
    with sqlite3.connect(tmp_path / NAME, isolation_level=None) as other:
        store._database._rows.execute("PRAGMA busy_timeout = 50")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UnavailableError, match=r"\(SQLITE_BUSY\)"):
            asyncio.run(feedback.add_interactions(message))
        other.execute("ROLLBACK")
    assert feedback.overlay.latest_events(CANARY) is None
    asyncio.run(feedback.add_interactions(message))
    assert feedback.overlay.latest_events(CANARY) is not None
    feedback.close()


def test_another_process_that_may_only_read_follows(tmp_path: Path, settings: ClientSettings) -> None:
    shard = load_shard(settings.shard)
    writer = EventStore(tmp_path, most=100)
    follower = Overlay(compile_in_memory(shard), EventStore(tmp_path, most=100, writing=False))
    writer.append(told(("new", shard.item_ids[0])))
    follower.follow()
    since = follower.latest_events("new")
    assert since is not None and since.positive.tolist() == [0]
    writer.append(told(("new", shard.item_ids[2]), begin=5))
    follower.follow()
    since = follower.latest_events("new")
    assert since is not None and since.seen.tolist() == [0, 2]
    writer.put_item(shard.item_ids[4], ItemIn(hidden=True, title="Five"))
    writer.erasures.erase_user("new", known=False)
    follower.follow()
    assert (
        follower.latest_events("new") is None
        and follower.hidden is not None
        and follower.hidden.nonzero()[0].tolist() == [4]
    )
    assert follower.titles is not None and follower.titles[4] == "Five"
    with pytest.raises(UnavailableError):
        EventStore(tmp_path, most=100, writing=False).append(told(("x", "y")))


def test_who_answers_from_the_shard_before_keeps_what_another_shard_has_absorbed(settings: ClientSettings) -> None:
    """A replica that has not read the new shard yet, or a client beside which `lpsfed shard absorb` ran."""
    old = load_shard(settings.shard)
    settings.state_directory.mkdir(parents=True)
    writer = EventStore(settings.state_directory, most=100)
    follower = Overlay(compile_in_memory(old), EventStore(settings.state_directory, most=100, writing=False))
    writer.append(told(("new", old.item_ids[0])))
    gone, later = old.user_ids[:2]
    writer.erasures.erase_user(gone, known=True)
    follower.follow()
    absorb_and_forget(settings, writer)
    writer.append(told(("new", old.item_ids[2]), begin=5))
    writer.erasures.erase_user(later, known=True)
    follower.follow()
    since = follower.latest_events("new")
    assert since is not None and since.positive.tolist() == [0, 2]
    assert follower.user_row(gone) is follower.user_row(later) is None
    fresh = Overlay(compile_in_memory(load_shard(settings.shard)), writer).latest_events("new")
    assert fresh is not None and fresh.positive.tolist() == [2]
    writer.close()


def test_times_are_kept_in_seconds_of_utc(tmp_path: Path) -> None:
    store = EventStore(tmp_path, most=10)
    given = InteractionIn(event="e", user="u", item="i", time=datetime(2026, 1, 1, 2, tzinfo=UTC), rating=None)
    before = time.time()
    now = InteractionIn(event="f", user="u", item="i", time=None, rating=None)
    first, second = store.append([given, now])
    assert first.time == 1767232800 and before - 1 <= second.time <= time.time()
    store.close()


def test_whoever_had_lists_looked_up_still_has_them_without_feedback(settings: ClientSettings) -> None:
    """The way of a look-up is taken only by who has done nothing since."""
    shard, recommender = keep_first_model(settings)
    overlay = Overlay(compile_in_memory(shard))
    plain = TrainedRecommender(shard, overlay)
    plain.served = recommender.served
    user = shard.user_ids[0]
    assert plain.for_user(user, ListRequest(5)) == recommender.for_user(user, ListRequest(5))


def test_a_shard_absorbs_the_log_without_the_erased_and_twice_changes_nothing(settings: ClientSettings) -> None:
    old = load_shard(settings.shard)
    gone, back = old.user_ids[0], old.user_ids[1]
    settings.state_directory.mkdir(parents=True)
    store = EventStore(settings.state_directory)
    store.append(told(("new", old.item_ids[0]), (gone, old.item_ids[0]), ("new", "fresh")))
    store.append(told(("low", old.item_ids[1]), rating=2.0, begin=10))
    store.put_item("fresh", ItemIn(title="A fresh one"))
    for user in (gone, back):
        store.erasures.erase_user(user, known=True)
    store.append(told((back, old.item_ids[5]), begin=20))
    absorbed = absorb(settings, store)
    before, after = absorbed.before, absorbed.after
    assert len(store.interactions()) == 4 and len(store.read_all()[0].erased) == 2  # answers still need it
    store.delete_absorbed(absorbed.batch, after.lists_digest, absorbed.kept)
    assert before.digest == old.digest != after.digest == load_shard(settings.shard).digest
    assert {*after.user_ids} == {*old.user_ids, "new"} - {gone}
    row, titles = after.user_row(back), dict(zip(after.item_ids, after.titles or (), strict=True))
    assert [after.item_ids[item] for item in after.train[[row]].indices] == [old.item_ids[5]]
    assert titles["fresh"] == "A fresh one" and after.valid[[row]].nnz == 0
    assert [(one.user, one.rating) for one in store.interactions()] == [("low", 2.0)]
    assert store.read_all()[0].erased == frozenset() and "fresh" in store.read_all()[0].items
    assert absorb(settings, store).after.digest == after.digest
    store.close()


def test_a_kill_between_shard_and_log_is_made_good_by_absorbing_again(settings: ClientSettings) -> None:
    old = load_shard(settings.shard)
    settings.state_directory.mkdir(parents=True)
    store = EventStore(settings.state_directory)
    store.erasures.erase_user(old.user_ids[0], known=True)
    store.append(told(("new", old.item_ids[0]), (old.user_ids[0], old.item_ids[3])))
    halfway = absorb(settings, store).after
    again = absorb(settings, store)
    assert old.digest != halfway.digest == again.after.digest == load_shard(settings.shard).digest
    store.delete_absorbed(again.batch, again.after.lists_digest, again.kept)
    assert store.interactions() == [] and store.read_all()[0].erased == frozenset()
    assert {*store.list_stale_shards()} == {
        old.digest,
        again.after.digest,
    }  # what was computed from it is found by whoever goes on
    store.close()
