"""Front workers without a common folder: silos are invited at one, enrol at another, and call a third."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from aggregator_service.app import create_app
from shared.protocol.signing.enrolment import ensure_key_pair
from shared.protocol.signing.invitation import EnrolmentIn, FederationOut, Invitation, prove_enrolment
from shared.protocol.signing.keys import PrivateKey, new_key
from tests.support.aggregator import KEYS, METHOD, FakeClient, Federation
from tests.support.federation import run_app
from tests.support.small import SMALL, small_aggregator

if TYPE_CHECKING:
    from conftest import Place

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("default")]
Open = Callable[..., AbstractAsyncContextManager[Federation]]
REFUSED = "expected the code of an open invitation for this name"
UNKNOWN = "the private key whose public key is registered under this name"


@pytest.fixture
def open_worker(tmp_path: Path, place: Place) -> Open:
    """`async with open_worker("one") as federation`: each with a folder of keys of its own."""
    key = ensure_key_pair("aggregator", tmp_path).private

    @asynccontextmanager
    async def opened(name: str, **others: Any) -> AsyncIterator[Federation]:
        common = {"blobs": str(tmp_path / "bodies"), "signing_key_file": key, "shared": True} | others
        settings = small_aggregator(tmp_path / name, method=METHOD, database=place.url, **common)
        app = create_app(settings, clock=time.time)
        async with run_app(app, "http://aggregator") as http:
            yield Federation(app, http, settings, time.time)

    return opened


async def invite(federation: Federation, name: str = "north", **more: object) -> dict[str, Any]:
    answer = await federation.operate("POST", "/v1/invitations", json={"name": name} | more)
    assert answer.status_code == 201, answer.text
    told: dict[str, Any] = answer.json()
    return told


def message(name: str, told: dict[str, Any], own: PrivateKey | None = None) -> EnrolmentIn:
    expires, federation = (
        datetime.now(UTC) + timedelta(days=1),
        FederationOut(strategy="lpsfed", secure=False, method=SMALL),
    )
    invited = Invitation(
        name=name, url="http://a", code=told["code"], expires=expires, aggregator=told["aggregator"],
        federation=federation,
    )  # fmt: skip
    return prove_enrolment(invited, own or KEYS[name])


async def enrol(federation: Federation, asked: EnrolmentIn) -> httpx.Response:
    return await federation.http.post("/v1/enrolments", json=asked.model_dump())


def stranger(federation: Federation, name: str) -> FakeClient:
    """A client whose key no folder has."""
    return FakeClient(name, federation.http, federation.settings.declaration())


async def test_a_silo_is_invited_at_one_worker_enrols_at_another_and_calls_a_third(open_worker: Open) -> None:
    async with open_worker("one") as one, open_worker("two") as two, open_worker("three") as three:
        told = await invite(one)
        refused = await stranger(three, "north").join()
        assert refused.status_code == 401 and UNKNOWN in refused.text
        assert (await enrol(two, message("north", told))).status_code == 201
        for federation in (three, one, two):
            assert (await stranger(federation, "north").join()).status_code == 200
        removed = await one.operate("DELETE", "/v1/enrolments/north")
        assert removed.status_code == 200 and removed.json() == {"name": "north"}
        for federation in (two, three, one):
            refused = await stranger(federation, "north").get("/v1/runs/current")
            assert refused.status_code == 401 and UNKNOWN in refused.text
            assert (await federation.operate("DELETE", "/v1/enrolments/north")).status_code == 404


async def test_of_two_workers_that_redeem_at_once_one_registers(open_worker: Open, place: Place) -> None:
    async with open_worker("one") as one, open_worker("two") as two:
        for number in range(5):
            name = f"silo-{number}"
            told, statuses = await invite(one, name), []

            async def use(federation: Federation, asked: EnrolmentIn, statuses: list[int]) -> None:
                statuses.append((await enrol(federation, asked)).status_code)

            async with anyio.create_task_group() as tasks:
                for federation in (one, two) * 3:
                    tasks.start_soon(use, federation, message(name, told, new_key()), statuses)
            assert sorted(statuses) == [201, *[401] * 5]
        assert place.rows("select count(*), count(distinct key) from registered_keys") == [(5, 5)]
        assert place.rows("select name from invitations") == []
