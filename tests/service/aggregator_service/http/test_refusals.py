"""What the aggregator refuses, and how it says so: a problem document, never a 500."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.protocol.wire import encode_body

if TYPE_CHECKING:
    from conftest import FakeClient, Federation, Running

pytestmark = pytest.mark.anyio


def require(answer: httpx.Response, status: int, code: str) -> str:
    """The detail of a problem document with this status and code."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    content = answer.json()
    assert (content["status"], content["code"]) == (status, code)
    detail: str = content["detail"]
    return detail


def edited(client: FakeClient, **changes: Any) -> bytes:
    """An update with some tensors replaced (or removed: None)."""
    arrays: dict[str, Any] = {**client.arrays(1.0), **{name.replace("__", "."): v for name, v in changes.items()}}
    return save({name: value for name, value in arrays.items() if value is not None}, metadata={"scalars": "{}"})


def with_metadata(client: FakeClient, **metadata: str) -> bytes:
    return save(client.arrays(1.0), metadata=metadata)


BODIES: dict[str, tuple[Callable[[FakeClient], bytes], str]] = {
    "an extra tensor": (lambda c: edited(c, embedding=np.zeros(3, np.float32)), "expected tensors"),
    "a missing tensor": (lambda c: edited(c, pooling__output__bias=None), "expected tensors"),
    "a wrong shape": (
        lambda c: edited(c, pooling__output__bias=np.zeros(5, np.float32)),
        "expected shape [4], got [5]",
    ),
    "a wrong dtype": (lambda c: edited(c, pooling__output__bias=np.zeros(4)), "expected dtype F32 or U32, got F64"),
    "a NaN": (lambda c: c.update(float("nan")), "expected finite values"),
    "an undeclared scalar": (lambda c: c.update(1.0, users=3.0), "expected at most scalars"),
    "garbage": (lambda _: b"\x93NUMPY" * 50, "expected a safetensors body"),
    "nothing": (lambda _: b"", "expected a safetensors body"),
    "a truncated body": (lambda c: c.update(1.0)[:-1], "expected a safetensors body"),
    "a longer body": (lambda c: c.update(1.0) + b"0", "expected a safetensors body"),
    "an infinite scalar": (lambda c: with_metadata(c, scalars='{"rho": 1e999}'), "expected a finite number"),
    "other metadata": (lambda c: with_metadata(c, scalars="{}", note="x"), "metadata field 'scalars' alone"),
    "a long head": (lambda c: with_metadata(c, scalars="[" * 100_000), "with a head of at most"),
    "bottomless scalars": (lambda c: with_metadata(c, scalars="[" * 15_000), "expected the scalars as JSON"),
}


@pytest.mark.parametrize("what", BODIES)
async def test_an_upload_that_is_not_what_was_declared_is_refused(running: Running, what: str) -> None:
    make, expected = BODIES[what]
    async with running() as federation:
        north, _ = await federation.opened()
        assert expected in require(await north.put(1, make(north)), 422, "protocol")
        blobs = federation.settings.state_directory / "blobs"
        assert not list(blobs.iterdir())
        assert (await north.put(1, north.update(1.0))).status_code == 201


async def test_an_upload_over_its_limit_is_refused_by_its_header_and_while_it_streams(running: Running) -> None:
    async with running(max_upload_bytes=100_000) as federation:
        north, _ = await federation.opened()
        require(await north.put(1, b"0" * 100_001), 413, "too-large")
        pulled = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal pulled
            while pulled < 1000:
                pulled += 1
                yield b"0" * 10_000

        require(await north.put(1, endless()), 413, "too-large")
        assert pulled < 30
        assert not list((federation.settings.state_directory / "blobs").iterdir())


