"""The fast path says what the framework says: every request of the contract is asked of a silo with and without it."""

from __future__ import annotations

import json
import logging
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
from fastapi import FastAPI

from client_service.__main__ import server_settings
from client_service.app import create_app
from client_service.data.interaction_files import write_shard
from client_service.http.fast_path import FastPath
from client_service.http.server_app import create_server
from client_service.settings import ClientSettings
from shared.protocol.signing.enrolment import ensure_key_pair
from shared.web.middleware import FrontedApp, TokenBuckets
from tests.support.federation import Unreachable
from tests.support.given import Silos
from tests.support.kept import keep_first_model
from tests.support.new_items import write_shop
from tests.support.nodes import keep_node_model, node_silo
from tests.support.questions import LONGEST_SECONDS
from tests.support.serving import serve
from tests.support.small import small_client
from tests.support.visits import session_silo

APPLICATION, OPERATOR = "application-key-of-the-tests-0123", "operator-key-of-the-tests-01234567"
KEYS: dict[str, Any] = {"application_key": APPLICATION, "operator_key": OPERATOR}
UNCHANGED: dict[str, Any] = {"refresh_seconds": None, "refresh_interactions": None}  # by no refresh
SHOP = "https://shop.example"
USERS, BASKETS, NEXT = "/v1/users/user-01/recommendations", "/v1/recommendations", "/v1/next"
SIMILAR, LIVE = "/v1/items/item-01/similar", "/health/live"
ID = "0123456789abcdef0123456789abcdef"
CHANGING = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.+Z]+|[0-9a-f]{32,}|[0-9]+\.[0-9]+(e-[0-9]+)?")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
OWN_ID = re.compile(rb'"request_id":"[0-9a-f]{32}"')
ASIDE = {"date", "x-request-id"}
OF_THIS_MOMENT = {"timestamp", "seconds", "request_id"}
SMALL_BODY = '{"basket":["item-00","item-03"],"k":3}'


