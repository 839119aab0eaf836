"""The Python client asks a real silo; the awaitable client is generated from it."""

from __future__ import annotations

import json
import logging
import runpy
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import get_type_hints

import httpx
import pytest

from client_service.data.interactions import Shard
from lpsfed import (
    AsyncClient,
    BatchOptions,
    Client,
    Interaction,
    ListOptions,
    RefusedError,
    Retrying,
    ShardRefresh,
    UnreachableError,
    calls,
)
from tests.service.lpsfed.conftest import KEY
from tests.support.questions import LONGEST_SECONDS

ROOT = Path(__file__).parents[3]
ONCE = Retrying(attempts=1)


def test_a_list_is_the_one_that_the_silo_answers(asking: Client, shared_silo: str, shared_shard: Shard) -> None:
    user = shared_shard.user_ids[0]
    found = asking.recommend(user, k=4, exclude_seen=False)
    said = httpx.get(
        f"{shared_silo}/v1/users/{user}/recommendations?k=4&exclude_seen=false",
        headers={"Authorization": f"Bearer {KEY}"},
    ).json()
    assert (found.user, found.model, found.fallback) == (user, "run-1.0", None)
    assert [(one.item, one.score) for one in found.items] == [(one["item"], one["score"]) for one in said["items"]]


def test_options_reach_the_silo_in_a_query_and_in_a_body(client: Client, shard: Shard) -> None:
    client.put_item("item-00", title="Winter boots", categories=["shoes"], attributes={"year": 1999, "warm": True})
    user, asked = shard.user_ids[0], {"k": 5, "filter": ["category:shoes"], "exclude_seen": False}
    assert [one.item for one in client.recommend(user, **asked).items] == ["item-00"]  # type: ignore[arg-type]
    [found] = client.recommend_users([user], **asked)  # type: ignore[arg-type]
    assert [one.title for one in found.items] == ["Winter boots"]
    assert client.recommend(user, filter=[], exclude=("item-00",), raw=True).items
    reasons = client.recommend_basket(["item-00", "item-01"], k=2, explain=True)
    assert len(reasons.items) == 2 and reasons.user is None


def test_only_allowed_items_are_listed(asking: Client, shared_shard: Shard) -> None:
    allowed = ("item-07", "item-05")
    [found] = asking.recommend_users(shared_shard.user_ids[:1], allow=allowed, exclude_seen=False)
    assert {one.item for one in found.items} == set(allowed)
    assert [one.item for one in asking.recommend_basket(["item-00"], allow=["item-07", "item-00"]).items] == ["item-07"]
    assert asking.recommend_basket(["item-00"], allow=[]).items == ()


def test_every_option_of_a_list_can_be_asked_for(shared_silo: str) -> None:
    document = httpx.get(f"{shared_silo}/openapi.json").json()
    asked = document["paths"]["/v1/users/{user}/recommendations"]["get"]["parameters"]
    assert {one["name"] for one in asked if one["in"] == "query"} == get_type_hints(ListOptions).keys()
    body = document["components"]["schemas"]["RecommendationsIn"]["properties"].keys() - {"users", "basket"}
    assert body == get_type_hints(BatchOptions).keys()


def test_items_are_found_described_and_hidden(client: Client) -> None:
    client.put_item("a/b?c#d%e ü", title="Odd one", attributes={"year": 1999, "warm": True, "maker": "x"})
    odd = client.read_item("a/b?c#d%e ü")
    assert odd.attributes == {"year": 1999, "warm": True, "maker": "x"} and not odd.in_catalogue
    assert client.search_items("ITEM-00", k=1).items[0].item == "item-00"
    assert client.search_items(k=3, offset=2).total == 12
    assert client.find_similar("item-00", 3).item == "item-00"
    client.delete_item("item-00")
    assert client.read_item("item-00").hidden


@pytest.mark.parametrize("name", [".", "..", "...", "../..", "%2E", "%2e%2E"])
def test_a_name_of_dots_leads_nowhere_else(client: Client, name: str) -> None:
    client.put_item(name, title="Odd one")
    assert client.read_item(name).item == name
    client.delete_item(name)
    assert client.read_item(name).hidden
    assert client.send_interactions([Interaction(name, "item-00")]).accepted == 1
    known = client.recommend(name)
    assert (known.user, known.fallback) == (name, None)
    client.erase_user(name)
    assert client.recommend(name).fallback == "unknown user"


