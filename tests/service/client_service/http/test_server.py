"""Processes beside the one that trains answer as it does, change nothing on its disk, and end with it."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest

from client_service.__main__ import server_settings
from client_service.compilation import item_model, item_publisher
from client_service.compiled.arrays import read_folder_head
from client_service.compiled.model import CompiledModelHead, map_lists
from client_service.compiled.publication import CURRENT, HEAD, SERVING, read_publication
from client_service.data.interaction_files import change_shard, load_shard
from client_service.event_log.registry import EventLogKind
from client_service.event_log.shard_update import erase_users
from client_service.http import server
from client_service.http.server_app import create_server
from client_service.serving import recommender
from client_service.serving.ranking import ListRequest
from client_service.settings import ClientSettings, client_settings
from shared.errors import SettingsError, UnavailableError
from shared.web.listening import ListenSettings
from shared.web.server import open_shared_socket
from simulation.ports import free_ports
from tests.support.kept import keep_first_model, publish_model
from tests.support.mapped import mapped_bytes
from tests.support.questions import LONGEST_SECONDS


@pytest.fixture
def served(settings: ClientSettings, monkeypatch: pytest.MonkeyPatch) -> ClientSettings:
    monkeypatch.setattr(server, "LOG_CHECK_SECONDS", 0.02)
    return settings


@asynccontextmanager
async def asking(settings: ClientSettings) -> AsyncIterator[httpx.AsyncClient]:
    app = create_server(server_settings(settings, trains=False))
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
    ):
        http.app = app  # type: ignore[attr-defined]
        yield http


async def listed(http: httpx.AsyncClient, user: str) -> list[str]:
    answer = await http.get(f"/v1/users/{user}/recommendations?k=5")
    return [one["item"] for one in answer.json()["items"]]


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.mark.anyio
async def test_a_server_answers_as_the_client_does_and_writes_nothing(served: ClientSettings) -> None:
    shard, before = keep_first_model(served, published=True)
    folders = served.models_directory, served.shard, served.state_directory / SERVING
    disk = [contents(folder) for folder in folders]
    async with asking(served) as http:
        assert http.app.state.service.answers.lists_share == 1.0  # type: ignore[attr-defined]
        for user in shard.user_ids[:5]:
            assert await listed(http, user) == [one.item for one in before.for_user(user, ListRequest(5)).items]
        basket = [shard.item_ids[row] for row in (1, 2, 5)]
        answer = await http.post("/v1/recommendations", json={"basket": basket, "k": 5})
        expected = before.for_basket(basket, ListRequest(5)).items
        assert [one["item"] for one in answer.json()["results"][0]["items"]] == [one.item for one in expected]
        assert (await http.get("/health/ready")).json() == {"status": "ready", "model": "serving"}
        assert "lpsfed_client_serving 1.0" in (await http.get("/metrics")).text
    assert [contents(folder) for folder in folders] == disk


@pytest.mark.anyio
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc/self/smaps")
async def test_a_server_releases_the_mapped_pages_it_has_read(
    served: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, _ = keep_first_model(served, published=True)
    gc.collect()  # the client that has compiled may still hold maps
    monkeypatch.setattr(server, "LOG_CHECK_SECONDS", 3600.0)
    async with asking(served) as http:
        before = await listed(http, shard.user_ids[0])
        assert mapped_bytes(served.state_directory / SERVING) > 0
    monkeypatch.setattr(server, "LOG_CHECK_SECONDS", 0.02)
    monkeypatch.setattr(server, "MOST_MAPPED", 0)
    async with asking(served) as http:
        assert await listed(http, shard.user_ids[0]) == before
        async with asyncio.timeout(LONGEST_SECONDS):
            while mapped_bytes(served.state_directory / SERVING):
                await asyncio.sleep(0.02)
        assert await listed(http, shard.user_ids[0]) == before


@pytest.mark.anyio
async def test_a_server_says_that_files_of_another_version_are_compiled_anew(served: ClientSettings) -> None:
    shard, _ = keep_first_model(served, published=True)
    published = read_publication(served.state_directory / SERVING)
    assert published is not None
    head = served.state_directory / SERVING / published.shard / HEAD
    head.write_text(head.read_text(encoding="utf-8").replace("lpsfed-compiled-shard/", "lpsfed-compiled-shard/0"))
    async with asking(served) as http:
        for path in ("/health/ready", f"/v1/users/{shard.user_ids[0]}/recommendations", "/v1/model"):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["detail"]) == (503, server.UNREADABLE_FILES), path
        await asyncio.to_thread(partial(keep_first_model, served, "run-2", published=True))
        await until_answered(http, shard.user_ids[0], lambda answer: answer.get("model") == "run-2.0")
        assert (await http.get("/health/ready")).status_code == 200


@pytest.mark.anyio
async def test_a_server_that_cannot_open_the_log_says_so_and_not_that_files_are_unreadable(
    served: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_first_model(served, published=True)
    held = "the log of interactions cannot be used now (SQLITE_BUSY)"

    def refuse(*_: Any) -> None:
        raise UnavailableError(held)

    monkeypatch.setitem(server.EVENT_LOGS, "items", EventLogKind(refuse, refuse))
    async with asking(served) as http:
        answer = await http.get("/health/ready")
        assert (answer.status_code, answer.json()["detail"]) == (503, held)


@pytest.mark.anyio
async def test_a_server_has_nothing_for_the_operator(served: ClientSettings) -> None:
    keep_first_model(served, published=True)
    async with asking(served) as http:
        for path in ("/v1/status", "/v1/quality", "/v1/ledger", "/", "/docs", "/openapi.json"):
            assert (await http.get(path)).status_code == 404, path
        assert (await http.post("/v1/gate/probe")).status_code == 404


@pytest.mark.anyio
async def test_a_server_asks_for_the_application_s_key(served: ClientSettings) -> None:
    shard, _ = keep_first_model(served, published=True)
    keys = {
        "application_key": "AbCdEfGh0123456789-AbCdEfGh0123456789",
        "operator_key": "zYxWvUt9876543210-zYxWvUt9876543210",
    }
    guarded = client_settings(**{**dict(served), **keys})
    async with asking(guarded) as http:
        path = f"/v1/users/{shard.user_ids[0]}/recommendations"
        assert (await http.get(path)).status_code == 401
        for key, status in ((keys["operator_key"], 403), (keys["application_key"], 200)):
            assert (await http.get(path, headers={"Authorization": f"Bearer {key}"})).status_code == status


@pytest.mark.anyio
async def test_a_server_takes_up_a_newer_model_and_keeps_its_own_while_there_is_a_damaged_one(
    served: ClientSettings,
) -> None:
    shard, serving = load_shard(served.shard), served.state_directory / SERVING
    user = shard.user_ids[0]
    async with asking(served) as http:
        assert (await http.get(f"/v1/users/{user}/recommendations")).status_code == 503  # nothing is published yet
        await asyncio.to_thread(publish_model, served, shard, None)
        await until_answered(http, user, lambda answer: answer.get("fallback") == "no model yet")
        for run in ("run-1", "run-2"):
            await asyncio.to_thread(partial(keep_first_model, served, run, published=True))
            await until_answered(http, user, lambda answer, run=run: answer.get("model") == f"{run}.0")  # type: ignore[misc]
        published = read_publication(serving)
        assert published is not None and published.model is not None
        looks = http.app.state.service  # type: ignore[attr-defined]
        damaged = published.model_copy(update={"model": "model-0123456789abcdef", "version": "run-3.0"})
        (serving / CURRENT).write_text(damaged.model_dump_json(), encoding="utf-8")
        await asyncio.to_thread(looks._load_publication)
        assert (await http.get(f"/v1/users/{user}/recommendations")).json()["model"] == "run-2.0"
        assert (await http.get("/health/ready")).status_code == 200


@pytest.mark.anyio
async def test_the_model_before_answers_known_users_until_their_lists_are_filled(
    served: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, _ = keep_first_model(served, published=True)
    serving, early, late = served.state_directory / SERVING, shard.user_ids[0], shard.user_ids[-1]
    basket = {"basket": [shard.item_ids[0]], "k": 5}
    monkeypatch.setattr(item_publisher, "fill_lists", lambda *_: None)
    async with asking(served) as http:
        before = (await http.get(f"/v1/users/{late}/recommendations?k=5")).json()
        await asyncio.to_thread(partial(keep_first_model, served, "run-2", published=True))
        async with asyncio.timeout(LONGEST_SECONDS):
            while (await http.get("/v1/model")).json()["version"] != "run-2.0":
                await asyncio.sleep(0.02)
        assert (await http.get(f"/v1/users/{late}/recommendations?k=5")).json() == before
        batch = await http.post("/v1/recommendations", json={"users": [late], "k": 5})
        assert batch.json()["results"][0]["model"] == "run-1.0"
        assert (await http.post("/v1/recommendations", json=basket)).json()["results"][0]["model"] == "run-2.0"
        liked = {"interactions": [{"event": "e1", "user": early, "item": before["items"][0]["item"]}]}
        assert (await http.post("/v1/interactions", json=liked)).json()["accepted"] == 1
        after = (await http.get(f"/v1/users/{early}/recommendations?k=5")).json()
        assert after["model"] == "run-2.0"  # who has done something is ranked for anew, as always
        assert liked["interactions"][0]["item"] not in [one["item"] for one in after["items"]]
        await http.delete(f"/v1/users/{late}")
        assert (await http.get(f"/v1/users/{late}/recommendations?k=5")).json()["fallback"] == "unknown user"
        published = read_publication(serving)
        assert published is not None and published.model is not None
        head = read_folder_head(serving / published.model, CompiledModelHead)
        lists = map_lists(serving / published.model, head, "r+")
        lists.items[:], lists.scores[:] = np.arange(head.length), 1.0
        lists.ready[0] = head.users - 1
        middle = shard.user_ids[1]
        listed_now = (await http.get(f"/v1/users/{middle}/recommendations?k=5")).json()
        assert (listed_now["model"], listed_now["items"][0]["item"]) == ("run-2.0", shard.item_ids[0])
        lists.ready[0] = head.users
        async with asyncio.timeout(LONGEST_SECONDS):
            while http.app.state.service.answers._fallback is not None:  # type: ignore[attr-defined]
                await asyncio.sleep(0.02)


@pytest.mark.anyio
async def test_a_shard_with_an_erased_user_is_not_kept_for_its_lists(
    served: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, _ = keep_first_model(served, published=True)
    gone = shard.user_ids[0]
    async with asking(served) as http:
        assert (await http.delete(f"/v1/users/{gone}")).status_code == 200
        change_shard(served.shard, lambda before: erase_users(before, [gone]))
        monkeypatch.setattr(item_publisher, "fill_lists", lambda *_: None)
        await asyncio.to_thread(partial(keep_first_model, served, "run-2", published=True))
        async with asyncio.timeout(LONGEST_SECONDS):
            while (await http.get("/v1/model")).json()["version"] != "run-2.0":
                await asyncio.sleep(0.02)
        assert http.app.state.service.answers._fallback is None  # type: ignore[attr-defined]


@pytest.mark.anyio
async def test_a_list_goes_on_behind_its_first_items(served: ClientSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (item_model, recommender):
        monkeypatch.setattr(module, "FIRST", 3)
    shard, before = keep_first_model(served, published=True)
    user = shard.user_ids[0]
    expected = [one.item for one in before.for_user(user, ListRequest(8)).items]
    async with asking(served) as http:
        for hidden in range(3):  # the first items run out where some are hidden
            for k in range(1, 6):
                answer = await http.get(f"/v1/users/{user}/recommendations?k={k}")
                found = [one["item"] for one in answer.json()["items"]]
                assert found == expected[hidden : hidden + k], (hidden, k)
            await http.put(f"/v1/items/{quote(expected[hidden], safe='')}", json={"hidden": True})


@pytest.mark.anyio
async def test_lists_of_the_shard_before_leave_out_what_is_told_after_a_refresh(
    served: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, _ = keep_first_model(served, published=True)
    gone, there = shard.user_ids[:2]
    async with asking(served) as http:
        before = (await http.get(f"/v1/users/{there}/recommendations?k=5")).json()
        change_shard(served.shard, lambda shard: erase_users(shard, [gone]))
        monkeypatch.setattr(item_publisher, "fill_lists", lambda *_: None)
        await asyncio.to_thread(partial(keep_first_model, served, "run-2", published=True))
        async with asyncio.timeout(LONGEST_SECONDS):
            while (await http.get("/v1/model")).json()["version"] != "run-2.0":
                await asyncio.sleep(0.02)
        assert (await http.get(f"/v1/users/{gone}/recommendations")).json()["fallback"] == "unknown user"
        assert (await http.get(f"/v1/users/{there}/recommendations?k=5")).json() == before
        best, second = (one["item"] for one in before["items"][:2])
        await http.put(f"/v1/items/{quote(best, safe='')}", json={"hidden": True})
        after = (await http.get(f"/v1/users/{there}/recommendations?k=5")).json()
        assert (after["model"], after["items"][0]["item"]) == ("run-1.0", second)


async def until_answered(http: httpx.AsyncClient, user: str, question: Callable[[dict[str, Any]], bool]) -> None:
    async with asyncio.timeout(LONGEST_SECONDS):
        while not question((await http.get(f"/v1/users/{user}/recommendations")).json()):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"serving_port": 8803}, "serving_port: expected none: all `workers` answer at `port`"),
        ({"workers": 2, "port": 0}, "port: expected one that workers = 2 can share, got 0"),
        ({"workers": 0}, "workers: expected a number of 1 or more, got 0"),
    ],
)
def test_settings_of_no_use_are_refused(settings: ClientSettings, given: dict[str, int], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        client_settings(**{**dict(settings), **given})


def test_a_shared_port_is_shared_by_those_who_share_it_alone_and_sends_small_answers_at_once() -> None:
    (port,) = free_ports(1)
    place = ListenSettings(host="127.0.0.1", port=port)
    with open_shared_socket(place) as first, open_shared_socket(place) as second:
        assert first.getsockname() == second.getsockname()
        assert first.proto == socket.IPPROTO_TCP  # of any other asyncio does not switch Nagle's waiting off
    with socket.create_server(("127.0.0.1", port)), pytest.raises(SettingsError, match="which is taken"):
        open_shared_socket(place)


@pytest.mark.anyio
async def test_a_server_takes_up_a_shard_of_which_no_model_could_be_kept(served: ClientSettings) -> None:
    shard, _ = keep_first_model(served, published=True)
    gone, there = shard.user_ids[:2]
    async with asking(served) as http:
        assert "fallback" not in (await http.get(f"/v1/users/{gone}/recommendations")).json()
        _, after = change_shard(served.shard, lambda before: erase_users(before, [gone]))
        await asyncio.to_thread(publish_model, served, after, None)
        async with asyncio.timeout(LONGEST_SECONDS):
            while "fallback" not in (answer := (await http.get(f"/v1/users/{there}/recommendations")).json()):
                await asyncio.sleep(0.02)
        assert answer["fallback"] == "no model yet"
        await asyncio.to_thread(partial(keep_first_model, served, "run-2", published=True))
        async with asyncio.timeout(LONGEST_SECONDS):
            while "fallback" in (await http.get(f"/v1/users/{there}/recommendations")).json():
                await asyncio.sleep(0.02)
        assert (await http.get(f"/v1/users/{gone}/recommendations")).json()["fallback"] == "unknown user"


@pytest.mark.anyio
async def test_a_server_follows_what_another_one_was_told(served: ClientSettings) -> None:
    """Two servers write one log; what both are told meets in the answers of both."""
    shard, _ = keep_first_model(served, published=True)
    async with asking(served) as first, asking(served) as second:
        for number, http in enumerate((first, second, first, second)):
            item = shard.item_ids[number]
            events = {"interactions": [{"event": f"e{number}", "user": "new", "item": item}]}
            answer = await http.post("/v1/interactions", json=events)
            assert answer.json() == {"accepted": 1, "repeated": 0, "unknown_items": 0}
        for http in (first, second):
            await until_none_of(http, set(shard.item_ids[:4]))
            again = {"interactions": [{"event": "e0", "user": "new", "item": shard.item_ids[0]}]}
            assert (await http.post("/v1/interactions", json=again)).json()["repeated"] == 1
        receipt = (await first.delete("/v1/users/new")).json()["receipt"]
        assert (await second.get(f"/v1/erasures/{receipt}")).status_code == 200
        async with asyncio.timeout(LONGEST_SECONDS):
            while (await second.get("/v1/users/new/recommendations")).json().get("fallback") != "unknown user":
                await asyncio.sleep(0.02)


async def until_none_of(http: httpx.AsyncClient, met: set[str]) -> None:
    async with asyncio.timeout(LONGEST_SECONDS):
        while "fallback" in (answer := (await http.get("/v1/users/new/recommendations?k=40")).json()) or met & {
            one["item"] for one in answer["items"]
        }:
            await asyncio.sleep(0.02)
