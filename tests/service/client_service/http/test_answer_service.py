"""Lists for very many users come line by line, the same as in one answer, and a chunk of them at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import httpx
import pytest
from anyio import CapacityLimiter
from starlette.requests import ClientDisconnect

from client_service.http import answer_service
from client_service.http.answer_service import NDJSON, stream_lists, wants_lines
from client_service.serving.messages import MOST_STREAMED, MOST_USERS, RecommendationsOut
from client_service.serving.ranking import MOST_LISTED

pytestmark = pytest.mark.anyio
LINES = {"Accept": NDJSON}


async def test_lines_are_the_answers_in_the_order_of_the_request(
    silo: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_service, "CHUNK", 2)
    body = {"users": ["user-01", "nobody", "user-02", "user-03", "user-01"], "k": 3, "exclude": ["item-00"]}
    whole = (await silo.post("/v1/recommendations", json=body)).json()["results"]
    answer = await silo.post("/v1/recommendations", json=body, headers=LINES)
    assert (answer.status_code, answer.headers["content-type"]) == (200, NDJSON)
    assert answer.headers["cache-control"] == "no-store" and answer.text.endswith("\n")
    assert [json.loads(line) for line in answer.text.splitlines()] == whole


async def test_more_users_than_one_answer_holds_are_taken_as_lines_alone(silo: httpx.AsyncClient) -> None:
    body = {"users": ["nobody"] * (MOST_USERS + 1), "k": 1}
    refused = await silo.post("/v1/recommendations", json=body)
    assert refused.status_code == 422 and f"at most {MOST_USERS} without {NDJSON}" in refused.json()["detail"]
    answer = await silo.post("/v1/recommendations", json=body, headers=LINES)
    assert len(answer.text.splitlines()) == MOST_USERS + 1
    deep = {"users": ["nobody"] * MOST_USERS, "k": MOST_LISTED // MOST_USERS + 1}
    refused = await silo.post("/v1/recommendations", json=deep)
    assert refused.status_code == 422 and "at most 100000 items in all lists together" in refused.json()["detail"]
    many = {"users": ["u"] * (MOST_STREAMED + 1)}
    assert (await silo.post("/v1/recommendations", json=many, headers=LINES)).status_code == 422


async def test_what_is_wrong_is_said_before_the_first_line(silo: httpx.AsyncClient) -> None:
    for wrong in ({"filter": ["x"]}, {"offset": 999}, {"k": 0}):
        answer = await silo.post("/v1/recommendations", json={"users": ["u"], **wrong}, headers=LINES)
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json"), wrong
    basket = await silo.post("/v1/recommendations", json={"basket": ["item-00"]}, headers=LINES)
    assert len(basket.json()["results"]) == 1


async def test_no_chunk_is_computed_before_the_last_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_service, "CHUNK", 2)
    monkeypatch.setattr(answer_service, "SILENCE_SECONDS", 0.2)
    asked: list[str] = []

    def compute(users: Sequence[str]) -> list[RecommendationsOut]:
        asked.extend(users)
        return [RecommendationsOut(user=user, unknown_items=0, items=()) for user in users]

    async def take_head_alone(message: dict[str, object]) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def stay() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    answer = stream_lists(["a", "b", "c", "d", "e"], compute, CapacityLimiter(1))
    scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
    with pytest.raises(ClientDisconnect):
        await answer(scope, stay, take_head_alone)  # type: ignore[arg-type]
    assert asked == ["a", "b"]


def test_lines_are_asked_for_by_name() -> None:
    assert wants_lines("application/json;q=0.4, Application/X-NDJSON;q=0.5")
    for other in ("", "*/*", "application/*", "application/json", "application/x-ndjson; q=0"):
        assert not wants_lines(other), other
