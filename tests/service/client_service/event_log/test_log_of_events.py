"""The log of what users did: an event counts once for good, the latest of a pair decides, and there is room again."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from client_service.compilation.shard import compile_in_memory
from client_service.data.interaction_files import change_shard, load_shard
from client_service.event_log import store as stores
from client_service.event_log.messages import InteractionIn
from client_service.event_log.overlay import Overlay
from client_service.event_log.shard_update import append_events
from client_service.event_log.store import EventStore
from client_service.settings import ClientSettings
from tests.support.given import Until
from tests.support.kept import absorb, absorb_and_forget, keep_first_model
from tests.support.questions import read
from tests.support.telling import Serving, all_listed, event, items_of, post, refresh


@pytest.fixture
def log(settings: ClientSettings) -> EventStore:
    settings.state_directory.mkdir(parents=True)
    return EventStore(settings.state_directory, most=8)


def told(event: str, user: str, item: str, rating: float | None = None, at: int | None = None) -> InteractionIn:
    """at: seconds since 1970; None: now."""
    when = None if at is None else datetime.fromtimestamp(at, UTC)
    return InteractionIn(event=event, user=user, item=item, rating=rating, time=when)


@pytest.mark.anyio
async def test_an_event_counts_once_however_often_the_log_was_absorbed(
    settings: ClientSettings, serving: Serving, until: Until
) -> None:
    keep_first_model(settings)
    async with serving() as http:
        assert (await post(http, event("new", "item-00")))["accepted"] == 1
        await refresh(http, until)
        both = await post(http, event("new", "item-00"), event("new", "item-02"))
        assert (both["accepted"], both["repeated"]) == (1, 1)
    async with serving() as http:
        assert (await post(http, event("new", "item-00")))["repeated"] == 1


def test_ids_are_remembered_for_so_many_events_and_so_long(
    settings: ClientSettings, log: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append([told("first", "a", "item-00")])
    absorb_and_forget(settings, log)
    assert log.append([told("first", "a", "item-00")]) == []
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + stores.REMEMBERED_SECONDS + 1)
    absorb_and_forget(settings, log)
    assert len(log.append([told("first", "a", "item-00")])) == 1
    for number in range(9):  # the log has room for eight
        log.append([told(f"later-{number}", "a", f"item-0{number}")])
        absorb_and_forget(settings, log)
    assert len(log.append([told("first", "a", "item-00")])) == 1
    assert log.append([told("later-8", "a", "item-08")]) == []
    log.close()


def test_no_id_of_an_event_is_on_the_disk(settings: ClientSettings, log: EventStore) -> None:
    log.append([told("canary-order-4711", "a", "item-00")])
    written = b"".join(path.read_bytes() for path in log.path.parent.iterdir())
    assert b"canary-order" not in written and b"item-00" in written
    del settings
    log.close()


@pytest.mark.anyio
async def test_a_log_full_of_low_ratings_has_room_after_a_refresh_and_takes_repeats_before(
    settings: ClientSettings, serving: Serving, until: Until
) -> None:
    keep_first_model(settings)
    low = [event("low", f"item-0{number}", rating=1.0) for number in range(4)]
    async with serving(most_interactions=4) as http:
        await post(http, *low)
        full = await http.post("/v1/interactions", json={"interactions": [event("low", "item-05", rating=1.0)]})
        assert full.status_code == 409
        assert (await post(http, *low))["repeated"] == 4
        done = await refresh(http, until)
        assert (done["changed"], done["dropped"], done["waiting"]) == (True, 0, 0)
        assert (await post(http, event("new", "item-00"), event("new", "item-02")))["accepted"] == 2
        shown = {one["item"] for one in (await items_of(http, "low"))["items"]}
        assert not {f"item-0{number}" for number in range(4)} & shown  # the shard knows what the log has no room for
        assert (await refresh(http, until))["changed"] and "fallback" not in await items_of(http, "new")


@pytest.mark.parametrize(
    ("first", "second", "liked"),
    [((5.0, 100), (1.0, 200), False), ((5.0, 200), (1.0, 100), True), ((1.0, 100), (5.0, 100), True)],
)
def test_the_latest_of_a_pair_decides_in_answers_and_in_the_shard(
    settings: ClientSettings,
    log: EventStore,
    first: tuple[float, int],
    second: tuple[float, int],
    liked: bool,
) -> None:
    overlay = Overlay(compile_in_memory(load_shard(settings.shard)), log)
    overlay.add_interactions(log.append([told("0", "new", "item-03", at=50)]))
    for name, (rating, at) in (("1", first), ("2", second)):
        overlay.add_interactions(log.append([told(name, "new", "item-05", rating, at)]))
    since = overlay.latest_events("new")
    assert since is not None and (since.positive.tolist() == [3, 5]) is liked and since.seen.tolist() == [3, 5]
    assert since.negative.tolist() == ([] if liked else [5])
    shard = absorb_and_forget(settings, log).after
    row = shard.user_row("new")
    assert [shard.item_ids[item] for item in shard.train[[row]].indices] == ["item-03", "item-05"][: 1 + liked]
    assert [one.item for one in log.interactions()] == ([] if liked else ["item-05"])
    log.close()


@pytest.mark.parametrize(("known", "stays"), [(None, False), (100, False), (300, True)])
def test_a_low_rating_takes_an_earlier_positive_from_the_shard_and_no_later_one(
    settings: ClientSettings, log: EventStore, known: int | None, stays: bool
) -> None:
    rows = pl.DataFrame({"user": ["u", "u"], "item": ["item-00", "item-02"], "time": [known, 50]})
    change_shard(settings.shard, lambda old: append_events(old, rows, Path()))
    before = load_shard(settings.shard)
    overlay = Overlay(compile_in_memory(before), log)
    overlay.add_interactions(log.append([told("e", "u", "item-00", 1.0, 200)]))
    assert (overlay.latest_events("u") is None) is stays
    after = absorb_and_forget(settings, log).after
    assert ("item-00" in [after.item_ids[item] for item in after.train[[after.user_row("u")]].indices]) is stays
    assert after.notes == before.notes
    log.close()


def test_the_last_positives_of_all_are_not_taken_from_a_shard(settings: ClientSettings, log: EventStore) -> None:
    """Otherwise one application could stop every refresh and every erasure."""
    shard = load_shard(settings.shard)
    pairs = shard.events_with_ids().select("user", "item").rows()
    store = EventStore(settings.state_directory)
    store.append([told(str(number), user, item, 1.0) for number, (user, item) in enumerate(pairs)])
    assert absorb(settings, store).after.digest == shard.digest
    store.close()
    log.close()


@pytest.mark.anyio
async def test_who_has_only_seen_more_is_still_looked_up(
    settings: ClientSettings, serving: Serving, until: Until
) -> None:
    shard, _ = keep_first_model(settings)
    user = shard.user_ids[2]
    async with serving() as http:
        await until(lambda: all_listed(http))
        best, second, *_ = (await items_of(http, user))["items"]
        await post(http, event(user, best["item"], rating=1.0))
        assert (await items_of(http, user))["items"][0] == second
        await post(http, event(user, second["item"]))
        assert second["item"] not in [one["item"] for one in (await items_of(http, user))["items"]]
        assert (await read(http, "refresh"))["phase"] == "idle"