def test_interactions_count_once_however_often_they_are_sent(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "INTERACTIONS_A_CALL", 2)
    told = [Interaction("new", f"item-0{n}", datetime(2026, 11, 1, tzinfo=UTC), 5.0) for n in range(5)]
    assert client.send_interactions(told).accepted == 5
    again = client.send_interactions(iter(told))
    assert (again.accepted, again.repeated) == (0, 5)
    assert client.recommend("new").fallback is None
    with pytest.raises(ValueError, match="expected a datetime with an offset from UTC"):
        client.send_interactions([Interaction("new", "item-00", datetime(2026, 11, 1))])


def test_a_user_is_erased_and_the_receipt_tells_when(client: Client, shard: Shard) -> None:
    client.send_interactions([Interaction(shard.user_ids[0], f"item-0{n}") for n in range(3)])
    erased = client.erase_user(shard.user_ids[0])
    assert erased.interactions == 3
    asked = client.read_erasure(erased.receipt)
    assert (asked.asked_at, asked.interactions) == (erased.asked_at, None)
    assert client.recommend(shard.user_ids[0]).fallback == "unknown user"


def test_the_model_says_whom_it_can_answer(asking: Client) -> None:
    model = asking.read_model()
    assert (model.version, model.run, model.users) == ("run-1.0", "run-1", 16)


def test_very_many_users_are_asked_for_some_at_a_time(
    asking: Client, shared_shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "USERS_A_CALL", 3)
    taken: list[str] = []

    def observe() -> object:
        for user in shared_shard.user_ids:
            taken.append(user)
            yield user

    lists = asking.recommend_users(observe(), k=1)  # type: ignore[arg-type]
    assert next(lists).user == shared_shard.user_ids[0] and len(taken) == 3
    assert [one.user for one in lists] == list(shared_shard.user_ids[1:])


def test_a_refusal_says_what_was_expected_and_names_no_user(asking: Client, shared_silo: str) -> None:
    with pytest.raises(RefusedError) as refused:
        asking.recommend("canary-4711", filter=["nonsense"])
    assert (refused.value.status, refused.value.code) == (422, "protocol")
    assert refused.value.faults == (("wrong-form", "filter"),)
    assert "canary" not in str(refused.value) and "/v1/users/{user}/recommendations: 422 filter" in str(refused.value)
    with pytest.raises(RefusedError) as unknown, Client(shared_silo, "another-key", retrying=ONCE) as stranger:
        stranger.read_model()
    assert (unknown.value.status, unknown.value.code, unknown.value.faults) == (401, "authentication", ())


def test_no_user_s_id_is_in_the_application_s_log(
    asking: Client, caplog: pytest.LogCaptureFixture, shared_shard: Shard
) -> None:
    with caplog.at_level(logging.DEBUG):
        asking.recommend(shared_shard.user_ids[0])
    own = [record for record in caplog.records if record.name.startswith("http")]
    assert own and [record for record in own if shared_shard.user_ids[0] in record.getMessage()] == []


def test_whoever_wants_the_log_of_requests_keeps_it(caplog: pytest.LogCaptureFixture, shared_silo: str) -> None:
    with caplog.at_level(logging.INFO, logger="httpx"), Client(shared_silo, KEY) as client:
        client.read_model()
    assert "/v1/model" in caplog.text


def test_the_operator_refreshes_the_shard_and_chooses_the_model(client: Client) -> None:
    client.send_interactions([Interaction("new", "item-01")])
    asked = client.refresh()
    assert asked.phase in ("waiting", "working") and asked.asked_at is not None
    done = wait_for_refresh(client)
    assert (done.phase, done.changed, done.model, done.problem) == ("idle", True, "refresh.1", None)
    assert done.seconds is not None and done.ended_at is not None and done.asked_at is not None
    served, earlier = client.list_models()
    assert served.served and (served.version, served.run, served.round) == ("refresh.1", "refresh", 1)
    assert (earlier.version, earlier.served, earlier.present_shard) == ("run-1.0", False, False)
    assert client.serve_model("refresh.1") == client.list_models()
    with pytest.raises(RefusedError) as refused:
        client.serve_model("run-7.0")
    assert refused.value.code == "not-found" and "POST /v1/models/{version}/serve" in str(refused.value)


