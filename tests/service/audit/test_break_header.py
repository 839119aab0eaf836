"""A client whose connection writes 6,000 characters of its interactions into a header of each request, really.

Over real HTTP against the real aggregator. First the aggregator refuses and the report says why; then, with an
aggregator that refuses nothing, the report finds the difference between both sides' accounts by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from aggregator_service.app import create_app
from aggregator_service.http.request_heads import RequestHeads
from audit.evidence.case import open_case
from audit.evidence.collect import read_aggregator_evidence, read_client_evidence
from audit.report import PrivacyReport, make_report
from shared.method.settings import MethodSettings
from tests.support.serving import serve
from tests.support.small import BEARER, small_aggregator, small_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from conftest import Opened, Silos, Until

pytestmark = pytest.mark.anyio

INTERACTIONS = ("user-06:" + "item-01,item-07," * 400)[:6000]
Change = Callable[[httpx.Request], list[tuple[str, str]]]


class Patched(httpx.AsyncHTTPTransport):
    """What lies beneath the gate of a client whose libraries were changed. `on`: from when on."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change, self.on = change, False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.on:
            headers = self.change(request)
            more = {"stream": request.stream, "extensions": request.extensions}
            request = httpx.Request(request.method, request.url, headers=headers, **more)
        return await super().handle_async_request(request)


def header_more(request: httpx.Request) -> list[tuple[str, str]]:
    return [*request.headers.multi_items(), ("x-note", INTERACTIONS)]


def host_of_its_own(request: httpx.Request) -> list[tuple[str, str]]:
    """As long as the true one: its size alone would not tell."""
    told = {"host": "u06.i07:00001"[: len(request.headers["host"])].ljust(len(request.headers["host"]), "0")}
    return [(name, told.get(name, value)) for name, value in request.headers.multi_items()]


class Running:
    """One silo, whose connection may be patched, and its aggregator."""

    def __init__(self, silo: httpx.AsyncClient, operator: httpx.AsyncClient, wire: Patched) -> None:
        self.silo, self.operator, self.wire = silo, operator, wire

    async def start(self, method: MethodSettings) -> None:
        request = {"rounds": 1, "clients": 1, "method": method.model_dump(mode="json")}
        assert (await self.operator.post("/v1/runs", json=request)).status_code == 201

    async def arrived(self, code: str | None, call: str) -> bool:
        found = (await self.operator.get("/v1/arrivals?limit=1000")).json()["entries"]
        return any((one["code"], one["call"]) == (code, call) for one in found)

    async def report(self) -> PrivacyReport:
        parts = (
            await read_client_evidence(self.silo, "client-1"),
            await read_aggregator_evidence(self.operator, "aggregator"),
        )
        return make_report(open_case(parts))


@pytest.fixture
def running(tmp_path: Path, silos: Silos, opened: Opened, keys: Path) -> Callable[..., object]:
    @asynccontextmanager
    async def run(change: Change, *, at_once: bool = False) -> AsyncIterator[Running]:
        (shard,) = silos(1)
        wire = Patched(change)
        wire.on = at_once
        with serve(create_app(small_aggregator(tmp_path / "aggregator", keys_directory=keys))) as url:
            settings = small_client(shard, tmp_path, aggregator_url=url, wait_seconds=1.0)
            async with opened(settings, wire) as silo, httpx.AsyncClient(base_url=url, headers=BEARER) as operator:
                yield Running(silo, operator, wire)

    return run


def broken(made: PrivacyReport) -> dict[str, str]:
    return {one.name: one.found for one in made.findings if not one.held}


async def test_an_honest_client_s_heads_are_the_same_on_both_sides(
    running: Callable[..., object], small: MethodSettings, until: Until
) -> None:
    async with running(header_more) as found:  # type: ignore[attr-defined]
        await until(lambda: found.arrived(None, "join"))
        await found.start(small)
        await until(lambda: found.arrived(None, "update"))
        made = await found.report()
    assert broken(made) == {}
    assert next(one.found for one in made.findings if one.name == "request heads") == "2 heads, all identical"


async def test_a_header_with_interactions_turns_the_report_red_by_name(
    running: Callable[..., object], small: MethodSettings, until: Until
) -> None:
    async with running(header_more) as found:  # type: ignore[attr-defined]
        await until(lambda: found.arrived(None, "join"))
        found.wire.on = True
        await found.start(small)  # the client holds a stream, and calls when the federation changes
        await until(lambda: found.arrived("request-head", "other"))
        made = await found.report()
    assert "client-1: header 'x-note' of 6,006 bytes, refused with 400" in broken(made)["request heads"]
    assert "request heads" in made.verdict and "user-06" not in made.model_dump_json()


async def test_a_client_that_was_never_let_in_with_it_is_named_too(
    running: Callable[..., object], until: Until
) -> None:
    async with running(header_more, at_once=True) as found:  # type: ignore[attr-defined]
        await until(lambda: found.arrived("request-head", "other"))
        made = await found.report()
    assert "client-1: header 'x-note' of 6,006 bytes, refused with 400" in broken(made)["request heads"]


@pytest.mark.parametrize("change", [header_more, host_of_its_own])
async def test_where_the_aggregator_refuses_nothing_both_accounts_differ(
    running: Callable[..., object],
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
    change: Change,
) -> None:
    monkeypatch.setattr(RequestHeads, "require_declared_head", lambda *_: None)
    async with running(change, at_once=True) as found:  # type: ignore[attr-defined]
        await until(lambda: found.arrived(None, "join"))
        made = await found.report()
    told = broken(made)["request heads"]
    words = "bytes arrived," if change is header_more else "a head with other content than its call's"
    assert "client-1, join: a head" in told and words in told
