"""What has been told goes into the shard and its model while the silo answers, and who is erased is in no file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest

from client_service.data.files import lock_folder
from client_service.data.interaction_files import change_shard, load_shard
from client_service.data.interactions import Shard
from client_service.data.shard_head import load_stated_digest
from client_service.event_log.database import EARLIER_NAME, JOURNAL, NAME
from client_service.event_log.log_store import ErasureRegister
from client_service.event_log.messages import InteractionIn
from client_service.event_log.service import EventLog
from client_service.event_log.shard_update import append_events
from client_service.event_log.store import EventStore
from client_service.federation.checkpoint import FITTED
from client_service.federation.checkpoint import NAME as TRAINING
from client_service.http.answer_service import AnswerService
from client_service.model_store.model_files import load_head
from client_service.refresh import rebuild
from client_service.refresh import scheduler as refreshing
from client_service.refresh.rebuild import ModelRenewal
from client_service.serving.ranking import Basket
from client_service.settings import ClientSettings
from shared.errors import DataError, UnavailableError
from tests.support.federation import Federation
from tests.support.given import Federate, Hold, Until
from tests.support.kept import keep_first_model
from tests.support.questions import LONGEST_SECONDS, finished, has_problem, in_phase, read
from tests.support.slow_work import hold_renewals, train_for_long
from tests.support.telling import Serving, all_listed, event, is_erased, items_of, post, refresh, rests

CANARY = "canary-4711-user"


def grow(settings: ClientSettings, user: str) -> Shard:
    """The silo's shard with a user more, who likes what even users like, and a model of it."""
    rows = pl.DataFrame({"user": [user] * 3, "item": ["item-00", "item-02", "item-04"]})
    change_shard(settings.shard, lambda shard: append_events(shard, rows, Path()))
    return keep_first_model(settings)[0]


@pytest.mark.anyio
async def test_a_refresh_takes_new_users_and_items_into_the_model_without_a_restart(
    settings: ClientSettings, serving: Serving, until: Until
) -> None:
    shard, _ = keep_first_model(settings)
    async with serving() as http:
        await http.put("/v1/items/fresh", json={"title": "A fresh one"})
        await post(http, *(event("new", item) for item in ("item-00", "item-02", "fresh")), event("user-00", "fresh"))
        before = await items_of(http, "new")
        done = await refresh(http, until)
        assert done["changed"] and done["model"] == "refresh.1" and done["erasures"] == 0 and "problem" not in done
        after = await items_of(http, "new")
        assert (before["model"], after["model"]) == ("run-1.0", "refresh.1")
        assert {one["item"] for one in after["items"]} == {*shard.item_ids} - {"item-00", "item-02"}
        other = await items_of(http, "user-02")
        assert "A fresh one" in [one.get("title") for one in other["items"]]  # of the catalogue now
        assert (await refresh(http, until))["changed"] is False  # nothing has happened since
    now = load_shard(settings.shard)
    assert {*now.user_ids} == {*shard.user_ids, "new"} and "fresh" in now.item_ids
    store = EventStore(settings.state_directory)
    assert store.interactions() == []
    store.close()