def test_a_model_of_an_earlier_shard_is_chosen_once(client: Client) -> None:
    client.send_interactions([Interaction("new", "item-01")])
    client.refresh()
    wait_for_refresh(client)
    chosen = client.serve_model("run-1.0")[0]
    assert chosen.served and (chosen.version, chosen.run) == ("run-1.0~2", "run-1")
    with pytest.raises(RefusedError, match="404"):
        client.serve_model("run-1.0")


def wait_for_refresh(client: Client) -> ShardRefresh:
    until = time.monotonic() + LONGEST_SECONDS
    while (standing := client.read_refresh()).phase != "idle":
        assert time.monotonic() < until
        time.sleep(0.01)
    return standing


def wait_for_lists(silo: str) -> None:
    """Until every user's list is computed, scores by the table answer some of them: their last digits differ."""
    until = time.monotonic() + LONGEST_SECONDS
    while httpx.get(f"{silo}/v1/status", headers={"Authorization": f"Bearer {KEY}"}).json().get("listed") != 1.0:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.anyio
async def test_the_awaited_client_answers_the_same(client: Client, silo: str, shard: Shard) -> None:
    wait_for_lists(silo)
    async with AsyncClient(silo, KEY) as awaited:
        user = shard.user_ids[1]
        assert await awaited.recommend(user, k=3) == client.recommend(user, k=3)
        assert [one async for one in awaited.recommend_users([user], k=3)] == [client.recommend(user, k=3)]
        assert await awaited.recommend_basket(["item-00"]) == client.recommend_basket(["item-00"])
        assert await awaited.find_similar("item-00") == client.find_similar("item-00")
        assert await awaited.search_items("item") == client.search_items("item")
        assert await awaited.read_model() == client.read_model()
        await awaited.put_item("item-00", title="Boots")
        assert (await awaited.read_item("item-00")).title == "Boots"
        await awaited.delete_item("item-00")
        assert (await awaited.send_interactions([Interaction("new", "item-01")])).accepted == 1
        assert await awaited.list_models() == client.list_models()
        assert await awaited.serve_model("run-1.0") == client.list_models()
        assert (await awaited.refresh()).phase != "idle" and (await awaited.read_refresh()).asked_at is not None
        receipt = (await awaited.erase_user("new")).receipt
        assert (await awaited.read_erasure(receipt)).receipt == receipt


def test_the_awaitable_client_is_as_generated() -> None:
    """Change client.py, then run `make format`."""
    make = runpy.run_path(str(ROOT / "requirements" / "make_async_client.py"))["make_async_client"]
    committed = (ROOT / "lpsfed" / "asynchronous.py").read_text(encoding="utf-8")
    assert make((ROOT / "lpsfed" / "client.py").read_text(encoding="utf-8")) == committed


def test_every_call_that_applications_may_make_is_one_of_the_client_s(shared_silo: str) -> None:
    paths = httpx.get(f"{shared_silo}/openapi.json").json()["paths"]
    tags = {"recommendations", "catalogue", "feedback"}
    offered = {
        f"{method.upper()} {path}"
        for path, said in paths.items()
        for method, one in said.items()
        if tags & {*one["tags"]}
    }
    source = Path(calls.__file__).read_text(encoding="utf-8")
    assert len(offered) > 8 and [name for name in offered if json.dumps(name) not in source] == []


def test_nobody_there_is_an_error_without_an_id() -> None:
    with Client("http://127.0.0.1:1", retrying=ONCE) as client, pytest.raises(UnreachableError) as failed:
        client.recommend("canary-4711")
    assert str(failed.value).endswith("within 1 attempts, got ConnectError") and "canary" not in str(failed.value)
    assert failed.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "key"), [("silo:8801", "k"), ("", "k"), ("http://silo", "two words"), ("http://s", "")]
)
def test_an_address_or_a_key_that_is_none_is_refused_at_once(url: str, key: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Client(url, key)


def test_an_id_is_never_empty() -> None:
    with Client("http://127.0.0.1:1", retrying=ONCE) as client, pytest.raises(ValueError, match="expected an id"):
        client.erase_user("")