def write_request(
    method: str,
    target: str,
    body: bytes | str = b"",
    *,
    key: str | None = APPLICATION,
    host: str = "silo",
    headers: tuple[str, ...] = (),
    kind: str | None = "application/json",
    version: str = "1.1",
) -> bytes:
    """The bytes of a request, after which the connection ends."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"{method} {target} HTTP/{version}", f"Host: {host}"]
    lines += [] if key is None else [f"Authorization: Bearer {key}"]
    lines += [f"Content-Length: {len(content)}"] if content else []
    lines += [f"Content-Type: {kind}"] if content and kind is not None else []
    return "\r\n".join([*lines, *headers, "Connection: close", "", ""]).encode("latin-1") + content


def get(target: str, **more: Any) -> bytes:
    return write_request("GET", target, **more)


def post(target: str, body: Any, **more: Any) -> bytes:
    return write_request("POST", target, body if isinstance(body, bytes | str) else json.dumps(body), **more)


IDS = (
    *(
        "user-01",
        "user-02",
        "user-15",
        "nobody",
        "user-07",
        "%20user-01",
        "user-01%20",
        "user%2D01",
        "%E2%80%AFuser-01",
    ),
    *(
        "17",
        "17.0",
        "%31%37",
        "-0.0",
        "e%CC%81",
        "%C3%A9",
        "a%2Fb",
        "a%2fb",
        "%2e%2e",
        "..",
        ".",
        "a;b",
        "a+b",
        "a%2Bb",
    ),
    *("%zz", "%2", "%", "%00", "%0A", "user-01%0A", "%ff", "%c3%28", "%ED%A0%80", "%F4%90%80%80", "%20", "%EF%BB%BF"),
    *("x" * 512, "x" * 513, "%C3%A9" * 512, "%C3%A9" * 513, "", "/", "a/b", "~", "!$&'()*,=:@", "%22%5C", "\\", '"'),
)
QUERIES = (
    *(
        "k=5",
        "k=1",
        "k=1000",
        "k=1001",
        "k=0",
        "k=05",
        "k=-1",
        "k=%2B5",
        "k=+5",
        "k=5&k=5",
        "k=5&",
        "&k=5",
        "&",
        "k=",
        "k",
    ),
    *(
        "K=5",
        "k=5.0",
        "k=1e1",
        "k=%35",
        "%6B=5",
        "k=5;",
        "k=5#x",
        "k=5?",
        "?k=5",
        "=5",
        "k=%ff",
        "k=5&x=1",
        "x",
        "k=999",
    ),
    *(
        "exclude_seen=false",
        "k=5&exclude_seen=true",
        "filter=category:a",
        "exclude=item-01",
        "offset=2",
        "k=999&offset=2",
    ),
    *("mmr=0.5", "raw=true", "explain=true", "freshness=0.1", "k=3&raw=false"),
)
BASKET_BODIES: tuple[Any, ...] = (
    *({"basket": ["item-00"]}, {"basket": ["item-00", "item-00", "mystery", " item-03 ", "17.0"], "k": 2}, SMALL_BODY),
    *(
        {"basket": ["mystery"]},
        {"basket": []},
        {"basket": None},
        {"basket": "item-00"},
        {"basket": [1]},
        {"basket": [""]},
    ),
    *(
        {"basket": ["x" * 513]},
        {"basket": ["item-00"], "users": ["user-01"]},
        {"users": ["user-01", "nobody"], "k": 2},
        {},
    ),
    *({"basket": ["item-00"], "k": k} for k in (0, 1, 1000, 1001, "5", 5.0, 5.5, True, None, [5], 10**30)),
    {"basket": ["item-00"], "exclude_seen": False, "exclude": ["item-01"], "offset": 1, "mmr": 0.5},
    {"basket": ["item-00"], "allow": ["item-04", "item-05"], "raw": True},
    {"basket": ["item-00"], "explain": True, "k": 4},
    *({"basket": ["item-00"], "filter": [one]} for one in ("category:a", "x", "year:1", ":")),
    *(
        {"basket": ["item-00"], "freshness": 0.5},
        {"basket": ["item-00"], "mmr": 2},
        {"basket": ["item-00"], "k": 999, "offset": 2},
    ),
    *(
        '{"basket":["item-00"],"basket":["item-03"]}',
        '{"basket":["\\ud800"]}',
        '{"basket":["\\u0000"]}',
        '{"basket":["a\nb"]}',
    ),
    *(
        '{"basket":["item-00"],"mmr":NaN}',
        '{"basket":["item-00"],"k":1e0}',
        '{"basket":["item-00",]}',
        "[]",
        "null",
        "{",
        "x",
    ),
    *(
        b'\xef\xbb\xbf{"basket":["item-00"]}',
        b'{"basket":["\xff"]}',
        '{"basket":["item-00"]}'.encode("utf-16"),
        b" " * 70_000 + b"{}",
    ),
    *(
        '{"basket":["item-00"],"x":1}',
        '{"Basket":["item-00"]}',
        ' \t\r\n{"basket" : ["item-00"]} ',
        '{"basket":["item-00"]}x',
    ),
    *(
        '{"basket":["item-00"],"k":01}',
        '{"basket":["\\x"]}',
        "[" * 300,
        '{"basket":["item-00"],"k":3,"k":2}',
        '{"basket":["é"]}',
    ),
)
LABELS = "/v1/labels"
LABEL_BODIES: tuple[Any, ...] = (
    {"nodes": ["node-0001"]},
    {"nodes": ["node-0001", " node-0002"]},
    {"nodes": [{"features": [0.5, 0, -1, 2], "neighbours": [{"node": "node-0003"}, {"node": "mystery"}]}]},
    {"nodes": [{"node": "new", "features": {"column-2": 1.5}}, {"node": "node-0004", "neighbours": []}]},
    *({"nodes": ["mystery"]}, {"nodes": []}, {"nodes": [{}]}, {"nodes": [{"node": "mystery"}]}, {}, "{", "null"),
    *({"nodes": [{"features": [1.0]}]}, {"nodes": [{"features": {"mystery": 1}}]}, {"nodes": ["node-0001"] * 60}),
    {"nodes": [{"features": [1e10, 0, 0, 0]}]},
    {"nodes": [{"node": "node-0001", "neighbours": [{"node": "node-0001", "weight": 0}]}]},
    '{"nodes": [{"features": [NaN, 0, 0, 0]}]}',
    {"nodes": [f"node-{number % 60:04d}" for number in range(1001)]},
)
NEXT_BODIES: tuple[Any, ...] = (
    *({"session": ["0"]}, {"session": ["0", "1", "mystery"], "k": 3}, {"sessions": [["0"], ["mystery"]], "k": 2}, {}),
    *(
        {"session": []},
        {"session": [["0"]]},
        {"sessions": []},
        {"session": ["0"], "sessions": [["0"]]},
        {"session": ["0"], "k": 0},
    ),
    *({"session": ["0"], "exclude_seen": True, "exclude": ["1"]}, {"sessions": [["0"]] * 200, "k": 1000}, "{", "null"),
)
BODY = SMALL_BODY.encode()
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
FORM = ("Content-Type: application/json",)


def requests_of_heads() -> Iterator[bytes]:
    """Hosts, keys, ids of requests, kinds of bodies and methods, in the forms that callers and attackers give them."""
    for host in (
        "silo",
        "SILO:80",
        "127.0.0.1:8801",
        "[::1]",
        "evil.example",
        "silo.example.org",
        "",
        "a b",
        "silo, silo",
    ):
        yield get(USERS, host=host)
    yield get(USERS, headers=("Host: other",))
    yield get(USERS).replace(b"Host: silo\r\n", b"")
    for key in (
        None,
        OPERATOR,
        "n" * 40,
        "",
        f" {APPLICATION}",
        f"{APPLICATION} ",
        APPLICATION.upper(),
        f"{APPLICATION}x",
    ):
        yield get(USERS, key=key)
        yield post(BASKETS, SMALL_BODY, key=key)
    for header in (
        f"bearer {APPLICATION}",
        f"BEARER {APPLICATION}",
        f"Basic {APPLICATION}",
        APPLICATION,
        "Bearer\xe9 x",
    ):
        yield get(USERS, key=None, headers=(f"Authorization: {header}",))
    yield get(USERS, headers=(f"Authorization: Bearer {OPERATOR}",))
    yield get(USERS, key=OPERATOR, headers=(f"Authorization: Bearer {APPLICATION}",))
    for given in (ID, ID.upper(), "0123-4567", "", "x\xe9", "01234567-89ab-cdef-0123-456789abcdef"):
        yield get(USERS, headers=(f"X-Request-ID: {given}",))
    yield get(USERS, headers=(f"X-Request-ID: {ID}", f"X-Request-ID: {ID}"))
    for more in (
        f"Origin: {SHOP}",
        "Origin: https://evil.example",
        "Accept: application/x-ndjson",
        "Accept: text/html",
    ):
        yield get(USERS, headers=(more,))
        yield post(BASKETS, SMALL_BODY, headers=(more,))
    for more in (
        "Content-Length: 0",
        "Content-Length: 00",
        "Expect: 100-continue",
        "Upgrade: websocket",
        "X-More: " + "x" * 9000,
    ):
        yield get(USERS, headers=(more,))
    yield post(BASKETS, SMALL_BODY, headers=("Upgrade: h2c",))
    yield post(BASKETS, SMALL_BODY, headers=("Content-Encoding: gzip",))
    yield get(USERS, headers=("Content-Encoding: gzip",))
    for kind in (
        None,
        "text/plain",
        "application/json; charset=utf-8",
        "application/json;charset=latin-1",
        "APPLICATION/JSON",
    ):
        yield post(BASKETS, SMALL_BODY, kind=kind)
    yield post(BASKETS, SMALL_BODY, headers=FORM)
    yield post(BASKETS, SMALL_BODY, headers=("Content-Type: text/plain",))
    yield post(f"{BASKETS}?k=5", SMALL_BODY)
    yield post(f"{BASKETS}?", SMALL_BODY)
    yield post(BASKETS, b"", headers=("Content-Length: 0", *FORM))
    yield post(BASKETS, b"", headers=FORM)
    yield post(BASKETS, b"", headers=("Transfer-Encoding: chunked", *FORM)) + CHUNKED
    yield get(USERS, headers=("Transfer-Encoding: chunked",)) + CHUNKED
    yield write_request("GET", USERS, BODY)
    yield post(BASKETS, SMALL_BODY, version="1.0")
    yield get(USERS, version="1.0")
    for method in ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "get", "MADEUP", "POST"):
        for target in (USERS, SIMILAR, BASKETS, NEXT, "/v1/users/nobody/recommendations?k=2"):
            yield write_request(method, target)
    for target in (
        f"http://silo{USERS}",
        f"http://evil.example{USERS}",
        f"//silo{USERS}",
        f"{USERS}/",
        f"/x{USERS}",
        "*",
    ):
        yield get(target)
    for target in (
        USERS.replace("v1", "v%31"),
        USERS.replace("s/u", "s//u"),
        USERS.upper(),
        f"{USERS}%0A",
        f"{USERS};x",
        f"{USERS}#x",
    ):
        yield get(target)


def drawn_requests(count: int) -> Iterator[bytes]:
    """Forms of a request put together at random, always the same."""
    generator = np.random.default_rng(34)

    def one_of(*found: Any) -> Any:
        return found[int(generator.integers(len(found)))]

    more = (
        "X-Request-ID: " + ID,
        "Origin: " + SHOP,
        "Accept: */*",
        "Content-Length: 0",
        "Expect: 100-continue",
        "Cookie: a",
    )
    for _ in range(count):
        headers = tuple(one for one in more if generator.random() < 0.15)
        given = {"headers": headers, "host": one_of("silo", "silo", "silo", "127.0.0.1", "evil.example")}
        given |= {
            "key": one_of(APPLICATION, APPLICATION, APPLICATION, OPERATOR, None),
            "version": one_of("1.1", "1.1", "1.0"),
        }
        if generator.random() < 0.3:
            body = one_of(*BASKET_BODIES)
            yield post(
                one_of(BASKETS, NEXT), body, kind=one_of("application/json", "application/json", "text/plain"), **given
            )
            continue
        target = one_of("/v1/users/{}/recommendations", "/v1/items/{}/similar").format(one_of(*IDS))
        query = "&".join(one_of(*QUERIES) for _ in range(generator.integers(3)))
        yield write_request(one_of("GET", "GET", "GET", "HEAD"), target + one_of("", "?") + query, **given)


def requests_of_document(app: FastAPI) -> Iterator[bytes]:
    """Every operation, as its description asks for it; those that delete something come last."""
    places = {
        "user": "user-03",
        "item": "item-02",
        "node": "node-02",
        "receipt": ID,
        "version": "run-1.0",
        "name": "page.css",
    }
    listed = [
        (method.upper(), path.format(**places), operation)
        for path, operations in app.openapi()["paths"].items()
        for method, operation in operations.items()
    ]
    schemas = app.openapi()["components"]["schemas"]
    for method, path, operation in sorted(listed, key=lambda one: one[0] == "DELETE"):
        for key in (APPLICATION, OPERATOR):
            body = _example(operation, schemas)
            yield write_request(method, path, b"" if body is None else json.dumps(body), key=key)


def _example(operation: dict[str, Any], schemas: dict[str, Any]) -> Any:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return None
    named = schemas[content["schema"].get("$ref", "/RecommendationsIn").rpartition("/")[2]]
    return next(iter(named.get("examples", [])), {})


class Silo:
    """A service on a socket, its series and its lines of the log; and how many requests reached the framework."""

    def __init__(self, app: FastAPI, url: str) -> None:
        self.app, self.url = app, httpx.URL(url)

    def ask(self, request: bytes) -> bytes:
        """All that is answered until the service hangs up."""
        with socket.create_connection((self.url.host, self.url.port or 0), timeout=LONGEST_SECONDS) as wire:
            wire.sendall(request)
            found = b"".join(iter(lambda: wire.recv(65536), b""))
        if LIVE.encode() not in request:
            self.ask(get(LIVE))  # once this is answered, what was asked before is in the log and counted
        return found

    def count_samples(self) -> dict[tuple[str, ...], float]:
        """Requests by method, route and status."""
        found = {}
        for metric in self.app.state.service.metrics.requests.collect():
            for sample in metric.samples:
                if sample.name.endswith("_count") and sample.labels["route"] != LIVE:
                    labels = sample.labels
                    found[labels["method"], labels["route"], labels["status"]] = sample.value
        return found


class Lines(logging.Handler):
    """The log's lines of answered requests, but for what is of this moment."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = json.loads(record.getMessage())
        if line["event"] in ("request", "request_failed", "fast_path_failed") and line.get("route") != LIVE:
            kept = {name: None if name in OF_THIS_MOMENT else value for name, value in line.items()}
            self.found.append(json.dumps(kept))

    def take(self) -> list[str]:
        found, self.found = self.found, []
        return found


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, handler = logging.getLogger("client_service"), Lines()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


