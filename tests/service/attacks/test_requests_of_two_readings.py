"""A request that two servers would part at different places is refused, and its connection ends.

Who: anybody behind a proxy that parts requests in another way than the service. Before, both services took a length
beside chunks, a length said twice, folded lines, bare line feeds, and extensions of chunks.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from aggregator_service.app import create_app as create_aggregator
from client_service.app import create_app as create_client
from shared.protocol.signing.enrolment import ensure_key_pair
from tests.support.federation import Unreachable
from tests.support.given import Silos
from tests.support.questions import LONGEST_SECONDS
from tests.support.serving import serve
from tests.support.small import small_aggregator, small_client

HEAD = b"POST /v1/recommendations HTTP/1.1\r\nHost: silo\r\nContent-Type: application/json\r\n"
STATUS_LINE = re.compile(rb"HTTP/1\.1 \d")  # the detail of a refusal names HTTP/1.1 too
INNER = b"GET /health/live HTTP/1.1\r\nHost: silo\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LOOK = b"GET /health/live HTTP/1.1\r\nHost: silo\r\n"
REFUSED = {
    "length beside chunks": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "chunks beside a length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + INNER,
    "length said twice": HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}" + INNER,
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 0\r\n\r\n{}" + INNER,
    "a list of one length": HEAD + b"Content-Length: 0, 0\r\n\r\n" + INNER,
    "length with a sign": HEAD + b"Content-Length: +2\r\n\r\n{}" + INNER,
    "length in hexadecimal": HEAD + b"Content-Length: 0x2\r\n\r\n{}" + INNER,
    "no length": HEAD + b"Content-Length: \r\n\r\n" + INNER,
    "folded line": LOOK + b"X-More: a\r\n b\r\n\r\n" + INNER,
    "folded length": HEAD + b"Content-Length:\r\n 2\r\n\r\n{}" + INNER,
    "first line that is folded": b"GET /health/live HTTP/1.1\r\n Host: silo\r\n\r\n" + INNER,
    "bare line feeds": LOOK.replace(b"\r\n", b"\n") + b"\n" + INNER,
    "one bare line feed": LOOK + b"X-More: a\nX-Others: b\r\n\r\n" + INNER,
    "bare line feed at the end": LOOK + b"\n" + INNER,
    "bare carriage return": LOOK + b"X-More: a\rX-Others: b\r\n\r\n" + INNER,
    "space before a colon": LOOK + b"X-More : a\r\n\r\n" + INNER,
    "space before the colon of a length": HEAD + b"Content-Length : 2\r\n\r\n{}" + INNER,
    "control character": LOOK + b"X-More: a\x01b\r\n\r\n" + INNER,
    "NUL": LOOK + b"X-More: a\x00b\r\n\r\n" + INNER,
    "another coding": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + INNER,
    "no coding": HEAD + b"Transfer-Encoding: identity\r\n\r\n" + INNER,
    "misspelt coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + INNER,
    "coding said twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "coding with a tab in it": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + INNER,
    "chunks in HTTP/1.0": CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n" + INNER,
    "another version": LOOK.replace(b"HTTP/1.1", b"HTTP/1.9") + b"\r\n" + INNER,
    "two hosts": LOOK + b"Host: other\r\n\r\n" + INNER,
    "extension of a chunk": CHUNKED + b"2;x=y\r\n{}\r\n0\r\n\r\n" + INNER,
    "extension of the last chunk": CHUNKED + b"2\r\n{}\r\n0;x\r\n\r\n" + INNER,
    "space behind a size": CHUNKED + b"2 \r\n{}\r\n0\r\n\r\n" + INNER,
    "bare line feed behind a size": CHUNKED + b"2\n{}\r\n0\r\n\r\n" + INNER,
    "size with a prefix": CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n" + INNER,
    "size with a sign": CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n" + INNER,
    "huge size": CHUNKED + b"ffffffffffffffff2\r\n{}\r\n0\r\n\r\n" + INNER,
    "size that never ends": CHUNKED + b"0" * 500,
    "no line end behind a chunk": CHUNKED + b"2\r\n{}XX0\r\n\r\n" + INNER,
    "trailers": CHUNKED + b"2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n" + INNER,
}
TAKEN = {
    "chunks": CHUNKED.replace(b"chunked", b"Chunked") + b"1\r\n{\r\n00001\r\n}\r\n0\r\n\r\n",
    "chunks with digits of letters": CHUNKED + b"A\r\n{         \r\na\r\n         }\r\n0\r\n\r\n",
    "length": HEAD + b"Content-Length: 2\r\n\r\n{}",
    "length with zeros before it": HEAD + b"Content-Length:\t002 \r\n\r\n{}",
    "nothing": LOOK + b"\r\n",
    "tab in a value": LOOK + b"X-More: a\tb\r\n\r\n",
}


@pytest.fixture(params=("aggregator", "client"))
def port(request: pytest.FixtureRequest, silos: Silos, tmp_path: Path) -> Iterator[int]:
    """Both services, one after the other."""
    if request.param == "aggregator":
        app = create_aggregator(small_aggregator(tmp_path / "aggregator"))
        wind_down = app.state.coordinator.wind_down
    else:
        settings = small_client(silos(1)[0], tmp_path)
        ensure_key_pair(settings.name, settings.state_directory)
        app, wind_down = create_client(settings, Unreachable()), lambda: None
    with serve(app, wind_down=wind_down) as url:
        yield httpx.URL(url).port or 0


def said_to(port: int, request: bytes) -> bytes:
    """All that is answered until the other side hangs up. TimeoutError where it does not."""
    with socket.create_connection(("127.0.0.1", port), timeout=LONGEST_SECONDS) as line:
        line.sendall(request)
        found = bytearray()
        while piece := line.recv(1 << 16):
            found += piece
        return bytes(found)


def is_refused(answer: bytes) -> bool:
    """Once, by a problem document, and as the last answer of its connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    named = b"application/problem+json" in head and b"connection: close" in head.lower()
    return head.startswith(b"HTTP/1.1 400 ") and named and not STATUS_LINE.search(body) and b"live" not in body


def test_it_is_refused_and_what_follows_is_not_read(port: int) -> None:
    answers = {which: said_to(port, sent) for which, sent in REFUSED.items()}
    assert {which: answer for which, answer in answers.items() if not is_refused(answer)} == {}


def test_what_has_one_reading_is_read_and_so_is_what_follows(port: int) -> None:
    last = INNER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    for which, sent in TAKEN.items():
        answer = said_to(port, sent + last)
        assert (answer.count(b"HTTP/1.1 "), b'"status":"live"' in answer, b" 400 " in answer) == (2, True, False), which


def test_what_is_malformed_after_its_answer_gets_no_other_one(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=LONGEST_SECONDS) as line:
        line.sendall(CHUNKED.replace(b"/v1/recommendations", b"/nowhere") + b"2\r\n{}\r\n")
        answer = line.recv(1 << 16)
        while b"}" not in answer.partition(b"\r\n\r\n")[2]:
            answer += line.recv(1 << 16)
        line.sendall(b"2;x=y\r\n{}\r\n" + INNER)
        assert answer.startswith(b"HTTP/1.1 404 ") and line.recv(1 << 16) == b""
