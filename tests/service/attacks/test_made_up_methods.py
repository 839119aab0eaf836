"""No caller without a key makes a service's metrics grow, nor writes words of its own into them or the log.

Before, 2,000 made-up methods at paths that exist were as many labels: /metrics had 36,108 lines instead of 90.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from aggregator_service.app import create_app as create_aggregator
from aggregator_service.process import LOGGER as AGGREGATOR_LOGGER
from client_service.app import create_app as create_client
from client_service.runtime.logs import LOGGER as CLIENT_LOGGER
from shared.protocol.signing.enrolment import ensure_key_pair
from tests.support.federation import Unreachable
from tests.support.given import Silos
from tests.support.questions import LONGEST_SECONDS
from tests.support.serving import serve
from tests.support.small import small_aggregator, small_client

PLACES = {
    "run": "run-1",
    "number": "1",
    "client": "client-1",
    "user": "u",
    "item": "i",
    "node": "n",
    "receipt": "0",
    "version": "v",
}
REAL = ("HEAD", "OPTIONS", "TRACE", "PATCH", "PROPFIND", "GET", "PUT", "POST", "DELETE")
MADE_UP = (*REAL, *(f"CANARY{number}" for number in range(200)), "get", "x" * 2000)


@pytest.fixture(params=("aggregator", "client"))
def service(request: pytest.FixtureRequest, silos: Silos, tmp_path: Path) -> Iterator[tuple[str, FastAPI, str]]:
    """The address of both services, one after the other; itself, and the name of its logger."""
    if request.param == "aggregator":
        app, logger = create_aggregator(small_aggregator(tmp_path / "aggregator")), AGGREGATOR_LOGGER
        wind_down = app.state.coordinator.wind_down
    else:
        settings = small_client(silos(1)[0], tmp_path)
        ensure_key_pair(settings.name, settings.state_directory)
        app, wind_down, logger = create_client(settings, Unreachable()), lambda: None, CLIENT_LOGGER
    with serve(app, wind_down=wind_down) as url:
        yield url, app, logger.name


def call_each(url: str, methods: tuple[str, ...], paths: list[str]) -> None:
    """Each path by each method, on one connection."""
    port = httpx.URL(url).port
    for path in paths:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=LONGEST_SECONDS) as line,
            line.makefile("rb") as answers,
        ):
            for method in methods:
                line.sendall(f"{method} {path} HTTP/1.1\r\nHost: silo\r\n\r\n".encode())
                pass_over(answers, body=method != "HEAD")


def pass_over(answers: object, *, body: bool) -> None:
    length = 0
    assert answers.readline().startswith(b"HTTP/1.1 ")  # type: ignore[attr-defined]
    while line := answers.readline().strip():  # type: ignore[attr-defined]
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    if body:
        answers.read(length)  # type: ignore[attr-defined]


def test_methods_that_nobody_has_declared_are_one_label(
    service: tuple[str, FastAPI, str], caplog: pytest.LogCaptureFixture
) -> None:
    url, app, logger = service
    paths = [path.format(**PLACES) for path in app.openapi()["paths"] if not path.startswith("/metrics")]
    call_each(url, REAL, paths)
    before = httpx.get(f"{url}/metrics").text
    with caplog.at_level(logging.INFO, logger):
        call_each(url, MADE_UP, paths[:6])
    after = httpx.get(f"{url}/metrics").text
    assert "CANARY" not in after and "xxx" not in after
    assert len(after.splitlines()) <= len(before.splitlines()) + 60
    methods = {json.loads(record.message)["method"] for record in caplog.records if '"request"' in record.message}
    assert methods <= {"GET", "HEAD", "POST", "PUT", "DELETE", "other", "any"} and "other" in methods
