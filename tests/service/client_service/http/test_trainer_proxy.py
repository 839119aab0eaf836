"""What a server asks its trainer goes through whole, bounded, and without what is of one connection alone."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from starlette.responses import StreamingResponse

from client_service.__main__ import server_settings
from client_service.http import server
from client_service.http.authentication import CallerKeys
from client_service.http.server import Server
from client_service.http.trainer_proxy import TrainerAccessLog, TrainerProxy
from client_service.metrics import ClientMetrics, RequestMetrics, join_metrics
from client_service.runtime.logs import LOGGER
from client_service.runtime.trainer_process import (
    HEALTH_SOCKET,
    TRAINER,
    ChildProcess,
    choose_socket,
    find_health_socket,
    find_socket,
    keep_settings,
    read_kept_settings,
)
from client_service.settings import ClientSettings, client_settings
from shared.web import problems
from shared.web.middleware import AccessLog, BodyLimit, BodyTimeout
from shared.web.routes import HeadAsGet
from shared.web.server import build_server, open_private_socket

PIECES = 50


def make_trainer(metrics: RequestMetrics) -> FastAPI:
    app = FastAPI(openapi_url=None)
    problems.install_error_handlers(app)

    @app.api_route("/echo/{name}", methods=["GET", "POST", "PUT"])
    async def echo(name: str, request: Request) -> dict[str, Any]:
        body = await request.body()
        query = [list(one) for one in request.query_params.multi_items()]
        headers = [[name, value] for name, value in request.headers.items()]
        return {"name": name, "method": request.method, "query": query, "bytes": len(body), "headers": headers}

    @app.get("/pieces")
    async def pieces() -> StreamingResponse:
        async def give() -> AsyncIterator[bytes]:
            for _ in range(PIECES):
                yield b"x" * 100_000

        return StreamingResponse(give(), headers={"Keep-Alive": "timeout=5", "Connection": "x-secret", "X-Secret": "1"})

    @app.get("/slow")
    async def slow() -> None:
        await asyncio.sleep(3600)

    @app.get("/half")
    async def half() -> StreamingResponse:
        async def give() -> AsyncIterator[bytes]:
            yield b"half"
            raise RuntimeError

        return StreamingResponse(give())

    @app.post("/early")
    async def early() -> Response:
        return Response(status_code=401)

    app.add_middleware(TrainerAccessLog, requests=metrics.requests, logger=LOGGER, callers_ids=True)
    return app


Ask = Callable[..., Awaitable[httpx.Response]]


@asynccontextmanager
async def listening(state: Path, metrics: RequestMetrics) -> AsyncIterator[None]:
    server = build_server(make_trainer(metrics), host="trainer", port=0, on_shutdown=lambda: None)
    place = choose_socket(state)
    places = (place, place.with_name(HEALTH_SOCKET))
    serving = asyncio.create_task(server.serve([open_private_socket(one) for one in places]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
def metrics() -> RequestMetrics:
    return RequestMetrics()


@pytest.fixture
def proxy(tmp_path: Path) -> TrainerProxy:
    return TrainerProxy(tmp_path, CallerKeys(), lambda: True, start_seconds=0.0, answer_seconds=60.0)


def front(proxy: TrainerProxy, metrics: RequestMetrics) -> FastAPI:
    app = FastAPI(openapi_url=None)
    problems.install_error_handlers(app)
    app.router.default = proxy
    for kind in (HeadAsGet, BodyLimit, BodyTimeout):
        app.add_middleware(kind)
    app.add_middleware(AccessLog, requests=metrics.requests, logger=LOGGER, callers_ids=True)
    return app


@asynccontextmanager
async def asking(proxy: TrainerProxy, metrics: RequestMetrics) -> AsyncIterator[httpx.AsyncClient]:
    """A front on a real port, since what is of one connection shows there alone."""
    server = build_server(front(proxy, metrics), host="127.0.0.1", port=0, on_shutdown=lambda: None)
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve([listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
            yield http
    finally:
        server.should_exit = True
        await serving


@pytest.mark.anyio
async def test_a_request_goes_through_as_it_came(proxy: TrainerProxy, tmp_path: Path) -> None:
    inner, outer = RequestMetrics(), RequestMetrics()
    async with listening(tmp_path, inner), asking(proxy, outer) as http:
        sent = {"Connection": "x-hop, keep-alive", "X-Hop": "1", "TE": "trailers"}
        answer = await http.post("/echo/a%20b%C3%A9?q=1&q=%202", content=b"x" * 3_000_000, headers=sent)
        told = answer.json()
        assert (told["name"], told["method"], told["bytes"]) == ("a bé", "POST", 3_000_000)
        assert told["query"] == [["q", "1"], ["q", " 2"]]
        names = [name for name, _ in told["headers"]]
        assert not {"x-hop", "te", "keep-alive"} & {*names} and names.count("host") == 1
        assert dict(told["headers"])["host"] == http.base_url.netloc.decode()

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(30):
                yield b"y" * 10_000

        assert (await http.put("/echo/x", content=chunks())).json()["bytes"] == 300_000
        head = await http.head("/echo/x")
        assert head.status_code == 200 and head.content == b"" and int(head.headers["content-length"]) > 0
        assert "x-lpsfed-route" not in head.headers and len(head.headers.get_list("date")) == 1
        assert 'route="/echo/{name}",status="200"' in outer.text().decode()
        assert "route=" not in inner.text().decode()  # each request is counted once
        assert (await http.get("/nowhere")).status_code == 404


@pytest.mark.anyio
async def test_an_answer_comes_in_pieces_without_what_is_of_one_connection(
    proxy: TrainerProxy, metrics: RequestMetrics, tmp_path: Path
) -> None:
    async with listening(tmp_path, metrics), asking(proxy, metrics) as http, http.stream("GET", "/pieces") as answer:
        assert sum([len(piece) async for piece in answer.aiter_bytes()]) == PIECES * 100_000
        assert not {"keep-alive", "x-secret"} & {*answer.headers}


@pytest.mark.anyio
async def test_a_body_that_is_too_long_and_an_early_answer(
    proxy: TrainerProxy, metrics: RequestMetrics, tmp_path: Path
) -> None:
    async with listening(tmp_path, metrics), asking(proxy, metrics) as http:
        refused = await http.post("/echo/x", content=b"x" * (5 << 20))
        assert refused.status_code == 413 and refused.headers["content-type"] == "application/problem+json"
        assert (await http.post("/early", content=b"x" * (2 << 20))).status_code == 401


@pytest.mark.anyio
async def test_a_request_without_a_key_comes_by_the_socket_that_wakes_nobody_unless_told(
    proxy: TrainerProxy, metrics: RequestMetrics, tmp_path: Path
) -> None:
    told: list[bytes] = []

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers as a trainer that waits: it would answer /echo/open."""
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
        told.append(path)
        status = b"421 Misdirected Request" if path == b"/echo/open" else b"401 Unauthorized"
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)
        while await reader.read(1 << 16):
            pass
        writer.close()

    own = replace(proxy, keys=CallerKeys("a" * 32, "b" * 32))
    async with listening(tmp_path, metrics), asking(own, metrics) as http:
        place = find_health_socket(tmp_path)
        place.unlink()
        async with await asyncio.start_unix_server(wait, place):
            refused = [(await http.post("/echo/x", content=b"x" * size)).status_code for size in (0, 300_000)]
            wrong = await http.get("/echo/x", headers={"Authorization": f"Bearer {'c' * 32}"})
            assert [*refused, wrong.status_code] == [401, 401, 401] and len(told) == 3
            for size in (0, 10, 300_000):
                answer = await http.post("/echo/open", content=b"x" * size)
                assert (answer.status_code, answer.json()["bytes"]) == (200, 0)
            for key in "ab":
                found = await http.get("/echo/x", headers={"Authorization": f"Bearer {key * 32}"})
                assert found.status_code == 200 and len(told) == 6
            async with asking(proxy, metrics) as free:
                assert (await free.get("/echo/x")).status_code == 200 and len(told) == 6


