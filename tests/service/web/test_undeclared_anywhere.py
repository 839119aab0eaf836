"""What a route has not declared is refused by one rule, in both services and on every route: parameters, and bodies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from shared.web.problems import MEDIA_TYPE

pytestmark = pytest.mark.anyio
PLACES = {"run": "run-1", "number": "1", "client": "client-1", "user": "user-01", "item": "item-01", "node": "node-01"}
PLACES |= {"receipt": "0" * 32, "version": "run-1.1"}
OPEN = ("/health/live", "/health/ready", "/metrics", "/openapi.json", "/docs", "/static/icon.svg")
BODY = b"canary-4711"


def require_refused(answer: httpx.Response, word: str) -> None:
    assert (answer.status_code, answer.headers["content-type"]) == (422, MEDIA_TYPE), answer.text
    found = answer.json()
    assert found["code"] == "protocol" and word in found["detail"] and "canary" not in answer.text


def operations(app: FastAPI, *, with_body: bool) -> list[tuple[str, str]]:
    """Those of the operator and of applications: method, and path with ids."""
    return [
        (method.upper(), path.format(**PLACES))
        for path, methods in app.openapi()["paths"].items()
        for method, one in methods.items()
        if ("requestBody" in one) == with_body and "clients" not in one["tags"]
    ]


async def in_pieces() -> AsyncIterator[bytes]:
    yield BODY


@pytest.mark.parametrize("path", OPEN)
async def test_what_needs_no_key_takes_no_parameter_and_no_body(http: httpx.AsyncClient, path: str) -> None:
    plain = await http.get(path)
    assert plain.status_code in (200, 503)
    for query in ("?canary-4711=1", "?canary-4711", "?&"):
        require_refused(await http.get(path + query), "query parameters")
    assert (await http.head(f"{path}?canary-4711=1")).status_code == 422
    for content in (BODY, in_pieces()):
        require_refused(await http.request("GET", path, content=content), "expected no body")
    assert (await http.get(path)).status_code == plain.status_code


async def test_the_page_takes_no_other_parameter_and_no_body(http: httpx.AsyncClient) -> None:
    word = http.headers["Authorization"].removeprefix("Bearer ")
    browser = httpx.BasicAuth("operator", word)
    assert (await http.get("/", auth=browser)).status_code == 200
    require_refused(await http.get("/?canary-4711=1", auth=browser), "query parameters")
    require_refused(await http.request("GET", "/", content=BODY, auth=browser), "expected no body")


async def test_a_body_where_none_is_expected_is_refused(service: tuple[str, FastAPI], http: httpx.AsyncClient) -> None:
    found = operations(service[1], with_body=False)
    assert len(found) >= 10 and {"GET", "DELETE"} <= {method for method, _ in found}
    for method, path in found:
        for kind in ("text/plain", "application/json"):
            answer = await http.request(method, path, content=BODY, headers={"Content-Type": kind})
            require_refused(answer, "expected no body")
        require_refused(await http.request(method, path, content=in_pieces()), "expected no body")


async def test_a_body_of_another_kind_is_refused_on_every_route(
    service: tuple[str, FastAPI], http: httpx.AsyncClient
) -> None:
    found = operations(service[1], with_body=True)
    assert len(found) >= 3
    for method, path in found:
        for headers in ({"Content-Type": "text/plain"}, {}):
            answer: Any = await http.request(method, path, content=BODY, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (415, "media-type"), path


async def test_a_list_at_hand_is_no_way_around(service: tuple[str, FastAPI], http: httpx.AsyncClient) -> None:
    if service[0] == "aggregator":
        pytest.skip("it has no lists")
    path = "/v1/users/user-01/recommendations?k=2"
    assert (await http.get(path)).status_code == 200
    require_refused(await http.request("GET", path, content=BODY), "expected no body")


async def test_no_path_leads_to_another(service: tuple[str, FastAPI], http: httpx.AsyncClient) -> None:
    """A redirection would answer for what nobody has asked for, and would repeat the path before a key is looked at."""
    for method, path in operations(service[1], with_body=False):
        answer = await http.request(method, f"{path}/", headers={"Authorization": "none"})
        assert (answer.status_code, "location" in answer.headers) == (404, False), (method, path)
