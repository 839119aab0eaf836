"""Over real sockets: what is too long, packed, too slow or too much is cut off, and everybody else is answered."""

from __future__ import annotations

import gzip
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from threading import Event, Semaphore
from typing import TYPE_CHECKING, Annotated

import httpx
import pytest
from fastapi import Body, FastAPI

from shared.web import connection, problems
from shared.web.listening import ListenSettings
from shared.web.middleware import HEALTH_AT_LEAST, LONGEST_MESSAGE, BodyLimit, BodyTimeout, RateLimit, TokenBuckets
from shared.web.outgoing import OutgoingTls
from tests.support.questions import LONGEST_SECONDS

if TYPE_CHECKING:
    from conftest import Papers, Served

PIECE = 64 << 10


@pytest.fixture
def app() -> FastAPI:
    """As both services are built, beneath their own routes."""
    app = FastAPI()

    @app.post("/json")
    def take(message: Annotated[dict[str, str], Body()]) -> dict[str, int]:
        return {"fields": len(message)}

    @app.get("/")
    def look() -> dict[str, str]:
        return {"said": "hello"}

    @app.get("/health/live")
    def live() -> dict[str, str]:
        return {"status": "live"}

    problems.install_error_handlers(app)
    app.add_middleware(BodyLimit)
    return app


def connected(url: str) -> socket.socket:
    place = httpx.URL(url)
    found = socket.create_connection((place.host, place.port), timeout=LONGEST_SECONDS)
    return found


def send(line: socket.socket, text: bytes) -> None:
    """Send a text to a service that may have hung up before it comes, where this machine is busy."""
    with suppress(ConnectionError, ssl.SSLError):
        line.sendall(text)


def read_to_end(line: socket.socket) -> bytes:
    """All that the other side says until it hangs up. TimeoutError if it never does."""
    found = bytearray()
    with suppress(ConnectionError, ssl.SSLEOFError):
        while piece := line.recv(PIECE):
            found += piece
    return bytes(found)