def split(answer: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
    """Status line, headers in their order, and body, without what differs from request to request."""
    answer = answer.removeprefix(CONTINUE)
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    named = [tuple(line.split(": ", 1)) for line in rest]
    return first, [(one[0], one[-1]) for one in named if one[0].lower() not in ASIDE], OWN_ID.sub(b"", body)


def create_whole(settings: ClientSettings) -> FastAPI:
    """Server and trainer in one process."""
    return create_app(settings, Unreachable())


def find_fast_path(app: Any) -> FastPath:
    layer = app.front
    while not isinstance(layer, FastPath):
        layer = layer.app
    return layer


Pair = tuple[Silo, Silo, list[int]]
"""A silo with the fast path, one without, and how many requests of the first reached its framework."""


@pytest.fixture
def pair_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Pair]]:
    """Two services of equal silos; the second one's fast path passes everything on."""
    whole = FastPath.__call__
    passed, without = [0], set[int]()

    async def call(self: FastPath, scope: Any, receive: Any, send: Any) -> None:
        if id(self) in without:
            await self.app(scope, receive, send)
            return
        inner = self.app

        async def count(scope: Any, receive: Any, send: Any) -> None:
            passed[0] += 1
            await inner(scope, receive, send)

        counted = object.__new__(FastPath)
        counted.__dict__.update(self.__dict__, app=count)
        await whole(counted, scope, receive, send)

    at_once = FastPath.answer_at_once
    monkeypatch.setattr(FastPath, "__call__", call)
    monkeypatch.setattr(
        FastPath, "answer_at_once", lambda self, scope: None if id(self) in without else at_once(self, scope)
    )
    with ExitStack() as stack:

        def open_pair(*settings: ClientSettings, make: Callable[..., FastAPI] = create_whole) -> Pair:
            apps = [make(one) for one in settings]
            without.add(id(find_fast_path(apps[1])))
            first, second = (Silo(app, stack.enter_context(serve(app))) for app in apps)
            return first, second, passed

        yield open_pair