@pytest.mark.anyio
async def test_what_comes_during_a_refresh_is_in_every_answer_and_in_the_next_shard(
    settings: ClientSettings, serving: Serving, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_first_model(settings)
    begun, let = hold_renewals(monkeypatch)
    async with serving() as http:
        await post(http, event("new", "item-00"))
        assert (await http.post("/v1/refresh")).status_code == 202
        await asyncio.to_thread(begun.wait, LONGEST_SECONDS)
        assert (await http.post("/v1/refresh")).status_code == 409
        assert (await read(http, "refresh"))["phase"] == "working"
        head = load_head(settings.models_directory)  # whoever starts a replica now finds a model of the shard
        assert head is not None and head.shard == load_stated_digest(settings.shard)
        await http.delete("/v1/users/user-03")  # whom the shard that was just written still has
        await post(http, event("new", "item-02"), event("later", "item-04"))
        for expected in ("run-1.0", "refresh.2"):
            new, later = await items_of(http, "new"), await items_of(http, "later")
            assert new["model"] == later["model"] == expected
            assert not {"item-00", "item-02"} & {one["item"] for one in new["items"]}
            assert "item-04" not in {one["item"] for one in later["items"]}
            assert (await items_of(http, "user-03"))["fallback"] == "unknown user"
            let.set()
            await until(lambda: model_is(http, "refresh.2"))  # the erasure has asked for one more
    users = {*load_shard(settings.shard).user_ids}
    assert {"new", "later"} < users and "user-03" not in users


async def model_is(http: httpx.AsyncClient, version: str) -> bool:
    return bool((await read(http, "status")).get("model") == version and await rests(http))


def texts(folders: Sequence[Path]) -> dict[Path, bytes]:
    """The content of every file; of tables, what they hold, because it is compressed."""
    found = {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}
    tables = [path for path in found if path.suffix == ".parquet"]
    return found | {path: pl.read_parquet(path).write_csv().encode() for path in tables}


@pytest.mark.anyio
async def test_who_is_erased_is_in_no_file_of_the_silo(
    settings: ClientSettings, serving: Serving, until: Until
) -> None:
    old = grow(settings, CANARY)
    models, folders = settings.state_directory / "model", (settings.state_directory, settings.shard)
    async with serving() as http:
        await post(http, event(CANARY, "item-06"), event("other", "item-01"))
        await until(lambda: all_listed(http))
        before = texts(folders)
        assert sum(CANARY.encode() in content for content in before.values()) >= 2  # the search finds what is there
        answer = (await http.delete(f"/v1/users/{CANARY}")).json()
        assert answer["interactions"] == 1 and CANARY not in str(answer)
        assert (await items_of(http, CANARY))["fallback"] == "unknown user"
        await until(lambda: is_erased(http, answer["receipt"]))
        told = (await http.get(f"/v1/erasures/{answer['receipt']}")).json()
        assert "cannot be taken back" in told["remains"] and "interactions" not in told
        after = texts(folders)
        assert [path for path, content in after.items() if CANARY.encode() in content] == []
        kept = {path.relative_to(models) for path in after if path.is_relative_to(models)}
        computed = {path.relative_to(models) for path in before if path.is_relative_to(models)}
        figures = {Path("quality.json"), Path("spectra.json"), Path("model.json"), Path("numbers.json")}
        assert {Path(TRAINING)} < computed and not kept & (computed - figures)
        head = load_head(models)
        assert head is not None and head.shard == load_shard(settings.shard).digest != old.digest
        assert (await items_of(http, CANARY))["fallback"] == "unknown user"
    async with serving() as http:  # and it stays so
        assert (await http.get(f"/v1/erasures/{answer['receipt']}")).json() == told
        assert (await items_of(http, CANARY))["fallback"] == "unknown user"
        assert (await http.get(f"/v1/erasures/{'0' * 32}")).status_code == 404


@pytest.mark.anyio
@pytest.mark.parametrize(
    "killed_at",
    [
        (ModelRenewal, "renew"),
        (rebuild, "save_absorbed"),
        (ModelRenewal, "keep"),
        (rebuild, "delete_outdated_files"),
        (EventLog, "delete_absorbed"),
        (ErasureRegister, "complete"),
    ],
)
async def test_an_erasure_that_was_cut_off_anywhere_is_done_by_the_next_start(
    settings: ClientSettings, serving: Serving, until: Until, killed_at: tuple[object, str]
) -> None:
    old = grow(settings, CANARY)
    async with serving() as http:
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(*killed_at, stop)
            receipt = (await http.delete(f"/v1/users/{CANARY}")).json()["receipt"]
            await until(lambda: has_failed(http))
    (settings.state_directory / "model" / FITTED).mkdir()
    async with serving() as http:
        await until(lambda: is_erased(http, receipt))
        assert (await items_of(http, CANARY))["fallback"] == "unknown user"
    content = texts((settings.state_directory, settings.shard))
    assert [path for path, found in content.items() if CANARY.encode() in found] == []
    assert [path for path in content if old.digest[:16] in path.name] == []


def stop(*_: object, **__: object) -> None:
    raise DataError("expected to go on, was stopped")


async def has_failed(http: httpx.AsyncClient) -> bool:
    return "problem" in await read(http, "refresh")


@pytest.mark.anyio
async def test_a_shard_that_cannot_be_written_is_said_and_tried_again(
    settings: ClientSettings, serving: Serving, until: Until
) -> None:
    keep_first_model(settings)
    async with serving() as http:
        await post(http, event("new", "item-00"))
        with lock_folder(settings.shard):
            done = await refresh(http, until)
            assert "nobody else is changing" in done["problem"] and "changed" not in done
            assert any("nobody else is changing" in one for one in (await read(http, "status"))["warnings"])
            assert "fallback" not in await items_of(http, "new")
        done = await refresh(http, until)
        assert done["changed"] and "problem" not in done


@pytest.mark.anyio
async def test_the_last_user_is_not_erased_from_a_shard_and_the_silo_says_so(
    settings: ClientSettings, serving: Serving, until: Until
) -> None:
    shard, _ = keep_first_model(settings)
    async with serving() as http:
        receipts = [(await http.delete(f"/v1/users/{user}")).json()["receipt"] for user in shard.user_ids]
        await until(lambda: has_failed(http))
        assert not await is_erased(http, receipts[-1])
        assert (await items_of(http, shard.user_ids[-1]))["fallback"] == "unknown user"
        assert not {*shard.user_ids} & {*str(await read(http, "refresh")).split("'")}


@pytest.mark.anyio
async def test_so_many_interactions_make_a_refresh_and_low_ratings_none(
    settings: ClientSettings, serving: Serving, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_service.refresh.scheduler.LOG_CHECK_SECONDS", 0.01)
    keep_first_model(settings)
    async with serving(refresh_interactions=3) as http:
        await post(http, *(event("low", f"item-0{number}", rating=1.0) for number in range(5)), event("new", "item-00"))
        await asyncio.sleep(0.2)
        assert (await read(http, "refresh")) == {"phase": "idle", "number": 0, "last_ended": 0}
        await post(http, event("new", "item-02"), event("new", "item-04"))
        await until(lambda: model_is(http, "refresh.1"))
        await asyncio.sleep(0.2)
        assert await model_is(http, "refresh.1")  # the low ratings, which stay, make no further one


@pytest.mark.anyio
async def test_in_an_open_run_it_waits_for_the_round_and_the_run_goes_on_with_the_new_shard(
    federation: Federate, held: Hold, until: Until
) -> None:
    stop = held("client-1", 1)
    async with federation(2) as running:
        silo, other = await running.enter()
        await running.start(rounds=3)
        await asyncio.to_thread(stop.reached.wait, LONGEST_SECONDS)
        await post(silo, event("new", "item-00"), event("new", "item-02"))
        assert (await silo.post("/v1/refresh")).status_code == 202
        await until(lambda: waits_for_the_round(silo))
        assert "new" not in load_shard(running.clients[0].shard).user_ids
        stop.released.set()
        await until(lambda: rests(silo))
        await until(finished(silo, other))
        assert (await read(silo, "refresh"))["changed"] and "new" in load_shard(running.clients[0].shard).user_ids
        await took_part_in_all(running)
        quality, user = await read(silo, "quality"), await items_of(silo, "new")
        assert quality["finished"] and quality["test_users"] and user["model"].startswith("run-1.")
        head = load_head(running.clients[0].state_directory / "model")
        assert head is not None and head.shard == load_shard(running.clients[0].shard).digest


async def waits_for_the_round(silo: httpx.AsyncClient) -> bool:
    return bool((await read(silo, "refresh"))["phase"] == "waiting")


async def took_part_in_all(running: Federation) -> None:
    """No client was missing in any round."""
    history = await running.history()
    assert [one["missing"] for one in history["rounds"]] == [[]] * 3


@pytest.mark.anyio
async def test_a_round_that_is_trained_and_cannot_be_sent_is_sent_before_the_shard_changes(
    federation: Federate, held: Hold, until: Until
) -> None:
    stop = held("client-1", 1)
    async with federation(2) as running:
        line = running.line()
        (silo,) = await running.enter(running.clients[0], line=line)
        _, other = await running.enter(running.clients[1])
        await running.start()
        await asyncio.to_thread(stop.reached.wait, LONGEST_SECONDS)
        line.app = None
        stop.released.set()
        await until(has_problem(silo, "cannot be reached"))
        await post(silo, event("new", "item-00"))
        assert (await silo.post("/v1/refresh")).status_code == 202
        await until(lambda: waits_for_the_round(silo))
        line.app = running.app
        await until(lambda: rests(silo))
        assert (await read(silo, "refresh"))["changed"]
        await until(finished(silo, other))
        assert [one["missing"] for one in (await running.history())["rounds"]] == [[], []]


@pytest.mark.anyio
async def test_a_round_that_never_ends_holds_the_shard_up_for_a_bounded_time(
    federation: Federate, held: Hold, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_service.federation.agent.LONGEST_ROUND", 0.5)
    stop = held("client-1", 1)
    async with federation(2) as running:
        line = running.line()
        (silo,) = await running.enter(running.clients[0], line=line)
        await running.enter(running.clients[1])
        await running.start()
        await asyncio.to_thread(stop.reached.wait, LONGEST_SECONDS)
        line.app = None
        stop.released.set()
        await post(silo, event("new", "item-00"))
        assert (await refresh(silo, until))["changed"]


@pytest.mark.anyio
async def test_a_round_that_waits_for_another_client_gives_way_after_a_bounded_time(
    federation: Federate, held: Hold, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deadline may be weeks away. Then the run goes on, and has missed nothing that the aggregator waited for."""
    monkeypatch.setattr("client_service.federation.agent.LONGEST_ROUND", 0.2)
    stop = held("client-2", 1)
    async with federation(2, first={"wait_seconds": 0.1}) as running:
        silo, other = await running.enter()
        await running.start()
        await until(in_phase(silo, "waiting for the round"))
        await post(silo, event("new", "item-00"))
        receipt = (await silo.delete("/v1/users/user-03")).json()["receipt"]
        await until(lambda: is_erased(silo, receipt))
        assert not stop.released.is_set()
        stop.released.set()
        await until(finished(silo, other))
        assert [one["missing"] for one in (await running.history())["rounds"]] == [[], []]
        users = load_shard(running.clients[0].shard).user_ids
        assert "new" in users and "user-03" not in users


@pytest.mark.anyio
async def test_training_is_left_where_it_is_after_a_bounded_time_and_done_anew_on_the_next_shard(
    federation: Federate, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_service.federation.agent.LONGEST_ROUND", 0.2)
    train_for_long(monkeypatch, "client-1")
    async with federation(2) as running:
        silo, other = await running.enter()
        await running.start()
        await until(in_phase(silo, "training"))
        await post(silo, event("new", "item-00"))
        assert (await refresh(silo, until))["changed"]
        await until(finished(silo, other))
        assert [one["missing"] for one in (await running.history())["rounds"]] == [[], []]
        assert (await items_of(silo, "new"))["model"].startswith("run-1.")


@pytest.mark.anyio
async def test_training_that_gave_way_to_a_refresh_that_fails_is_done_anew_on_the_shard_as_it_is(
    federation: Federate, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_service.federation.agent.LONGEST_ROUND", 0.2)

    def fail(*_: object, **__: object) -> None:
        raise DataError("expected another shard")

    train_for_long(monkeypatch, "client-1")
    monkeypatch.setattr(ModelRenewal, "renew", fail)
    async with federation(2) as running:
        silo, other = await running.enter()
        await running.start()
        await until(in_phase(silo, "training"))
        await post(silo, event("new", "item-00"))
        assert (await refresh(silo, until))["problem"] == "expected another shard"
        await until(finished(silo, other))
        assert (await silo.get("/health/live")).status_code == 200


@pytest.mark.anyio
@pytest.mark.parametrize("failing", [1, 3])
async def test_a_log_that_cannot_be_read_now_is_looked_at_again(
    settings: ClientSettings, serving: Serving, until: Until, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    monkeypatch.setattr(refreshing, "LOG_CHECK_SECONDS", 0.05)
    keep_first_model(settings)
    look, looks = EventStore.has_new_events, list[int]()

    def fail_once(store: EventStore, *given: Any) -> bool:
        looks.append(1)
        if len(looks) == failing:
            raise UnavailableError("expected a log that can be read")
        return look(store, *given)

    monkeypatch.setattr(EventStore, "has_new_events", fail_once)
    async with serving(refresh_interactions=1) as http:

        async def has_looked() -> bool:
            return len(looks) > failing

        await until(has_looked)
        await post(http, event("new", "item-00"))

        async def refreshed() -> bool:
            return bool((await read(http, "refresh")).get("changed"))

        await until(refreshed)


@pytest.mark.anyio
async def test_erasures_that_cannot_be_looked_for_at_a_start_are_done(
    settings: ClientSettings, serving: Serving, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, _ = keep_first_model(settings)
    user = shard.user_ids[3]
    store = EventStore(settings.state_directory)
    receipt = store.erasures.erase_user(user, known=True)[1].receipt
    store.close()
    look, looks = ErasureRegister.has_open, list[int]()

    def fail_once(register: ErasureRegister) -> bool:
        looks.append(1)
        if len(looks) == 2:  # the first look is that for a kept model
            raise UnavailableError("expected a log that can be read")
        return look(register)

    monkeypatch.setattr(ErasureRegister, "has_open", fail_once)
    async with serving() as http:
        await until(lambda: is_erased(http, receipt))
        assert len(looks) > 2


@pytest.mark.anyio
async def test_between_runs_it_needs_no_aggregator_and_the_next_run_trains_on_it(
    federation: Federate, until: Until
) -> None:
    async with federation(2) as running:
        silo, other = await running.enter()
        await running.start()
        await until(finished(silo, other))
        await until(in_phase(silo, "finished"))
        await post(silo, event("new", "item-00"))
        done = await refresh(silo, until)
        assert done["model"] == "refresh.1"
        await running.start()
        await until(finished(silo, other, run="run-2"))
        assert (await items_of(silo, "new"))["model"].startswith("run-2.")


VERSION_1 = """
CREATE TABLE interactions (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL UNIQUE,
    user TEXT NOT NULL, item TEXT NOT NULL, time INTEGER NOT NULL, rating REAL
);
CREATE INDEX interactions_of_user ON interactions (user);
CREATE TABLE items (item TEXT PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE erased (mark BLOB PRIMARY KEY);
CREATE TABLE place (key BLOB NOT NULL, rewritten INTEGER NOT NULL);
INSERT INTO interactions (event, user, item, time, rating)
    VALUES ('e', 'u', 'i', 5, NULL), ('canary', 'v', 'j', 6, 1.0);
INSERT INTO items VALUES ('i', '{"hidden": true}');
INSERT INTO erased VALUES (x'01');
INSERT INTO place VALUES (x'0102', 3);
PRAGMA user_version = 1;
"""
VERSION_2 = """
CREATE TABLE erasures (receipt TEXT PRIMARY KEY, asked INTEGER NOT NULL, done INTEGER, mark BLOB);
CREATE TABLE stale (shard TEXT PRIMARY KEY);
ALTER TABLE place ADD COLUMN absorbed INTEGER NOT NULL DEFAULT 0;
INSERT INTO erasures VALUES ('r', 7, NULL, x'01');
INSERT INTO stale VALUES ('s');
PRAGMA user_version = 2;
"""


@pytest.mark.parametrize("scripts", [(VERSION_1,), (VERSION_1, VERSION_2)])
def test_a_log_of_a_version_before_is_taken_over(tmp_path: Path, scripts: tuple[str, ...]) -> None:
    with closing(sqlite3.connect(tmp_path / EARLIER_NAME)) as rows:
        for script in scripts:
            rows.executescript(script)
    store = EventStore(tmp_path)
    assert [(one.user, one.time, one.rating) for one in store.interactions()] == [("u", 5, None), ("v", 6, 1.0)]
    told = store.read_all()[0]
    assert told.items["i"].hidden and told.erased == {b"\x01"} and told.key == b"\x01\x02"
    assert store.list_stale_shards() == ("s",) * (len(scripts) - 1)
    assert store.erasures.has_open() is (len(scripts) == 2)
    again = InteractionIn(event="e", user="u", item="i", time=None, rating=None)
    later = InteractionIn(event="f", user="u", item="i", time=None, rating=None)
    assert [one.sequence for one in store.append([again, later])] == [3]
    store.compact()
    assert not any(b"canary" in path.read_bytes() for path in (tmp_path / NAME).parent.iterdir())
    assert not (tmp_path / EARLIER_NAME).exists()
    store.close()


def test_a_log_that_was_killed_in_a_transaction_moves_with_its_journal(tmp_path: Path) -> None:
    """Else its rows would be half of what they were, and half of what they were to be."""
    before = EventStore(tmp_path)
    before.append([InteractionIn(event=f"e{n}", user="u", item="i", time=None, rating=None) for n in range(2000)])
    before.close()
    (tmp_path / NAME).replace(tmp_path / EARLIER_NAME)
    with closing(sqlite3.connect(tmp_path / EARLIER_NAME, isolation_level=None)) as rows:
        rows.execute("PRAGMA journal_mode = DELETE")
        rows.executescript("PRAGMA cache_size = 1; BEGIN IMMEDIATE; UPDATE interactions SET user = 'someone else';")
        killed = {end: (tmp_path / f"{EARLIER_NAME}{end}").read_bytes() for end in ("", JOURNAL)}
        rows.execute("ROLLBACK")
    for end, content in killed.items():
        (tmp_path / f"{EARLIER_NAME}{end}").write_bytes(content)
    assert b"someone else" in killed[""]
    store = EventStore(tmp_path)
    assert {one.user for one in store.interactions()} == {"u"}
    store.close()


def test_baskets_that_were_read_before_a_refresh_are_answered_by_the_shard_that_they_were_read_for(
    settings: ClientSettings,
) -> None:
    """A refresh comes between the reading of a request and its answer; the new catalogue is longer than its mask."""
    shard, before = keep_first_model(settings)
    rows = pl.DataFrame({"user": ["user-00"], "item": ["a new one"]})
    change_shard(settings.shard, lambda old: append_events(old, rows, Path()))
    _, after = keep_first_model(settings, "run-2")
    answering = AnswerService(settings)
    basket = (shard.item_ids[0],)
    asked = [(one, Basket(basket, one.limits(3, exclude=[shard.item_ids[2]]))) for one in (before, after, before)]
    first, second, third = answering._recommend_baskets(asked)
    assert (first.model, second.model, third.model) == ("run-1.0", "run-2.0", "run-1.0") and first == third
