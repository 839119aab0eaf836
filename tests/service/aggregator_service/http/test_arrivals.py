"""The aggregator's own record: what came, from whom, what was answered; durable before anybody hears the answer."""

from __future__ import annotations

import json
import re
import sqlite3
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from aggregator_service.storage import arrivals as stored
from aggregator_service.storage.database import Database
from shared.errors import UnavailableError

if TYPE_CHECKING:
    from conftest import Federation, Running

pytestmark = pytest.mark.anyio
JOINED = 2  # rows of the two clients of an opened federation


async def metric(federation: Federation, name: str) -> float:
    lines = (await federation.http.get("/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"lpsfed_aggregator_{name}_total "))


async def test_what_is_accepted_is_on_record_in_the_order_of_the_answers(running: Running) -> None:
    async with running() as federation:
        north = federation.client("north")
        joined = north.joining()
        assert (await north.post(joined)).status_code == 200
        await federation.start_run(rounds=1, clients=1)
        body = north.update(1.0)
        receipt = (await north.put(1, body)).json()
        assert (await north.put(1, body)).status_code == 200
        found = await federation.arrivals()
        assert found == [
            north.arrival("join", joined, 200),
            north.arrival("update", body, 201),
            north.arrival("update", body, 200),
        ]
        assert (found[1]["digest"], found[1]["size"]) == (receipt["digest"], receipt["size"])
        whole = (await federation.operate("GET", "/v1/arrivals")).json()
        times = [datetime.fromisoformat(one["time"]) for one in whole["entries"]]
        assert whole["total"] == 3 and times == sorted(times) and times[1].isoformat() >= receipt["received_at"]


async def test_the_nonce_of_every_body_is_on_record_and_a_join_is_told_that_of_the_last_accepted_update(
    running: Running,
) -> None:
    async with running() as federation:
        north, south = await federation.opened()
        await north.put(1, north.update(1.0))
        await north.put(1, b"garbage")
        await south.put(1, south.update(2.0))
        entries = (await federation.operate("GET", "/v1/arrivals")).json()["entries"]
        nonces = [one["nonce"] for one in entries]
        assert len(set(nonces)) == 5 and all(re.fullmatch("[0-9a-f]{32}", nonce) for nonce in nonces)
        assert (await north.post(north.joining())).json()["nonce"] == nonces[2]
        assert (await south.post(south.joining())).json()["nonce"] == nonces[4]
    async with running() as federation:
        west = federation.client("west")
        assert (await west.post(west.joining())).json()["nonce"] is None
        assert (await federation.client("north").post(north.joining())).json()["nonce"] == nonces[2]


async def test_what_nobody_known_has_signed_is_counted_alone(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        stranger = federation.client("stranger")
        assert (await stranger.post(b"{")).status_code == 422  # registered, but it has not joined
        assert (await stranger.put(1, north.update(1.0))).status_code == 401
        assert (await federation.http.post("/v1/clients", content=north.joining())).status_code == 401
        assert (await federation.operate("POST", "/v1/clients", content=b"{")).status_code == 401
        wrong = replace(north.auth, key=stranger.auth.key)
        assert (await federation.http.get("/v1/runs/current", auth=wrong)).status_code == 401
        assert await federation.arrivals(JOINED) == []
        assert await metric(federation, "strangers") == 5.0


async def test_what_only_asks_leaves_no_row(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        for path in ("current", "run-1/model", "run-1/rounds/1/anchor", "run-1/rounds/1/clients/north/personalized"):
            await north.get(f"/v1/runs/{path}")
        assert (await federation.http.get("/v1/runs", auth=north.auth)).status_code == 403
        assert (await federation.http.get("/health/live", auth=north.auth)).status_code == 200
        assert await federation.arrivals(JOINED) == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/runs", b'{"rounds": 1}', 403),
        ("PUT", "/v1/elsewhere", b"user-00006", 404),
        ("PATCH", "/v1/clients", b"user-00006", 405),
        ("GET", "/v1/runs/current", b"user-00006", 422),
        ("GET", "/health/live", b"user-00006", 422),
        ("GET", "/v1/user-00006", b"", 404),
        ("GET", "/v1/runs/current?user-00006=1", b"", 422),
        ("DELETE", "/v1/clients", b"", 405),
    ],
)
async def test_what_no_client_ever_sends_is_on_record_wherever_it_goes(
    running: Running, method: str, path: str, body: bytes, status: int
) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        answer = await federation.http.request(method, path, content=body or None, auth=north.auth)
        assert answer.status_code == status
        (row,) = await federation.arrivals(JOINED)
        assert (row["client"], row["call"], row["run"], row["status"]) == ("north", "other", None, status)
        assert row["size"] in (0, len(body)) and "user-00006" not in json.dumps(row)
        assert await federation.operate(
            "POST", "/v1/runs", content=b"{}"
        )  # the operator's own calls are not a client's
        assert len(await federation.arrivals(JOINED)) == 1 and await metric(federation, "strangers") == 0.0


async def test_a_restart_keeps_the_record_and_goes_on_with_it(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        await north.put(1, b"garbage")
        before = (await federation.operate("GET", "/v1/arrivals")).json()
    async with running() as federation:
        assert (await federation.operate("GET", "/v1/arrivals")).json() == before
        body = north.update(1.0)
        await federation.client("north").put(1, body)
        assert await federation.arrivals(after=before["total"]) == [north.arrival("update", body, 201)]


async def test_a_row_is_durable_before_the_answer_goes_out(running: Running) -> None:
    async with running() as federation:
        file = federation.settings.state_directory / "aggregator.sqlite"
        held: list[tuple[int, int]] = []

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            async def see(message: Message) -> None:
                if message["type"] == "http.response.start":
                    held.append((message["status"], recorded(file)))
                await send(message)

            await federation.app(scope, receive, see)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(watched), base_url="http://aggregator") as http:
            north = type(federation.client("north"))("north", http, federation.settings.declaration())
            await north.join()
            await federation.start_run(rounds=1, clients=1)
            await north.put(1, b"garbage")
            await north.put(1, north.update(1.0))
        assert held == [(200, 1), (422, 2), (201, 3)]


def recorded(file: Path) -> int:
    """Rows that somebody else than the service can read from the disk."""
    connection = sqlite3.connect(file)
    try:
        return int(connection.execute("select count(*) from arrivals").fetchone()[0])
    finally:
        connection.close()


async def test_what_cannot_be_put_on_record_is_not_answered_as_a_success(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full_disk(database: Database, *_: object, **__: object) -> bool:
        with database.writing() as connection:
            connection.exec_driver_sql("insert into arrivals values (1)")
        return True

    async with running() as federation:
        north, _ = await federation.opened()
        body = north.update(1.0)
        with monkeypatch.context() as patch:
            for store in ("add_accepted", "add_refused"):
                patch.setattr(f"aggregator_service.storage.arrivals.{store}", full_disk)
            for answer in (await north.put(1, body), await north.put(1, b"garbage"), await north.join()):
                assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                assert answer.headers["retry-after"] == "1"
                assert "digest" not in answer.text and answer.headers["content-length"] == str(len(answer.content))
        assert caplog.text.count("arrival_not_recorded") == 3
        assert await federation.arrivals(JOINED) == []
        assert (await north.put(1, body)).status_code == 200
        assert await federation.arrivals(JOINED) == [north.arrival("update", body, 200)]


async def test_before_it_runs_nothing_is_recorded_and_nothing_claimed(running: Running) -> None:
    async with running() as federation:
        north = federation.client("north")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(federation.app), base_url="http://aggregator") as http:
        answer = await http.post("/v1/clients", content=north.joining(), auth=north.auth)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    with pytest.raises(UnavailableError):
        await federation.app.state.coordinator.federation.arrivals.page(0, 1)


async def test_of_each_client_only_so_many_refusals_are_on_record(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stored, "MOST_REFUSED", 3)
    async with running(quarantine_refusals=0) as federation:
        north, south = await federation.opened()
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(north.put, 1, b"garbage")
        assert await federation.arrivals(JOINED) == [north.arrival("update", b"garbage", 422, code="protocol")] * 3
        assert await metric(federation, "unrecorded_refusals") == 5.0
        assert caplog.text.count("refusals_no_longer_recorded") == 1
        assert (await south.put(1, b"garbage")).status_code == 422
        assert (await north.put(1, north.update(1.0))).status_code == 201
        assert [(one["client"], one["status"]) for one in await federation.arrivals(JOINED + 3)] == [
            ("south", 422),
            ("north", 201),
        ]
    async with running() as federation:
        assert (await federation.client("north").put(1, b"garbage")).status_code == 422
        assert len(await federation.arrivals(JOINED)) == 5


async def test_the_operator_alone_turns_the_pages_of_the_record(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        for _ in range(3):
            await north.put(1, b"garbage")
        for query, expected in (("limit=2", [1, 2]), ("after=2&limit=2", [3, 4]), ("after=4", [5]), ("after=5", [])):
            page = (await federation.operate("GET", f"/v1/arrivals?{query}")).json()
            assert ([one["sequence"] for one in page["entries"]], page["total"]) == (expected, 5)
        for query in ("limit=0", "limit=1001", "after=-1", f"after={10**30}"):
            assert (await federation.operate("GET", f"/v1/arrivals?{query}")).status_code == 422
        assert (await north.get("/v1/arrivals")).status_code == 403
        assert (await federation.http.get("/v1/arrivals")).status_code == 401
