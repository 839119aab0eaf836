"""A refresh keeps what a run has taught, and the models before it, until somebody is erased."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import polars as pl
import pytest
import torch

from client_service.data.interaction_files import change_shard, load_shard
from client_service.evaluation.metrics import Measures
from client_service.event_log.messages import InteractionIn
from client_service.event_log.shard_update import append_events
from client_service.event_log.store import EventStore
from client_service.federation.checkpoint import FITTED
from client_service.model_store.model_files import load_head
from client_service.refresh import rollback
from client_service.refresh.rebuild import ModelRenewal
from client_service.runtime.interruption import NEVER
from client_service.settings import ClientSettings
from client_service.tasks.items import ITEMS
from shared.errors import ConflictError
from tests.support.given import Until
from tests.support.kept import keep_first_model
from tests.support.questions import LONGEST_SECONDS, read
from tests.support.small import SMALL
from tests.support.telling import Serving, ended, event, is_erased, items_of, post, refresh

CANARY = "canary-4711-user"
AT_RANDOM = {"method": SMALL.model_copy(update={"start": "random"})}


def ids(answer: dict[str, Any]) -> list[str]:
    return [one["item"] for one in answer["items"]]


async def versions(http: httpx.AsyncClient) -> list[str]:
    return [one["version"] for one in (await read(http, "models"))["models"]]


async def serve(http: httpx.AsyncClient, version: str) -> int:
    return (await http.post(f"/v1/models/{version}/serve")).status_code


@pytest.mark.anyio
async def test_a_model_that_starts_at_random_goes_on_answering_after_a_refresh_and_an_erasure(
    settings: ClientSettings, serving: Serving, until: Until
) -> None:
    own = settings.model_copy(update=AT_RANDOM)
    shard, _ = keep_first_model(own)
    user = shard.user_ids[5]
    async with serving(**AT_RANDOM) as http:
        before = await items_of(http, user)
        await post(http, event("new", "item-00"), event("new", "item-02"), event(CANARY, "item-01"))
        assert (await refresh(http, until))["model"] == "refresh.1"
        after, new = await items_of(http, user), await items_of(http, "new")
        assert after["model"] == new["model"] == "refresh.1" and "fallback" not in new
        assert ids(after)[:2] == ids(before)[:2]
        receipt = (await http.delete(f"/v1/users/{CANARY}")).json()["receipt"]
        await until(lambda: is_erased(http, receipt))
        assert "fallback" not in await items_of(http, user) and await versions(http) == ["refresh.2"]
        assert (await items_of(http, CANARY))["fallback"] == "unknown user"
    tables = [path for folder in (own.state_directory, own.shard) for path in folder.rglob("*.parquet")]
    assert tables and not [path for path in tables if CANARY.encode() in pl.read_parquet(path).write_csv().encode()]
    async with serving(**AT_RANDOM) as http:
        assert (await items_of(http, user))["model"] == "refresh.2"


@pytest.mark.parametrize(("at_start", "carried", "erased"), [(0.2, 0.3, False), (0.3, 0.3, False), (0.2, 0.3, True)])
def test_validation_chooses_between_the_start_and_what_was_trained_unless_somebody_was_erased(
    settings: ClientSettings, at_start: float, carried: float, erased: bool
) -> None:
    keep_first_model(settings)
    folder = settings.models_directory
    head = load_head(folder)
    assert head is not None
    trained = head.model_copy(update={"round": 3})
    (folder / "model.json").write_text(trained.model_dump_json())
    rows = pl.DataFrame({"user": ["new"], "item": ["item-00"]})
    change_shard(settings.shard, lambda old: append_events(old, rows, Path()))
    values = iter([at_start, carried])
    task = replace(ITEMS, judge=lambda *_: Measures({"ndcg": next(values)}, 5, "ndcg"))
    renewal = ModelRenewal(settings, task, load_shard(settings.shard), torch.device("cpu"), NEVER)
    found = renewal.renew(erased=erased)
    assert found is not None
    taken = carried > at_start and not erased
    assert found.head.carried is taken
    assert found.head.values == ({} if erased else {"ndcg": carried if taken else at_start})
    assert found.head.is_trained is found.head.carried and found.head.version == "refresh.1"


@pytest.mark.anyio
async def test_a_refresh_is_rolled_back_by_ids_and_no_rollback_brings_the_erased_back(
    settings: ClientSettings, serving: Serving, until: Until
) -> None:
    shard, _ = keep_first_model(settings)
    async with serving() as http:
        await post(http, event("new", "item-00"), event("new", "item-02"), event(CANARY, "item-01"))
        await refresh(http, until)
        listed = (await read(http, "models"))["models"]
        assert [(one["version"], one["present_shard"]) for one in listed] == [("refresh.1", True), ("run-1.0", False)]
        assert await serve(http, "run-1.0") == 200
        assert await versions(http) == ["run-1.0~2", "refresh.1"]
        assert (await read(http, "model"))["run"] == "run-1"
        new, known = await items_of(http, "new"), await items_of(http, shard.user_ids[2])
        assert new["model"] == known["model"] == "run-1.0~2" and "fallback" not in new
    async with serving() as http:
        assert (await items_of(http, "new"))["model"] == "run-1.0~2"
        assert await serve(http, "refresh.1") == 200
        receipt = (await http.delete(f"/v1/users/{CANARY}")).json()["receipt"]
        assert await serve(http, "run-1.0~2") in (200, 409)  # before the refresh, or amid it
        assert (await items_of(http, CANARY))["fallback"] == "unknown user"
        await until(lambda: is_erased(http, receipt))
        assert await versions(http) == ["refresh.3"]
        assert await serve(http, "run-1.0~2") == await serve(http, "refresh.1") == 404


@pytest.mark.anyio
async def test_no_version_has_been_another_model_s(settings: ClientSettings, serving: Serving, until: Until) -> None:
    keep_first_model(settings)
    seen: list[str] = []
    for run in ("run-2", "run-3"):
        async with serving() as http:
            for number in range(2):
                await post(http, event(f"{run}-{number}", "item-00"))
                seen.append((await refresh(http, until))["model"])
            assert len(await versions(http)) == 3
        keep_first_model(settings, run)
    assert seen == [f"refresh.{number}" for number in range(1, 5)]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """A refresh that has computed its model, and has not written it: reached, released."""
    reached, released, keep = threading.Event(), threading.Event(), ModelRenewal.keep

    def keep_when_let(*given: Any) -> Any:
        reached.set()
        assert released.wait(LONGEST_SECONDS)
        return keep(*given)

    monkeypatch.setattr(ModelRenewal, "keep", keep_when_let)
    yield reached, released
    released.set()


@pytest.mark.anyio
async def test_a_rollback_amid_a_refresh_is_refused_and_loses_no_model(
    settings: ClientSettings,
    serving: Serving,
    until: Until,
    held: tuple[threading.Event, threading.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollback, "PATIENCE_SECONDS", 0.05)
    for run in ("run-1", "run-2"):
        keep_first_model(settings, run)
    reached, released = held
    async with serving() as http:
        await post(http, event("new", "item-00"))
        assert (await http.post("/v1/refresh")).status_code == 202
        await asyncio.to_thread(reached.wait, LONGEST_SECONDS)
        assert await serve(http, "run-1.0") == 409
        released.set()
        await until(lambda: is_served(http, "refresh.1"))
        assert await versions(http) == ["refresh.1", "run-2.0", "run-1.0"]


async def is_served(http: httpx.AsyncClient, version: str) -> bool:
    return bool((await read(http, "status")).get("model") == version)


@pytest.mark.anyio
async def test_what_a_kill_has_left_in_the_middle_of_writing_is_gone_once_an_erasure_is_done(
    settings: ClientSettings, serving: Serving, until: Until
) -> None:
    shard, _ = keep_first_model(settings)
    models = settings.models_directory
    names = ["model-run-1.3.safetensors.partial", "model.json.partial", "training.safetensors.partial"]
    names += [
        f".spectrum-{shard.digest[:16]}-12.safetensors.abcd.partial",
        f".choice-{shard.digest[:16]}-12.json.ab.tmp",
    ]
    left = [*(models / name for name in names), models / FITTED / names[2]]
    left += [settings.shard / ".staged" / "interactions.parquet", models / "something-else"]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(CANARY.encode())
    async with serving() as http:
        receipt = (await http.delete(f"/v1/users/{shard.user_ids[3]}")).json()["receipt"]
        await until(lambda: is_erased(http, receipt))
        assert [path for path in left if path.exists()] == []
        assert "fallback" not in await items_of(http, shard.user_ids[4])


@pytest.mark.anyio
async def test_a_shard_that_was_begun_and_never_written_goes_with_an_erasure_that_changes_no_shard(
    settings: ClientSettings, serving: Serving, until: Until
) -> None:
    keep_first_model(settings)
    store = EventStore(settings.state_directory)
    store.append([InteractionIn(event="e", user=CANARY, item="item-00", time=None, rating=None)])
    store.begin_merge()
    store.close()
    staged = settings.shard / ".staged"
    staged.mkdir()
    (staged / "interactions.parquet").write_bytes(CANARY.encode())
    async with serving() as http:
        receipt = (await http.delete(f"/v1/users/{CANARY}")).json()["receipt"]
        await until(lambda: is_erased(http, receipt))
        assert (await ended(http, until, 1))["changed"] is False and not staged.exists()


def test_a_rollback_that_comes_before_the_silo_goes_on_with_the_next_shard_is_refused(settings: ClientSettings) -> None:
    keep_first_model(settings)
    answers = SimpleNamespace(changing=threading.Lock())
    silo: Any = SimpleNamespace(answers=answers, shard=SimpleNamespace(digest="of the shard before"))
    with pytest.raises(ConflictError, match="expected a kept model of the present shard"):
        rollback.serve_version(settings.models_directory, silo, "run-1.0")
    assert not answers.changing.locked()


@pytest.mark.anyio
async def test_a_model_that_could_not_be_taken_over_is_none_that_answers(
    settings: ClientSettings, serving: Serving, until: Until
) -> None:
    keep_first_model(settings.model_copy(update=AT_RANDOM))
    for path in settings.models_directory.glob("rows-*.parquet"):
        path.unlink()
    async with serving(**AT_RANDOM) as http:
        [kept] = (await read(http, "models"))["models"]
        assert kept["served"] and kept["present_shard"]
        await post(http, event("new", "item-00"))
        assert (await refresh(http, until)).get("model") is None
        [kept] = (await read(http, "models"))["models"]
        assert not kept["served"] and not kept["present_shard"]
        refused = await http.post("/v1/models/run-1.0/serve")
        assert refused.status_code == 409 and "or after a run" in refused.json()["detail"]