def prepare(folder: Path, shard: Path, *, modelled: bool = True, **changes: Any) -> ClientSettings:
    """A silo with both keys, and a model on its disk."""
    own = Path(shutil.copytree(shard, folder / shard.name))
    settings = small_client(own, folder / "state", **(UNCHANGED | KEYS | changes))
    ensure_key_pair(settings.name, settings.state_directory)
    if modelled:
        keep_first_model(settings)
    return settings


def require_same(pair: Pair, request: bytes, lines: Lines, *, masked: bool = False) -> None:
    """Answer, line of the log and sample of both are equal."""
    told = []
    own = OPERATOR.encode() in request or b" /metrics " in request  # what each service tells of itself
    for silo in pair[:2]:
        before = silo.count_samples()
        answer = split(silo.ask(request))
        if masked:
            length = [one for one in answer[1] if one[0].lower() != "content-length"]
            answer = answer[0], length, b"" if own else CHANGING.sub(b"", answer[2])
        after = silo.count_samples()
        counted = {series: count - before.get(series, 0.0) for series, count in after.items()}
        told.append((answer, lines.take(), {series for series, count in counted.items() if count}))
    assert told[0] == told[1], request


def tell(silo: Silo, request: bytes) -> None:
    answer = silo.ask(request)
    assert answer.startswith(b"HTTP/1.1 20"), answer


