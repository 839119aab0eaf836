"""A client that writes its interactions into the head of its requests: the aggregator takes none of them.

Over a real connection, because spaces and capital letters are gone by the time that an application sees a request.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from aggregator_service.app import create_app
from shared.protocol.request_heads import CONSTANT, RequestHead
from shared.protocol.schemas import JoinIn
from shared.protocol.signing.enrolment import ensure_key_pair, register_key_file
from shared.protocol.signing.keys import read_private
from shared.protocol.signing.requests import RequestTarget, Signatory, sign_request
from tests.support.questions import LONGEST_SECONDS
from tests.support.serving import serve
from tests.support.small import BEARER, small_aggregator

SECRET = "user-00006:" + "1,7,42," * 857  # 6,000 characters of somebody's interactions
Lines = list[tuple[str, str]]


class Victim:
    """The aggregator, and a registered client of it that speaks by hand."""

    def __init__(self, port: int, who: Signatory, join: bytes) -> None:
        self._port, self._who, self._join = port, who, join

    def lines(self, method: str, target: str, body: bytes) -> Lines:
        media = "application/json" if body else None
        said = RequestHead(method, target, f"127.0.0.1:{self._port}", media, len(body) if body else None)
        path, _, query = target.partition("?")
        asked, nonce = RequestTarget(method, path, query), secrets.token_hex(16)
        return [*said.headers(), *sign_request(asked, body, self._who, created=int(time.time()), nonce=nonce).items()]

    def send(self, first: str, lines: Lines, body: bytes = b"", *, gap: str = " ") -> tuple[int, str]:
        """A request as its bytes are; status and text of the answer."""
        head = "".join(f"{name}:{gap}{value}\r\n" for name, value in lines)
        with socket.create_connection(("127.0.0.1", self._port), timeout=LONGEST_SECONDS) as one:
            one.sendall(f"{first} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)
            answer = b""
            while b"\r\n\r\n" not in answer or not _whole(answer):
                answer += (piece := one.recv(65536))
                if not piece:
                    break
        return int(answer.split(b" ")[1]), answer.decode()

    def join(self, change: Callable[[Lines], Lines] = lambda lines: lines, **how: Any) -> tuple[int, str]:
        return self.send("POST /v1/clients", change(self.lines("POST", "/v1/clients", self._join)), self._join, **how)

    def ask(self, target: str, change: Callable[[Lines], Lines] = lambda lines: lines, **how: Any) -> tuple[int, str]:
        return self.send(f"GET {target}", change(self.lines("GET", target, b"")), **how)

    def arrivals(self) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{self._port}/v1/arrivals"
        found: list[dict[str, Any]] = httpx.get(url, headers=BEARER, trust_env=False).json()["entries"]
        return found


def _whole(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    said = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(said) and len(body) >= int(said[0].partition(b":")[2])


@contextmanager
def serve_victim(folder: Path) -> Iterator[Victim]:
    pair = ensure_key_pair("client-1", folder / "pairs")
    register_key_file(pair.public, folder / "keys")
    settings = small_aggregator(folder / "state", keys_directory=folder / "keys")
    join = JoinIn(client="client-1", declaration=settings.declaration()).model_dump_json().encode()
    with serve(create_app(settings)) as url:
        yield Victim(int(url.rpartition(":")[2]), Signatory("client-1", read_private(pair.private)), join)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with serve_victim(tmp_path_factory.mktemp("aggregator")) as running:
        yield running


def with_header(name: str, value: str) -> Callable[[Lines], Lines]:
    return lambda lines: [*lines, (name, value)]


def with_value(name: str, value: str) -> Callable[[Lines], Lines]:
    return lambda lines: [(one, value if one == name else said) for one, said in lines]


def in_capitals(lines: Lines) -> Lines:
    """A bit a letter: 120 of them in the names alone."""
    return [
        ("".join(sign.upper() if place % 3 else sign for place, sign in enumerate(one)), said) for one, said in lines
    ]


WAYS: dict[str, Callable[[Lines], Lines]] = {
    "a header more": with_header("x-note", SECRET),
    "a header of proxies": with_header("x-forwarded-for", SECRET),
    "a name of its own": with_header(f"x-{'42-' * 100}", "1"),
    "a cookie": with_header("cookie", SECRET),
    "a user agent": with_value("user-agent", f"{CONSTANT['user-agent']}/{SECRET}"),
    "an encoding": with_value("accept-encoding", "user-00006"),
    "an accepted type": with_value("accept", "text/user-00006"),
    "a host": with_value("host", "user_00006:1,7,42"),
    "a header twice": with_header("accept", "*/*"),
    "capital letters": in_capitals,
}


def test_a_genuine_head_is_taken_and_its_size_is_on_record(victim: Victim) -> None:
    status, text = victim.join()
    assert status == 200, text
    row = victim.arrivals()[-1]
    lines = victim.lines("POST", "/v1/clients", victim._join)
    wire = "POST /v1/clients HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines) + "\r\n"
    assert row["head"]["bytes"] == len(wire) and row["head"]["others"] == []


@pytest.mark.parametrize("way", WAYS)
def test_no_header_says_more_than_a_client_s_own(victim: Victim, way: str) -> None:
    victim.join()
    before = len(victim.arrivals())
    for status, text in (victim.join(WAYS[way]), victim.ask("/v1/runs/current?wait=0", WAYS[way])):
        assert (status, '"code":"request-head"' in text) == (400, True), text
        assert SECRET[:40] not in text and "r-00006" not in text
    rows = victim.arrivals()[before:]
    assert [(row["status"], row["code"], row["client"]) for row in rows] == [(400, "request-head", "client-1")] * 2
    assert "r-00006" not in str(rows)


def test_a_header_more_is_recorded_by_name_and_size(victim: Victim) -> None:
    victim.ask("/v1/runs/current", with_header("x-note", SECRET))
    row = victim.arrivals()[-1]
    assert row["head"]["others"] == [{"name": "x-note", "bytes": len("x-note") + len(SECRET)}]
    assert row["head"]["bytes"] > len(SECRET)


def test_spaces_before_a_value_say_nothing_either(victim: Victim) -> None:
    for gap in ("", "  ", " \t \t\t", " " * 200):
        status, text = victim.ask("/v1/runs/current", gap=gap)
        assert (status, "request-head" in text) == (400, True)


@pytest.mark.parametrize(
    "target",
    [
        "/v1/runs/current?wait=0.10",
        "/v1/runs/current?wait=00",
        "/v1/runs/current?wait=%30",
        "/v1/runs/current?wait=1e0",
        "/v1/runs/current?after=07",
        "/v1/runs/%63urrent",
        "/v1/runs/run-1/rounds/01/anchor",
        "/v1/runs/run-1/rounds/+1/anchor",
    ],
)
def test_a_number_has_one_spelling(victim: Victim, target: str) -> None:
    status, text = victim.ask(target)
    assert (status, "request-head" in text) == (400, True), text


def test_a_client_calls_by_few_names(victim: Victim) -> None:
    """Nobody signs the host: at most so many words get through, whatever they are."""
    heard = [victim.ask("/v1/runs/current", with_value("host", f"u{word}"))[0] for word in range(12)]
    assert heard.count(400) >= 12 - 4 and heard[-1] == 400


def test_a_client_that_has_never_joined_is_on_record_by_its_first_head(tmp_path: Path) -> None:
    with serve_victim(tmp_path) as fresh:
        assert fresh.join(with_header("x-note", SECRET))[0] == 400
        [row] = fresh.arrivals()
        assert (row["client"], row["call"], row["code"]) == ("client-1", "other", "request-head")