@pytest.mark.anyio
async def test_a_trainer_that_is_away_is_waited_for_and_then_said_to_be_started(
    proxy: TrainerProxy, metrics: RequestMetrics, tmp_path: Path
) -> None:
    async with asking(proxy, metrics) as http:
        answer = await http.get("/v1/status")
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
        assert "the trainer is starting" in answer.json()["detail"] and answer.json()["code"] == "unavailable"
        proxy.start_seconds = 60.0
        waiting = asyncio.create_task(http.get("/echo/x"))
        await asyncio.sleep(0)
        async with listening(tmp_path, metrics):
            assert (await waiting).status_code == 200


@pytest.mark.anyio
async def test_a_trainer_that_is_silent_or_ends_in_an_answer(
    proxy: TrainerProxy, metrics: RequestMetrics, tmp_path: Path
) -> None:
    async with listening(tmp_path, metrics), asking(replace(proxy, answer_seconds=0.05), metrics) as http:
        silent = await http.get("/slow")
        assert silent.status_code == 503 and "got none" in silent.json()["detail"]
    async with listening(tmp_path, metrics), asking(proxy, metrics) as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get("/half")


@pytest.mark.anyio
async def test_a_cut_connection_is_opened_once_more_for_a_request_that_may_be_repeated(
    proxy: TrainerProxy, metrics: RequestMetrics, tmp_path: Path
) -> None:
    """A trainer that becomes another image closes connections whose requests it has not read."""
    taken, cuts = 0, 1

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        taken += 1
        if taken > cuts:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\ndone")
        writer.close()

    trainer = await asyncio.start_unix_server(answer, choose_socket(tmp_path))
    async with trainer, asking(proxy, metrics) as http:
        assert (await http.get("/any")).text == "done" and taken == 2
        taken, cuts = 0, 2
        cut = await http.get("/any")
        assert (cut.status_code, taken) == (503, 2) and "has ended" in cut.json()["detail"]
        for request in (http.post("/any"), http.request("GET", "/any", content=b"x")):
            taken, cuts = 0, 1
            assert ((await request).status_code, taken) == (503, 1)