def wait_until_listed(silo: Silo, version: str) -> None:
    """This model answers, and every known user's list is computed."""
    until = time.monotonic() + LONGEST_SECONDS
    while f'"model":"{version}"' not in (told := silo.ask(get("/v1/status", key=OPERATOR)).decode()):
        assert time.monotonic() < until
    while '"listed":1.0' not in told or '"phase":"idle"' not in told:
        told = "".join(silo.ask(get(path, key=OPERATOR)).decode() for path in ("/v1/status", "/v1/refresh"))
        assert time.monotonic() < until


@pytest.fixture
def pair(pair_of: Callable[..., Pair], silos: Silos, tmp_path: Path) -> Pair:
    """Of a silo with a model, an allowed host and an allowed origin. One user has a later event, one is erased, and one
    is nowhere but in the log."""
    changes: dict[str, Any] = {"allowed_hosts": ("silo.example.org",), "allowed_origins": (SHOP,)}
    (shard,) = silos(1)
    found = pair_of(*(prepare(tmp_path / name, shard, **changes) for name in ("with", "without")))
    later = [{"event": f"e-{user}", "user": user, "item": "item-11"} for user in ("user-02", "17")]
    for silo in found[:2]:
        wait_until_listed(silo, "run-1.0")
        tell(silo, write_request("DELETE", "/v1/users/user-07"))
        wait_until_listed(silo, "refresh.1")
        tell(silo, post("/v1/interactions", {"interactions": later}))
    return found


