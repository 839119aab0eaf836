"""Who is erased is gone: also amid a refresh, with a disk that refuses, and from what other processes answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from client_service.compilation.shard import compile_in_memory
from client_service.data.interaction_files import load_shard
from client_service.event_log.database import NAME, EventDatabase
from client_service.event_log.messages import InteractionIn
from client_service.event_log.overlay import Overlay
from client_service.event_log.store import EventStore
from client_service.serving.ranking import ListRequest
from client_service.serving.recommender import Recommender
from client_service.settings import ClientSettings
from shared.errors import UnavailableError
from tests.support.compiled import TrainedRecommender
from tests.support.given import Until
from tests.support.kept import absorb, absorb_and_forget, keep_first_model
from tests.support.questions import LONGEST_SECONDS, read
from tests.support.slow_work import hold_renewals
from tests.support.telling import Serving, event, is_erased, items_of, post, refresh

CANARY = "canary-4711-user"
Amid = Callable[[httpx.AsyncClient], Any]


@pytest.fixture
def amid(monkeypatch: pytest.MonkeyPatch) -> Amid:
    """`async with amid(http)`: a refresh has taken the log, and is let go at the end."""
    begun, let = hold_renewals(monkeypatch)

    @asynccontextmanager
    async def hold(http: httpx.AsyncClient) -> AsyncIterator[None]:
        assert (await http.post("/v1/refresh")).status_code == 202
        await asyncio.to_thread(begun.wait, LONGEST_SECONDS)
        yield
        let.set()

    return hold


async def is_unknown(http: httpx.AsyncClient, user: str) -> bool:
    return bool((await items_of(http, user)).get("fallback") == "unknown user")


@pytest.mark.anyio
async def test_a_user_of_events_alone_who_is_erased_amid_a_refresh_is_erased_from_its_shard_too(
    settings: ClientSettings, serving: Serving, until: Until, amid: Amid
) -> None:
    keep_first_model(settings)
    async with serving() as http:
        await post(http, event(CANARY, "item-00"), event(CANARY, "item-02"))
        async with amid(http):
            answer = (await http.delete(f"/v1/users/{CANARY}")).json()
            assert answer["done_at"] is None and answer["interactions"] == 2
            again = (await http.delete(f"/v1/users/{CANARY}")).json()
            assert again["done_at"] is None and await is_unknown(http, CANARY)
        await until(lambda: is_erased(http, answer["receipt"]))
        assert await is_erased(http, again["receipt"]) and await is_unknown(http, CANARY)
    assert CANARY not in load_shard(settings.shard).user_ids


def test_who_comes_back_and_is_erased_again_amid_a_refresh_is_erased_from_its_shard_too(
    settings: ClientSettings,
) -> None:
    shard = load_shard(settings.shard)
    user = shard.user_ids[3]
    settings.state_directory.mkdir(parents=True)
    store = EventStore(settings.state_directory)
    _, first = store.erasures.erase_user(user, known=True)
    store.append([InteractionIn(event="e", user=user, item="item-00", time=None, rating=None)])
    absorbed = absorb(settings, store)
    assert user in absorbed.after.user_ids  # he has come back
    gone, second = store.erasures.erase_user(user, known=False)  # as far as answers from the shard before know
    store.delete_absorbed(absorbed.batch, absorbed.after.lists_digest, absorbed.kept)
    assert gone == 1 and store.erasures.complete() == 0
    absorb_and_forget(settings, store)
    assert user not in load_shard(settings.shard).user_ids and store.erasures.complete() == 1
    for one in (first, second):
        receipt = store.erasures.read_receipt(one.receipt)
        assert receipt is not None and receipt.done is not None
    store.close()


@pytest.mark.anyio
async def test_who_is_in_a_shard_that_was_written_since_is_erased_from_it(
    settings: ClientSettings, serving: Serving, until: Until
) -> None:
    """`lpsfed shard absorb` beside a client that goes on with the shard that it has read."""
    keep_first_model(settings)
    async with serving() as http:
        await post(http, event(CANARY, "item-00"))
        other = EventStore(settings.state_directory)
        absorb_and_forget(settings, other)
        other.close()
        answer = (await http.delete(f"/v1/users/{CANARY}")).json()
        assert answer["interactions"] == 0 and answer["done_at"] is None
        await until(lambda: is_erased(http, answer["receipt"]))
    assert CANARY not in load_shard(settings.shard).user_ids


@pytest.mark.anyio
async def test_a_file_that_cannot_be_compacted_now_holds_no_erasure_up_and_is_compacted_later(
    settings: ClientSettings, serving: Serving, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, _ = keep_first_model(settings)
    user = shard.user_ids[3]
    monkeypatch.setattr("client_service.refresh.scheduler.RETRY_SECONDS", 0.05)
    async with serving() as http:
        await post(http, event(CANARY, "item-00"))
        with pytest.MonkeyPatch.context() as full:
            full.setattr(EventDatabase, "compact", refuse)
            answers = [(await http.delete(f"/v1/users/{one}")).json() for one in (CANARY, user)]
            assert [one["done_at"] for one in answers] == [None, None]
            assert await is_unknown(http, CANARY) and await is_unknown(http, user)
            await until(lambda: has_failed(http))
            assert not await is_erased(http, answers[0]["receipt"])
        for one in answers:
            await until(lambda one=one: is_erased(http, one["receipt"]))
        assert await is_unknown(http, user) and "fallback" not in await items_of(http, shard.user_ids[4])
    assert [
        one for one in (settings.state_directory / NAME).parent.iterdir() if CANARY.encode() in one.read_bytes()
    ] == []


def refuse(*_: object) -> None:
    raise UnavailableError("the log of interactions cannot be used now (SQLITE_FULL)")


async def has_failed(http: httpx.AsyncClient) -> bool:
    return "SQLITE_FULL" in (await read(http, "refresh")).get("problem", "")


def follow(folder: Path, overlay: Overlay) -> None:
    """As another process does, which has the log open from the first time on."""
    if overlay.has_store:
        overlay.follow()
    else:
        overlay.attach_store(EventStore(folder, most=100))


@pytest.mark.parametrize("forgotten", ["before it follows", "while it follows", "with the erasure unseen"])
def test_a_replica_forgets_whom_another_process_has_absorbed_and_erased(
    settings: ClientSettings, forgotten: str
) -> None:
    """One on the shard before, and one on the new shard, whenever it has begun to follow the log."""
    settings.state_directory.mkdir(parents=True)
    store, folder = EventStore(settings.state_directory), settings.state_directory
    met = [(CANARY, "item-00"), (CANARY, "item-02"), ("other", "item-02")]
    store.append([InteractionIn(event=user + item, user=user, item=item, time=None, rating=None) for user, item in met])
    old = Overlay(compile_in_memory(load_shard(settings.shard)))
    follow(folder, old)
    absorbed = absorb(settings, store)
    new = Overlay(compile_in_memory(absorbed.after))
    if forgotten == "while it follows":
        follow(folder, new)
    store.delete_absorbed(absorbed.batch, absorbed.after.lists_digest, absorbed.kept)
    follow(folder, old)
    follow(folder, new)
    assert old.latest_events(CANARY) is not None and new.user_row(CANARY) is not None  # known by both, each in its way
    assert new.latest_events(CANARY) is None
    store.erasures.erase_user(CANARY, known=True)
    if forgotten == "with the erasure unseen":
        absorb_and_forget(settings, store)
        follow(folder, old)
        assert old.latest_events(CANARY) is None  # nor is anybody else known then, until the new shard is there
    else:
        for one in (old, new):
            follow(folder, one)
            assert one.latest_events(CANARY) is None and one.user_row(CANARY) is None
        assert old.latest_events("other") is not None and new.user_row("other") is not None
    store.close()


@pytest.mark.anyio
async def test_an_event_that_was_accepted_before_brings_nobody_back(
    settings: ClientSettings, serving: Serving, until: Until
) -> None:
    keep_first_model(settings)
    batch = (event(CANARY, "item-00"), event("other", "item-00"))
    async with serving() as http:
        await post(http, *batch)
        await refresh(http, until)
        receipt = (await http.delete(f"/v1/users/{CANARY}")).json()["receipt"]
        assert (await post(http, *batch))["repeated"] == 2
        await until(lambda: is_erased(http, receipt))
        assert (await post(http, *batch))["repeated"] == 2 and await is_unknown(http, CANARY)
        assert (await post(http, event(CANARY, "item-00", 1)))["accepted"] == 1  # a new one does
        assert not await is_unknown(http, CANARY)


def test_who_is_erased_between_two_looks_of_a_request_is_answered_as_at_the_first(
    settings: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, before = keep_first_model(settings)
    store = EventStore(settings.state_directory)
    overlay = Overlay(compile_in_memory(shard), store)
    overlay.add_interactions(
        store.append([InteractionIn(event="e", user=CANARY, item="item-00", time=None, rating=None)])
    )
    recommender = TrainedRecommender(shard, overlay)
    recommender.served = before.served
    look_up = Recommender._look_up

    def look_up_and_erase(*given: Any) -> Any:
        found = look_up(*given)
        store.erasures.erase_user(CANARY, known=False)
        overlay.reload()
        return found

    monkeypatch.setattr(Recommender, "_look_up", look_up_and_erase)
    assert recommender.recommend_users((CANARY, shard.user_ids[0]), ListRequest(3))[0].fallback is None
    assert recommender.recommend_users((CANARY,), ListRequest(3))[0].fallback == "unknown user"
    store.close()