async def test_only_one_kind_of_body_is_taken(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        body = north.update(1.0)
        require(await north.put(1, body, Content_Type="application/octet-stream"), 415, "media-type")
        require(await north.put(1, body, Content_Encoding="gzip"), 400, "request-head")


async def test_an_upload_again_is_answered_the_same_and_another_is_a_conflict(running: Running) -> None:
    async with running() as federation:
        north, south = await federation.opened()
        body = north.update(1.0)
        first, again = await north.put(1, body), await north.put(1, body)
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json() == again.json()
        require(await north.put(1, north.update(2.0)), 409, "conflict")
        await south.put(1, body)
        assert (await north.personalised(1)).status_code == 200
        assert (await north.put(1, body)).status_code == 200
        require(await north.put(1, north.update(2.0)), 409, "conflict")
        assert len(list((federation.settings.state_directory / "blobs").iterdir())) == 3


async def test_a_round_that_is_not_open_takes_nothing(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        detail = require(await north.put(2, north.update(1.0)), 409, "round-closed")
        assert detail == "expected round 1 (open) of run-1, got round 2"


@pytest.mark.parametrize("path", ["model", "rounds/1/anchor", "rounds/1/clients/north/personalized"])
async def test_an_unknown_run_is_not_found(shared_federation: Federation, path: str) -> None:
    require(await shared_federation.client("north").get(f"/v1/runs/run-9/{path}"), 404, "not-found")


@pytest.mark.parametrize("path", ["current", "run-1/model", "run-1/rounds/1/anchor", "run-1", ""])
async def test_whoever_says_not_who_it_is_gets_nothing(shared_federation: Federation, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer " + "x" * 40}, {"Authorization": "Basic eDp5"}):
        answer = await shared_federation.http.get(f"/v1/runs/{path}".rstrip("/"), headers=headers)
        require(answer, 401, "authentication")
        assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_client_joins_under_the_name_whose_key_it_has_and_may_join_again(running: Running) -> None:
    async with running() as federation:
        north, south = federation.client("north"), federation.client("south")
        require(await north.get("/v1/runs/current"), 401, "authentication")
        assert [(await north.join()).status_code for _ in range(2)] == [200, 200]
        detail = require(await north.join(client="south"), 403, "forbidden")
        assert detail == "expected your own name, 'north', got 'south'"
        require(await south.get("/v1/runs/current"), 401, "authentication")


async def test_a_client_that_would_send_something_else_may_not_join(running: Running) -> None:
    async with running() as federation:
        north = federation.client("north")
        declared = north.declaration.model_dump(mode="json")
        detail = require(await north.join(declaration=declared | {"strategy": "fedavg"}), 422, "protocol")
        assert detail == "strategy: expected 'lpsfed', got 'fedavg'"
        require(await north.join(declaration=declared | {"scalars": ["margin", "rho", "users"]}), 422, "protocol")
        require(await north.join(declaration=declared | {"tensors": declared["tensors"][1:]}), 422, "protocol")
        require(await north.join(declaration=declared | {"tensors": declared["tensors"] * 2}), 422, "protocol")


async def test_one_run_at_a_time_and_only_with_the_federations_width(running: Running) -> None:
    async with running() as federation:
        assert "width" in require(await federation.start_run(method={"width": 8, "layers": 1}), 422, "protocol")
        assert "quorum" in require(await federation.start_run(clients=2, quorum=3), 422, "protocol")
        assert (await federation.start_run(clients=2)).json()["phase"] == "waiting"
        require(await federation.start_run(clients=2), 409, "conflict")


async def test_a_run_has_the_settings_of_the_federation_where_it_sets_none(
    running: Running, small: MethodSettings
) -> None:
    async with running() as federation:
        asked = {"anchor": {"every_round": True}}
        started = (await federation.operate("POST", "/v1/runs", json={"clients": 2, "method": asked})).json()
    method, declared = started["request"]["method"], small.model_dump(mode="json")
    assert method["width"] == declared["width"] != MethodSettings().width
    assert method["anchor"] == declared["anchor"] | {"every_round": True}


async def test_a_message_that_does_not_fit_is_refused_without_being_repeated(running: Running) -> None:
    async with running() as federation:
        north = federation.client("north")
        detail = require(await north.join(client="Alice's hospital"), 422, "protocol")
        assert "body.client" in detail
        assert "Alice" not in detail
        for body in (b"{", b"[" * 15_000, b'"\\ud800"', b"\xff"):
            answer = await north.post(body)
            assert answer.status_code in (400, 422), body[:9]
            assert answer.headers["content-type"] == "application/problem+json"
        require(await north.post(b"0" * (5 << 20)), 413, "too-large")
        await federation.opened()
        assert "path.run" in require(await north.get("/v1/runs/run-x/model"), 422, "protocol")
        for wait in ("nan", "-1", "inf", "soon"):
            require(await north.get("/v1/runs/current", wait=wait), 400, "request-head")


async def test_no_such_route_and_no_such_method_are_problems_too(running: Running) -> None:
    async with running() as federation:
        require(await federation.http.get("/v2"), 404, "not-found")
        answer = await federation.http.delete("/v1/clients")
        require(answer, 405, "method-not-allowed")
        assert answer.headers["allow"] == "GET, HEAD, POST"


async def test_unprintable_names_in_an_upload_do_not_break_the_refusal(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        header = json.dumps({"\ud800\n" * 10: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
        require(await north.put(1, len(header).to_bytes(8, "little") + header), 422, "protocol")
        require(await north.put(1, encode_body(Parameters({"x" * 5000: np.zeros(1, np.float32)}))), 422, "protocol")


async def test_before_it_runs_the_service_is_not_ready(running: Running) -> None:
    async with running() as federation:
        pass
    transport = httpx.ASGITransport(federation.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://aggregator") as http:
        require(await http.get("/health/ready"), 503, "unavailable")
        assert (await http.get("/health/live")).json() == {"status": "live"}