def test_lists_and_similar_items_by_each_id_and_query(pair: Pair, lines: Lines) -> None:
    for user in IDS:
        require_same(pair, get(f"/v1/users/{user}/recommendations"), lines)
        require_same(pair, get(f"/v1/items/{user}/similar?k=3"), lines)
    for query in QUERIES:
        for target in (USERS, SIMILAR, "/v1/users/nobody/recommendations", "/v1/users/user-02/recommendations"):
            require_same(pair, get(f"{target}?{query}"), lines)


NEW_QUERIES = (
    "",
    "new=0",
    "new=1",
    "new=2",
    "k=5&new=2",
    "k=10&new=1",
    "k=4&new=1",
    "new=1&k=5",
    "k=5&new=01",
    "new=3",
)
MORE_NEW_QUERIES = (
    *NEW_QUERIES,
    "new=",
    "&new=1",
    "new=1&new=1",
    "only=new",
    "k=3&only=new&offset=2",
    "only=old",
    "new=%31",
)
NEW_BODIES: tuple[Any, ...] = (
    *({"basket": ["boots-01", "boots-02"], "k": k} for k in (4, 5, 10, 20)),
    *({"basket": ["boots-01", "posted"], "new": new} for new in (0, 2, 3, None)),
    *({"basket": ["mystery"]}, {"basket": ["novel-01"], "only": "new", "k": 30, "explain": True}),
    *({"users": ["user-00", "user-01", "nobody"], "new": 2}, {"users": ["user-00"], "only": "new"}),
)


def test_new_items_by_each_way(pair_of: Callable[..., Pair], tmp_path: Path, lines: Lines) -> None:
    """Of the catalogue, and posted; one user has met some of them."""
    shard = write_shop(tmp_path / "shop")
    found = pair_of(*(prepare(tmp_path / name, shard) for name in ("with", "without")))
    silo, _, passed = found
    posted = {"title": 'Black boots "of" gr\u00fcn', "categories": ["boots"]}
    met = [{"event": one, "user": "user-02", "item": one, "rating": None} for one in ("posted", "new-boots-2")]
    for one in found[:2]:
        wait_until_listed(one, "run-1.0")
    users = ("user-00", "user-01", "user-02", "user-04", "nobody")
    for turn in range(3):
        lines.take()
        for user in users:
            for query in MORE_NEW_QUERIES if turn == 1 else NEW_QUERIES:
                require_same(found, get(f"/v1/users/{user}/recommendations?{query}"), lines)
        for body in NEW_BODIES:
            require_same(found, post(BASKETS, body), lines)
        for item in ("new-boots-1", "posted", "mystery", "boots-01"):
            require_same(found, get(f"/v1/items/{item}/similar?k=3"), lines)
        require_same(found, get("/v1/items/new-boots-1/similar?new=1"), lines)
        for one in found[:2]:
            if turn == 0:
                tell(one, write_request("PUT", "/v1/items/posted", json.dumps(posted)))
            elif turn == 1:
                tell(one, post("/v1/interactions", {"interactions": met}))
    page = silo.ask(get("/?user=user-00&k=10", key=OPERATOR)).decode()
    assert page.count("new: no interactions yet") == 1 and "reads like" in page, "the page says why"
    before = passed[0]
    for user in ("user-00", "user-01"):
        told = silo.ask(get(f"/v1/users/{user}/recommendations?k=10"))
        assert told.count(b'"reason":"new"') == 1 and told.rstrip().endswith(b'"reason":"new"}]}')
        assert b'"reason"' not in silo.ask(get(f"/v1/users/{user}/recommendations?k=10&new=0"))
    assert passed[0] == before + 4, "that of LIVE, which `ask` adds; the lists do not reach the framework"


