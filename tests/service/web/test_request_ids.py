"""Each request has an id: in its answer, in its problem document and in all of its log lines."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry, Histogram

from shared.errors import ConflictError
from shared.web import problems
from shared.web.logs import make_logger
from shared.web.middleware import AccessLog

pytestmark = pytest.mark.anyio
PACKAGE = "a_service"
CANARY = "user-4711"
HEX = re.compile("[0-9a-f]{32}")


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level("DEBUG", PACKAGE)
    yield


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(one.getMessage()) for one in caplog.records if one.name == PACKAGE]


def served(*, callers_ids: bool = False) -> httpx.AsyncClient:
    app, log = FastAPI(), make_logger(PACKAGE)

    @app.get("/good")
    def good() -> dict[str, str]:  # in a worker thread
        log.info("something", detail="of the middle")
        return {}

    @app.get("/refused")
    async def refused() -> None:
        raise ConflictError("expected another, got this")

    @app.get("/mistake")
    async def mistake() -> None:
        {}[CANARY]

    @app.get("/half")
    async def half() -> Response:
        return Response(status_code=304)

    problems.install_error_handlers(app)
    requests = Histogram("s", "s", ["method", "route", "status"], registry=CollectorRegistry())
    app.add_middleware(AccessLog, requests=requests, logger=log, callers_ids=callers_ids)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")


async def test_every_line_of_a_request_and_its_answer_have_the_same_new_id(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as http:
        answers = [await http.get("/good"), await http.get("/good"), await http.get("/half")]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(HEX.fullmatch(one) for one in ids) and len(set(ids)) == 3
    assert [(one["event"], one["request_id"]) for one in lines(caplog)] == [
        ("something", ids[0]), ("request", ids[0]), ("something", ids[1]), ("request", ids[1]), ("request", ids[2])
    ]  # fmt: skip
    assert problems.current_request_id() is None


@pytest.mark.parametrize(("path", "status"), [("/refused", 409), ("/nowhere", 404), ("/mistake", 500)])
async def test_a_problem_document_names_its_request(caplog: pytest.LogCaptureFixture, path: str, status: int) -> None:
    async with served() as http:
        answer = await http.get(path)
    assert answer.status_code == status and answer.headers["content-type"] == problems.MEDIA_TYPE
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert {one["request_id"] for one in lines(caplog)} == {answer.headers["x-request-id"]}


async def test_our_own_mistake_is_told_by_its_kind_and_place_and_not_by_what_was_at_hand(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served() as http:
        answer = await http.get("/mistake")
    (failed,) = [one for one in lines(caplog) if one["event"] == "request_failed"]
    assert failed["exception"][0] == "KeyError" and failed["exception"][-1].endswith("in mistake")
    assert CANARY not in caplog.text and CANARY not in answer.text
    assert [one["status"] for one in lines(caplog) if one["event"] == "request"] == [500]


MINE = uuid.UUID("0123456789abcdef0123456789ABCDEF")


@pytest.mark.parametrize("written", [str(MINE), MINE.hex, str(MINE).upper()])
async def test_a_caller_may_say_which_id_where_the_service_lets_it(
    caplog: pytest.LogCaptureFixture, written: str
) -> None:
    async with served(callers_ids=True) as http:
        assert (await http.get("/good", headers={"X-Request-ID": written})).headers["x-request-id"] == MINE.hex
    async with served() as http:
        assert (await http.get("/good", headers={"X-Request-ID": written})).headers["x-request-id"] != MINE.hex
    assert [one["request_id"] == MINE.hex for one in lines(caplog)] == [True, True, False, False]


@pytest.mark.parametrize("written", [CANARY, "", "0" * 31, "0" * 33, f"{MINE}\t", f"{{{MINE}}}", f"urn:uuid:{MINE}"])
async def test_what_is_no_uuid_is_replaced_and_never_told(caplog: pytest.LogCaptureFixture, written: str) -> None:
    async with served(callers_ids=True) as http:
        got = (await http.get("/refused", headers={"X-Request-ID": written})).headers["x-request-id"]
    assert HEX.fullmatch(got) and (got != MINE.hex or written.strip() == str(MINE))
    assert CANARY not in caplog.text


async def test_of_two_ids_none_counts() -> None:
    async with served(callers_ids=True) as http:
        answer = await http.get("/good", headers=[("X-Request-ID", str(MINE)), ("X-Request-ID", str(MINE))])
    assert answer.headers["x-request-id"] != MINE.hex


def test_nobody_else_s_log_is_touched() -> None:
    assert logging.getLogger(PACKAGE).handlers == []