def document(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def endless(sent: list[int]) -> Iterator[bytes]:
    """A JSON text of unannounced length that never ends; `sent` takes the length of what was asked for."""
    yield b'{"a": "'
    while sum(sent) < 64 * LONGEST_MESSAGE:
        sent.append(PIECE)
        yield b"x" * PIECE


def test_a_body_of_unannounced_length_is_cut_where_its_limit_is_passed(app: FastAPI, served: Served) -> None:
    sent: list[int] = []
    with served(app) as url:
        answer = httpx.post(f"{url}/json", content=endless(sent), headers={"Content-Type": "application/json"})
        assert document(answer) == (413, "too-large") and answer.headers["connection"] == "close"
        assert httpx.post(f"{url}/json", json={"a": "x" * (LONGEST_MESSAGE - 9)}).json() == {"fields": 1}
    assert LONGEST_MESSAGE <= sum(sent) < 4 * LONGEST_MESSAGE  # what was on the way when it was cut included


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity"])
def test_a_packed_body_is_refused_and_never_unpacked(app: FastAPI, served: Served, encoding: str) -> None:
    bomb = gzip.compress(b'{"a": "' + b"0" * (16 << 20) + b'"}')
    assert len(bomb) < 32 << 10
    with served(app) as url:
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        assert document(httpx.post(f"{url}/json", content=bomb, headers=headers)) == (415, "media-type")


def test_a_head_that_trickles_in_is_cut_off(app: FastAPI, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(app) as url:
        with monkeypatch.context() as hurried, connected(url) as line:
            hurried.setattr(connection, "HEAD_SECONDS", 0.3)
            assert trickled(line, b"GET / HTTP/1.1\r\nHost: silo\r\n", b"X-More: a\r\n")
        assert httpx.get(url).is_success


def trickled(line: socket.socket, first: bytes, then: bytes) -> bool:
    """Say something, and a little more again and again; has the other side hung up before all patience ended?"""
    send(line, first)
    line.settimeout(0.05)
    until = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < until:
        try:
            line.sendall(then)
            if not line.recv(PIECE):
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


@pytest.mark.parametrize("begun", [b"", b"GET", b"GET / HTTP/1.1\r\nHost: silo\r\n"])
def test_a_connection_that_says_nothing_is_cut_off(
    app: FastAPI, served: Served, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
    with served(app) as url, connected(url) as line:
        send(line, begun)
        assert read_to_end(line) == b""


def test_a_head_is_cut_off_behind_tls_too(
    app: FastAPI, served: Served, papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = OutgoingTls(papers.crt("authority")).context
    with (
        served(app, ListenSettings(**papers.port())) as url,
        connected(url) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as line,
    ):
        monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)  # now that hands are shaken: what comes sets the clock
        send(line, b"GET / HTTP/1.1\r\nHost: silo\r\n")
        assert read_to_end(line) == b""


def test_a_head_that_is_too_long_is_refused(app: FastAPI, served: Served) -> None:
    with served(app) as url, connected(url) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: silo\r\n" + b"X-More: aaaaaaaaaaaaaaaa\r\n" * 4000)
        assert read_to_end(line).startswith(b"HTTP/1.1 431")


def test_a_body_that_trickles_in_is_cut_off(app: FastAPI, served: Served) -> None:
    head = b"POST /json HTTP/1.1\r\nHost: silo\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
    app.add_middleware(BodyTimeout, seconds=0.3)
    with served(app) as url, connected(url) as line:
        line.sendall(head + b'{"a": "')
        answer = read_to_end(line)
    assert answer.startswith(b"HTTP/1.1 408") and b'"code":"too-slow"' in answer


def test_the_rest_of_a_refused_body_is_not_listened_to_for_long(
    app: FastAPI, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads a body that is sent to a path that does not exist."""
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    head = b"POST /nowhere HTTP/1.1\r\nHost: silo\r\nTransfer-Encoding: chunked\r\n\r\n"
    with served(app) as url, connected(url) as line:
        assert trickled(line, head, b"1\r\nx\r\n")


@pytest.fixture
def crowd(app: FastAPI, served: Served) -> Iterator[tuple[str, Callable[[], socket.socket]]]:
    """A service of four connections at once, one of them kept, and a way to open more of them."""
    with ExitStack() as stack, served(app, ListenSettings(most_connections=4)) as url:
        yield url, lambda: stack.enter_context(connected(url))


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: silo\r\n", b"POST /json HTTP/1.1\r\nHost: silo\r\n"])
def test_who_says_nothing_whole_makes_room_for_the_next(
    crowd: tuple[str, Callable[[], socket.socket]], begun: bytes
) -> None:
    url, connect = crowd
    lines = [connect() for _ in range(20)]
    for line in lines[-3:]:
        line.sendall(begun)
    assert all(httpx.get(url).is_success for _ in range(5))
    assert read_to_end(lines[0]) == b""


def test_beyond_so_many_requests_under_way_callers_are_told_to_come_again(
    app: FastAPI, crowd: tuple[str, Callable[[], socket.socket]]
) -> None:
    begun, go_on = Semaphore(0), Event()

    @app.get("/held")
    def hold() -> None:
        begun.release()
        go_on.wait(LONGEST_SECONDS)

    url, connect = crowd
    lines = [connect() for _ in range(3)]
    for line in lines:
        line.sendall(b"GET /held HTTP/1.1\r\nHost: silo\r\nConnection: close\r\n\r\n")
        assert begun.acquire(timeout=LONGEST_SECONDS)
    refused = httpx.get(url)
    assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
    assert "a full port" in refused.json()["detail"] and refused.headers["retry-after"].isdigit()
    go_on.set()
    assert all(read_to_end(line).startswith(b"HTTP/1.1 200") for line in lines)
    assert httpx.get(url).is_success


def test_who_never_shakes_hands_makes_room_too(app: FastAPI, served: Served, papers: Papers) -> None:
    context = OutgoingTls(papers.crt("authority")).context
    with ExitStack() as stack, served(app, ListenSettings(**papers.port(), most_connections=4)) as url:
        lines = [stack.enter_context(connected(url)) for _ in range(20)]
        assert all(httpx.get(url, verify=context).is_success for _ in range(5))
        assert read_to_end(lines[0]) == b""


def test_who_never_shakes_hands_is_cut_off(
    app: FastAPI, served: Served, papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.2)
    with served(app, ListenSettings(**papers.port())) as url, connected(url) as line:
        assert read_to_end(line) == b""


def test_who_comes_too_fast_is_told_when_to_come_again(app: FastAPI, served: Served) -> None:
    app.add_middleware(
        RateLimit, buckets=TokenBuckets(2.0, clock=lambda: 0.0)
    )  # a clock that stands: nothing comes back
    with served(app) as url:
        answers = [httpx.get(url) for _ in range(6)]
        health = [httpx.get(f"{url}/health/live").status_code for _ in range(6)]
    assert [one.status_code for one in answers] == [200] * 4 + [429] * 2 and set(health) == {200}
    assert document(answers[-1]) == (429, "too-many") and answers[-1].headers["retry-after"] == "1"


def test_a_flood_of_health_checks_is_told_to_wait_and_takes_nothing_from_others(app: FastAPI, served: Served) -> None:
    still = TokenBuckets(1.0, clock=lambda: 0.0)  # two at once: a clock that stands
    app.add_middleware(RateLimit, buckets=TokenBuckets(0.5, clock=lambda: 0.0), health=still)
    with served(app, ListenSettings(trusted_proxies=("127.0.0.1",))) as url:

        def ask(path: str, address: str) -> int:
            return httpx.get(url + path, headers={"X-Forwarded-For": address}).status_code

        assert [ask("/health/live", "192.0.2.1") for _ in range(4)] == [200, 200, 429, 429]
        assert [ask("/health/live", "192.0.2.2"), ask("/", "192.0.2.1")] == [200, 200]
        assert [ask("/", "192.0.2.3"), ask("/", "192.0.2.3"), ask("/health/live", "192.0.2.3")] == [200, 429, 200]
        assert {ask("/health/live", "127.0.0.1") for _ in range(6)} == {ask("/health/live", "::1") for _ in range(6)}


@pytest.mark.parametrize(("given", "of_health"), [(0.0, 0.0), (2.0, HEALTH_AT_LEAST), (100.0, 100.0)])
def test_probes_get_more_than_whoever_may_ask_little(given: float, of_health: float) -> None:
    async def nothing(*_: object) -> None:
        """It is never asked."""

    assert RateLimit(nothing, TokenBuckets(given)).health.rate == of_health


@pytest.mark.parametrize(("trusted", "told_apart"), [((), False), (("127.0.0.0/8",), True), (("10.0.0.1",), False)])
def test_an_address_that_a_proxy_tells_is_believed_of_a_trusted_one_alone(
    app: FastAPI, served: Served, trusted: tuple[str, ...], told_apart: bool
) -> None:
    app.add_middleware(RateLimit, buckets=TokenBuckets(0.5, clock=lambda: 0.0))
    with served(app, ListenSettings(trusted_proxies=trusted)) as url:
        answers = [httpx.get(url, headers={"X-Forwarded-For": f"192.0.2.{n}"}).status_code for n in (1, 2)]
    assert answers == [200, 200 if told_apart else 429]


def test_an_answer_does_not_tell_what_made_it(app: FastAPI, served: Served) -> None:
    with served(app) as url:
        assert "server" not in httpx.get(url).headers