def test_heads_and_bodies_of_each_form(pair: Pair, lines: Lines) -> None:
    for body in BASKET_BODIES:
        require_same(pair, post(BASKETS, body), lines)
    for request in requests_of_heads():
        require_same(pair, request, lines)


def test_forms_put_together_at_random(pair: Pair, lines: Lines) -> None:
    for request in drawn_requests(500):
        require_same(pair, request, lines)


def test_every_operation_of_the_document(pair: Pair, lines: Lines) -> None:
    for request in requests_of_document(pair[0].app):
        require_same(pair, request, lines, masked=True)


def test_the_usual_requests_do_not_reach_the_framework(pair: Pair) -> None:
    silo, _, passed = pair
    usual = (
        *(get(f"/v1/users/{user}/recommendations?k=3") for user in ("user-01", "user-02", "17.0", "nobody", "a%2Fb")),
        *(
            get(SIMILAR),
            write_request("HEAD", USERS),
            post(BASKETS, SMALL_BODY),
            post(BASKETS, {"basket": ["mystery"]}),
        ),
    )
    for request in usual:
        silo.ask(get(LIVE))
        before = passed[0]
        assert silo.ask(request).startswith(b"HTTP/1.1 200"), request
        assert passed[0] == before + 1, request  # that of LIVE, which `ask` adds
    assert silo.ask(get(USERS, key=None)).startswith(b"HTTP/1.1 401") and passed[0] > before + 1


def test_without_a_key(pair_of: Callable[..., Pair], silos: Silos, tmp_path: Path, lines: Lines) -> None:
    (shard,) = silos(1)
    none = dict.fromkeys(KEYS)
    found = pair_of(*(prepare(tmp_path / name, shard, modelled=False, **none) for name in ("a", "b")))
    for header in ((), ("Authorization:",), ("Authorization: Bearer x",)):
        for request in (get(USERS, key=None, headers=header), post(BASKETS, SMALL_BODY, key=None, headers=header)):
            require_same(found, request, lines)


def test_what_comes_too_fast_is_refused_alike(
    pair_of: Callable[..., Pair],
    silos: Silos,
    tmp_path: Path,
    lines: Lines,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "client_service.http.server_app.TokenBuckets", lambda rate: TokenBuckets(rate, clock=lambda: 0.0)
    )
    (shard,) = silos(1)
    limits: dict[str, Any] = KEYS | {"requests_per_second": 10.0}
    found = pair_of(*(prepare(tmp_path / name, shard, modelled=False, **limits) for name in ("a", "b")))
    asked = (get(USERS), get(f"{USERS}?k=0"), post(BASKETS, SMALL_BODY), post(BASKETS, "{"), get("/v1/model"))
    for _ in range(6):  # five a turn of the twenty that a caller may save up; refused ones among them count too
        for request in asked:
            require_same(found, request, lines)
    assert found[0].ask(get(USERS)).startswith(b"HTTP/1.1 429")