@pytest.mark.anyio
async def test_series_of_both_have_each_family_once(proxy: TrainerProxy, tmp_path: Path) -> None:
    own, others = RequestMetrics(), ClientMetrics()
    own.serving.set(1)
    own.requests.labels("GET", "/a", 200).observe(0.1)
    others.rounds.inc()
    text = join_metrics(own.text(), others.text()).decode()
    families = [line for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(families) == len({line.split()[2] for line in families}) > 6
    assert "lpsfed_client_serving 1.0" in text and "lpsfed_client_serving 0.0" not in text
    assert "lpsfed_client_rounds_total 1.0" in text and 'route="/a"' in text
    assert join_metrics(own.text(), b"") == own.text()
    assert await proxy.fetch("/metrics", 1.0) is None
    async with listening(tmp_path, own):
        assert await proxy.fetch("/echo/x", 60.0) is not None
        assert await proxy.fetch("/nowhere", 60.0) is None


def test_a_socket_is_for_this_user_alone_also_where_its_path_is_too_long(tmp_path: Path) -> None:
    for state in (tmp_path / "short", tmp_path / ("long-" * 30)):
        state.mkdir()
        for _ in range(2):  # the second time there is one that a killed process has left
            with open_private_socket(choose_socket(state)) as listener:
                found = find_socket(state)
                assert listener.getsockname() == str(found) and found.stat().st_mode & 0o777 == 0o600
        assert len(os.fsencode(found)) < 107
    assert found.parent != state and found.parent.stat().st_mode & 0o777 == 0o700


def test_settings_are_handed_over_whole_secrets_included(shared_settings: Callable[..., ClientSettings]) -> None:
    keys = {
        "application_key": "AbCdEfGh0123456789-AbCdEfGh0123456789",
        "operator_key": "zYxWvUt9876543210-zYxWvUt9876543210",
    }
    given = shared_settings(allowed_hosts=("shop.example",))
    settings = client_settings(**{**dict(given), **keys, "policy": {"counts": True}, "privacy": {"mechanism": "off"}})
    kept = keep_settings(settings)
    try:
        found = client_settings(**read_kept_settings(kept))
        assert found == settings and found.model_fields_set == settings.model_fields_set
        assert found.privacy.model_fields_set == settings.privacy.model_fields_set
        assert found.key("application_key") == keys["application_key"]
    finally:
        os.close(kept)


@pytest.mark.anyio
async def test_a_trainer_that_answers_nobody_for_minutes_is_ended(
    shared_settings: Callable[..., ClientSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped or stuck one would otherwise follow no run and erase nobody, while the server looks well."""
    settings = shared_settings()
    monkeypatch.setattr(server, "ALIVE_SECONDS", 0.01)
    trainer, killed = ChildProcess("trainer", TRAINER, -1), asyncio.Event()
    trainer.is_ready = True
    monkeypatch.setattr(trainer, "kill", killed.set)
    found = Server(server_settings(settings), trainer)
    settings.state_directory.mkdir(exist_ok=True)
    place = choose_socket(settings.state_directory).with_name(HEALTH_SOCKET)
    with open_private_socket(place):  # and nobody accepts
        async with found.running():
            await asyncio.wait_for(killed.wait(), 60)
