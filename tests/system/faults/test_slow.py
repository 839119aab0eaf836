"""Who speaks or listens too slowly is hung up on, by both services, and holds nothing meanwhile that lasts."""

from __future__ import annotations

import asyncio
import json
import threading
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest
from fastapi import FastAPI, Response

from aggregator_service.app import create_app as create_aggregator
from client_service.app import create_app as create_client
from shared.web.connection import Connection
from shared.web.middleware import BodyTimeout
from tests.support.serving import serve
from tests.system.faults.federation import BODY_SECONDS, LONGEST_SECONDS, Ending
from tests.system.faults.proxy import HOST, Fault

if TYPE_CHECKING:
    from conftest import Federation

    from simulation.experiments.experiment import Experiment

pytestmark = pytest.mark.anyio
SHORT_SECONDS = 0.5
LARGE = 64 << 20  # bytes; more than the system takes for somebody who does not read
Talk = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def called(url: str) -> Talk:
    return await asyncio.open_connection(HOST, int(url.rpartition(":")[2]))


async def heard(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the other side hangs up, in whichever way."""
    pieces = []
    try:
        while piece := await reader.read(1 << 16):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces)


async def trickled(talk: Talk, head: bytes, byte: bytes = b" ") -> bytes:
    """What is answered to a head and a body that comes byte by byte for ever."""
    reader, writer = talk
    writer.write(head)
    answer = asyncio.create_task(heard(reader))
    while not answer.done():
        writer.write(byte)
        await asyncio.sleep(0.02)
    writer.close()
    return answer.result()


def posting(path: str, secret: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {secret}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: 60000\r\n\r\n".encode()


def require_too_slow(answer: bytes, seconds: float) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ") and b"\r\nconnection: close" in head.lower()
    problem = json.loads(body)
    assert (problem["status"], problem["code"], problem["title"]) == (408, "too-slow", "Body too slow")
    assert problem["detail"] == f"the body: expected it whole within {seconds:g} seconds"


@pytest.mark.slow
async def test_an_update_that_trickles_is_refused_in_time_and_leaves_no_file(
    federation: Federation, undisturbed: dict[str, Ending]
) -> None:
    with anyio.fail_after(LONGEST_SECONDS):
        async with federation() as running:
            running.proxies["client-2"].aim("/update ", Fault(delay=BODY_SECONDS / 8, chunk=64, slow=("request",)))
            await running.begin()
            assert await running.ended() == undisturbed
            while not (late := [one for one in await running.arrivals() if one.code == "too-slow"]):
                await anyio.sleep(0.05)
            assert [(one.client, one.call, one.round, one.status) for one in late] == [("client-2", "update", 1, 408)]
            assert late[0].size < max(one.size for one in await running.arrivals() if one.call == "update")
            assert list((running.experiment.folder / "aggregator").rglob("*.part")) == []
            assert (await running.audited()).held


async def test_a_message_that_trickles_is_refused_by_the_aggregator(three: Experiment) -> None:
    settings = three.make_aggregator_settings().model_copy(update={"longest_body_seconds": SHORT_SECONDS})
    app = create_aggregator(settings)
    with anyio.fail_after(LONGEST_SECONDS), serve(app, wind_down=app.state.coordinator.wind_down) as url:
        answer = await trickled(await called(url), posting("/v1/runs", three.token))
    require_too_slow(answer, SHORT_SECONDS)


async def test_a_message_that_trickles_is_refused_by_a_client(
    three: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_service.http.server_app.BodyTimeout", partial(BodyTimeout, seconds=SHORT_SECONDS))
    settings = three.make_client_settings(three.shards[0], aggregator_url=f"http://{HOST}:9")
    with anyio.fail_after(LONGEST_SECONDS), serve(create_client(settings)) as url:
        answer = await trickled(await called(url), posting("/v1/recommendations", three.application_key))
    require_too_slow(answer, SHORT_SECONDS)


async def test_an_answer_that_nobody_takes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.web.connection.ANSWER_SECONDS", 0.2)
    lost, real = threading.Event(), Connection.connection_lost

    def told(connection: Connection, reason: Exception | None) -> None:
        real(connection, reason)
        lost.set()

    monkeypatch.setattr(Connection, "connection_lost", told)
    app = FastAPI()
    app.get("/large")(lambda: Response(bytes(LARGE)))
    with anyio.fail_after(LONGEST_SECONDS), serve(app) as url:
        reader, writer = await called(url)
        writer.write(f"GET /large HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        while not lost.is_set():
            await anyio.sleep(0.02)
        assert len(await heard(reader)) < LARGE
        writer.close()