def test_next_items(pair_of: Callable[..., Pair], tmp_path: Path, lines: Lines) -> None:
    found = pair_of(*(session_silo(tmp_path / name, **KEYS) for name in ("a", "b")))
    for body in NEXT_BODIES:
        require_same(found, post(NEXT, body), lines)
    for request in (
        get(USERS),
        post(BASKETS, SMALL_BODY),
        get(SIMILAR),
        get(NEXT),
        post(f"{NEXT}?k=1", NEXT_BODIES[0]),
    ):
        require_same(found, request, lines)
    before = found[2][0]
    assert found[0].ask(post(NEXT, NEXT_BODIES[0])).startswith(b"HTTP/1.1 200") and found[2][0] == before + 1


@pytest.mark.parametrize("modelled", [False, True])
def test_labels_of_nodes(pair_of: Callable[..., Pair], tmp_path: Path, lines: Lines, modelled: bool) -> None:
    given = [node_silo(tmp_path / name, **KEYS) for name in ("a", "b")]
    found = pair_of(*(map(keep_node_model, given) if modelled else given))
    for silo in found[:2] if modelled else ():
        until = time.monotonic() + LONGEST_SECONDS
        while b'"version"' not in silo.ask(get("/v1/model")):
            assert time.monotonic() < until
    lines.take()
    for body in LABEL_BODIES:
        require_same(found, post(LABELS, body), lines)
    for request in (get(USERS), post(BASKETS, SMALL_BODY), post(NEXT, NEXT_BODIES[0]), get(SIMILAR), get(LABELS)):
        require_same(found, request, lines)
    before = found[2][0]
    assert found[0].ask(post(LABELS, LABEL_BODIES[0])).startswith(b"HTTP/1.1 200") and found[2][0] == before + 1


def test_a_user_by_another_spelling_of_the_id_is_that_user_with_all_that_came_later(
    silos: Silos, tmp_path: Path
) -> None:
    settings = prepare(tmp_path / "numbered", silos(1)[0], modelled=False)
    pairs = [(str(user), f"item-{item}", "train") for user in range(8) for item in range(9) if (user + item) % 3]
    write_shard(settings.shard, "shop", pl.DataFrame(pairs, schema=["user", "item", "split"], orient="row"), None)
    keep_first_model(settings)
    app = create_app(settings, Unreachable())
    with serve(app) as url:
        silo = Silo(app, url)
        wait_until_listed(silo, "run-1.0")
        listed = [one["item"] for one in json.loads(split(silo.ask(get("/v1/users/1/recommendations")))[2])["items"]]
        tell(silo, post("/v1/interactions", {"interactions": [{"event": "e", "user": "1", "item": listed[0]}]}))
        for spelled in ("1", "1.0", "%201"):
            found = json.loads(split(silo.ask(get(f"/v1/users/{spelled}/recommendations")))[2])
            assert found["user"] == "1" and listed[0] not in [one["item"] for one in found["items"]], spelled


def create_lone_server(settings: ClientSettings) -> FrontedApp:
    return create_server(server_settings(settings, trains=False))


def test_a_server_without_its_trainer(pair_of: Callable[..., Pair], silos: Silos, tmp_path: Path, lines: Lines) -> None:
    (shard,) = silos(1)
    settings = [prepare(tmp_path / name, shard) for name in ("a", "b")]
    for one in settings:  # what a trainer leaves behind
        with serve(app := create_whole(one)) as url:
            wait_until_listed(Silo(app, url), "run-1.0")
    found = pair_of(*settings, make=create_lone_server)
    for silo in found[:2]:
        until = time.monotonic() + LONGEST_SECONDS
        while b'"version"' not in silo.ask(get("/v1/model")):
            assert time.monotonic() < until
        tell(silo, post("/v1/interactions", {"interactions": [{"event": "e", "user": "user-02", "item": "item-11"}]}))
    lines.take()
    for user in ("user-01", "user-02", "nobody", "user%2D01", "%ff"):
        require_same(found, get(f"/v1/users/{user}/recommendations?k=4"), lines)
    for request in (
        get(SIMILAR),
        post(BASKETS, SMALL_BODY),
        post(BASKETS, "{"),
        post(NEXT, NEXT_BODIES[0]),
        get(USERS, key=None),
    ):
        require_same(found, request, lines)
    before = found[2][0]
    assert found[0].ask(get(USERS)).startswith(b"HTTP/1.1 200") and found[2][0] == before + 1
