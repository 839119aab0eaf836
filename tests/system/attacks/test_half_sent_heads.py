"""Connections on which nothing whole is asked keep nobody out.

Who: anybody who can reach the port, without a key. Before, 530 half-sent heads from one address, renewed every twenty
seconds, had everybody answered with 503: clients, the operator, health checks.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.support.besieged import MOST_MEBIBYTES, Besieged
from tests.support.serving import HOST
from tests.support.small import BEARER

MANY = 700
HALVES = {
    "nothing": b"",
    "half a head": b"GET /v1/runs/current HTTP/1.1\r\nHost: aggregator\r\nX-Half: " + b"x" * 8000,
    "no body": b"POST /v1/clients HTTP/1.1\r\nHost: aggregator\r\nContent-Length: 100\r\n\r\n",
}


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    with Besieged(tmp_path_factory.mktemp("besieged")).running() as running:
        running.join("ada")
        yield running


@pytest.mark.parametrize("half", HALVES)
def test_a_client_the_operator_and_a_health_check_are_answered_meanwhile(besieged: Besieged, half: str) -> None:
    idle = besieged.forget_peak()
    with ExitStack() as stack:
        for number in range(MANY):
            line = stack.enter_context(socket.create_connection((HOST, besieged.port)))
            line.sendall(HALVES[half])
            if number % 100 == 99:
                assert besieged.is_answered("ada")
        assert httpx.get(f"{besieged.url}/v1/runs", headers=BEARER).is_success
        assert httpx.get(f"{besieged.url}/health/ready").is_success
        assert besieged.peak - idle < MOST_MEBIBYTES
