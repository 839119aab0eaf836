"""What any client of HTTP may expect of both services: HEAD, content types, refusals that can be read, UTF-8."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from shared.web.problems import MEDIA_TYPE
from tests.support.questions import LONGEST_SECONDS
from tests.support.small import BEARER


def require_problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert (answer.status_code, answer.headers["content-type"]) == (status, MEDIA_TYPE), answer.text
    found: dict[str, Any] = answer.json()
    assert found["status"] == status and found["code"] and found["detail"] and found["title"]
    return found


@pytest.mark.anyio
async def test_head_is_a_get_without_its_body(service: tuple[str, FastAPI], http: httpx.AsyncClient) -> None:
    name, _ = service
    paths = {"aggregator": ["/v1/runs", "/v1/clients"], "client": ["/v1/items", "/v1/users/user-01/recommendations"]}
    for path in ("/health/live", "/openapi.json", "/nowhere", *paths[name]):
        get, head = await http.get(path), await http.head(path)
        assert (head.status_code, head.content) == (get.status_code, b""), path
        kept = ("content-type", "content-length", "cache-control")
        assert {key: head.headers.get(key) for key in kept} == {key: get.headers.get(key) for key in kept}, path
    again = await http.get("/health/live")  # on the same connection
    assert again.json() == {"status": "live"}


@pytest.mark.anyio
async def test_head_needs_what_get_needs(service: tuple[str, FastAPI], http: httpx.AsyncClient) -> None:
    if service[0] == "aggregator":
        assert (await http.head("/v1/runs", headers={"Authorization": "Bearer other"})).status_code == 401
        assert (await http.head("/v1/runs/current")).status_code == 401
        browser = httpx.BasicAuth("operator", BEARER["Authorization"].removeprefix("Bearer "))
        assert (await http.head("/v1/runs", auth=browser)).status_code == 200
    refused = await http.head("/v1/recommendations" if service[0] == "client" else "/v1/invitations")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


ALLOWED = {
    "aggregator": {
        "/v1/runs": "GET, HEAD, POST",
        "/v1/runs/run-1": "DELETE, GET, HEAD",
        "/v1/clients": "GET, HEAD, POST",
        "/v1/invitations": "POST",
        "/health/live": "GET, HEAD",
        "/static/page.css": "GET, HEAD",
    },
    "client": {
        "/v1/items/x": "DELETE, GET, HEAD, PUT",
        "/v1/items/x%2Fsimilar": "DELETE, GET, HEAD, PUT",
        "/v1/items/x/similar": "GET, HEAD",
        "/v1/users/x": "DELETE",
        "/v1/refresh": "GET, HEAD, POST",
        "/v1/interactions": "POST",
        "/openapi.json": "GET, HEAD",
    },
}


@pytest.mark.anyio
async def test_405_names_every_method_of_a_path(service: tuple[str, FastAPI], http: httpx.AsyncClient) -> None:
    for path, methods in ALLOWED[service[0]].items():
        refused = await http.request("PATCH", path)
        require_problem(refused, 405)
        assert refused.headers.get_list("allow") == [methods], path


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "multipart/form-data; boundary=x", None])
async def test_a_body_of_another_kind_is_415(
    service: tuple[str, FastAPI], http: httpx.AsyncClient, kind: str | None
) -> None:
    path = {"aggregator": "/v1/runs", "client": "/v1/recommendations"}[service[0]]
    headers = {} if kind is None else {"Content-Type": kind}
    refused = require_problem(await http.post(path, content=b'{"users": ["u"]}', headers=headers), 415)
    assert refused["code"] == "media-type" and "expected application/json, got" in refused["detail"]
    read = await http.post(path, content=b'{"x": 1}', headers={"Content-Type": "Application/JSON; charset=utf-8"})
    assert [one["code"] for one in require_problem(read, 422)["errors"]][-1:] == ["unknown"]


RAW = {
    "no first line": b"hello\r\n\r\n",
    "another protocol": b"GET / HTCPCP/1.0\r\nHost: a\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost a\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
}


@pytest.mark.parametrize("request_bytes", RAW.values(), ids=RAW)
def test_what_is_no_http_is_refused_in_words(url: str, request_bytes: bytes) -> None:
    refused = require_problem(ask_raw(url, request_bytes), 400)
    assert "expected an HTTP/1.1 request" in refused["detail"] and len(refused["detail"]) < 400


def ask_raw(url: str, request: bytes) -> httpx.Response:
    """The answer to bytes that no library sends."""
    with socket.create_connection((httpx.URL(url).host, httpx.URL(url).port), timeout=LONGEST_SECONDS) as wire:
        wire.sendall(request)
        came = b"".join(iter(lambda: wire.recv(65536), b""))
    head, _, body = came.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    headers = [tuple(line.split(": ", 1)) for line in lines]
    return httpx.Response(int(first.split()[1]), headers=headers, content=body)  # type: ignore[arg-type]


@pytest.mark.anyio
@pytest.mark.parametrize("target", ["/v1/users/%ff/recommendations", "/v1/items?query=%c3%28", "/%e2%82", "/?%80"])
async def test_what_is_no_utf_8_is_400(http: httpx.AsyncClient, target: str, caplog: pytest.LogCaptureFixture) -> None:
    refused = require_problem(await http.get(target), 400)
    assert refused["detail"] == "path and query: expected UTF-8, got other bytes"
    assert "%ff" not in caplog.text and "�" not in caplog.text


def test_every_operation_says_what_it_is_and_how_it_refuses(service: tuple[str, FastAPI]) -> None:
    document = service[1].openapi()
    assert document == service[1].openapi()
    for path, operations in document["paths"].items():
        for method, one in operations.items():
            assert one.get("description"), f"{method} {path}"
            assert "4XX" not in one["responses"], f"{method} {path}"
            if not path.startswith("/v1"):
                continue
            refusals = {status for status in one["responses"] if status >= "400"}
            assert refusals >= {"400", "401", "403", "422", "429", "503"}, f"{method} {path}"
            assert ("415" in refusals) == ("requestBody" in one) and ("404" in refusals or method == "get")
            assert "431" in refusals, f"{method} {path}"
            for status in refusals:
                assert list(one["responses"][status]["content"]) == [MEDIA_TYPE], f"{method} {path} {status}"
    assert json.dumps(document).count("Successful Response") < len(document["paths"]) * 3


@pytest.mark.anyio
@pytest.mark.parametrize("service", ["client"], indirect=True)
async def test_an_encoded_slash_stays_within_its_segment(http: httpx.AsyncClient) -> None:
    assert (await http.put("/v1/items/new%2Fone", json={"title": "New"})).status_code == 200
    assert (await http.get("/v1/items/new%2fone")).json()["item"] == "new/one"
    assert (await http.get("/v1/items/new/one")).status_code == 404
