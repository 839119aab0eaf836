"""Exactly the declared calls pass the gate; of anything else not one byte reaches what lies beneath it."""

from __future__ import annotations

import gzip
import hashlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from client_service.boundary.aggregator_api import Aggregator, connect
from client_service.boundary.gate import Boundary, GateTransport
from client_service.boundary.ledger import Ledger
from shared.errors import PrivacyError, ProtocolError, TooLargeError
from shared.method.declaration import Counts, Declaration, TensorSpec
from shared.method.parameters import Float32, Parameters
from shared.protocol.request_heads import USER_AGENT
from shared.protocol.schemas import JoinIn, ReceiptOut
from shared.protocol.signing.keys import new_key
from shared.protocol.signing.requests import HEADERS, RequestTarget, body_digest, is_valid_claim, read_claim
from shared.protocol.wire import MEDIA_TYPE, encode_body
from shared.timeouts import CallLimits

pytestmark = pytest.mark.anyio

HOME = "http://aggregator:8800"
KEY = new_key()
SHAPES = {"pooling.w": (2, 3), "predictive.b": (1,)}
DECLARATION = Declaration(
    strategy="lpsfed",
    tensors=tuple(TensorSpec(name=name, shape=shape) for name, shape in SHAPES.items()),
    scalars=("margin", "rho"),
)
OWN = "/v1/runs/run-1/rounds/1/clients/east"
UPDATE = f"{OWN}/update"
COUNTS = Counts(users=5, items=6, edges=7)


def arrays() -> dict[str, Any]:
    return {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in SHAPES.items()}


def body(scalars: dict[str, float] | None = None, **changed: Any) -> bytes:
    """A declared update, with some arrays put in, replaced, or (None) taken out."""
    named = {**arrays(), **{name.replace("__", "."): value for name, value in changed.items()}}
    kept = {name: value for name, value in named.items() if value is not None}
    return save(kept, metadata={"scalars": json.dumps({"margin": 0.25, "rho": 0.5} if scalars is None else scalars)})


def join_message(counts: Counts | None = None, **changed: Any) -> bytes:
    message = JoinIn(client="east", declaration=DECLARATION, counts=counts)
    return message.model_copy(update=changed).model_dump_json().encode()


@dataclass
class Wire:
    """What lies beneath the gate: it answers, and remembers what reached it."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b"{}"
    error: httpx.TransportError | None = None
    reached: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.reached.append(request)
        if self.error is not None:
            raise self.error
        return httpx.Response(self.status, headers=self.headers, stream=httpx.ByteStream(self.content))


@dataclass(frozen=True)
class Gated:
    """A client that could ask for anything, above the gate."""

    http: httpx.AsyncClient
    ledger: Ledger
    wire: Wire

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        kind = {"POST": "application/json", "PUT": MEDIA_TYPE}.get(method)
        headers = {} if kind is None else {"Content-Type": kind}
        return await self.http.request(method, path, headers=headers | options.pop("headers", {}), **options)

    async def refused(self, method: str, path: str, **options: Any) -> str:
        """Why. Nothing reached the wire, and the ledger has no word of it."""
        with pytest.raises(PrivacyError) as raised:
            await self.send(method, path, **options)
        assert self.wire.reached == []
        assert list(self.ledger.entries()) == []
        return str(raised.value)


Opened = Callable[..., Gated]


@pytest.fixture
async def gated(tmp_path: Path) -> AsyncIterator[Opened]:
    opened: list[httpx.AsyncClient] = []

    def open_gate(
        wire: Wire | None = None, *, counts: bool = False, most: int = 10_000, declaration: Declaration = DECLARATION
    ) -> Gated:
        wire, ledger = wire or Wire(), Ledger(tmp_path / "ledger.jsonl")
        boundary = Boundary("east", httpx.URL(HOME), declaration, counts, most)
        transport = GateTransport(httpx.MockTransport(wire), boundary, ledger, KEY)
        said = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
        http = httpx.AsyncClient(transport=transport, base_url=HOME, headers=said, trust_env=False)
        opened.append(http)
        return Gated(http, ledger, wire)

    yield open_gate
    for http in opened:
        await http.aclose()


@pytest.mark.parametrize(
    ("name", "method", "path", "content"),
    [
        ("join", "POST", "/v1/clients", join_message()),
        ("current", "GET", "/v1/runs/current?wait=20", b""),
        ("current", "GET", "/v1/runs/current?wait=0.5&after=12", b""),
        ("model", "GET", "/v1/runs/run-1/model", b""),
        ("anchor", "GET", "/v1/runs/run-1/rounds/3/anchor", b""),
        ("update", "PUT", UPDATE, body()),
        ("personalized", "GET", f"{OWN}/personalized?wait=20", b""),
    ],
)
async def test_each_declared_call_passes_and_is_on_record(
    gated: Opened, name: str, method: str, path: str, content: bytes
) -> None:
    gate = gated()
    assert (await gate.send(method, path, content=content)).status_code == 200
    [request] = gate.wire.reached
    assert (request.method, request.url) == (method, httpx.URL(HOME + path))
    assert request.content == content
    intent, outcome = gate.ledger.entries()
    assert (intent["kind"], intent["call"], intent["to"], intent["bytes"]) == ("intent", name, HOME, len(content))
    assert intent["sha256"] == hashlib.sha256(content).hexdigest()
    assert (outcome["kind"], outcome["of"], outcome["status"]) == ("outcome", intent["sequence"], 200)
    assert (outcome["bytes"], outcome["sha256"]) == (2, hashlib.sha256(b"{}").hexdigest())
    assert gate.ledger.verify() == 2


MODEL, PERSONALISED = "/v1/runs/run-1/model", f"{OWN}/personalized"
OTHER_PLACES = [
    *("http://elsewhere:8800", "http://aggregator:8801", "http://aggregator", "https://aggregator:8800"),
    "http://somebody@aggregator:8800",
]
OTHER_CALLS = [
    *(("GET", "/v1/clients"), ("PUT", "/v1/clients"), ("DELETE", MODEL), ("POST", UPDATE), ("GET", UPDATE)),
    *(("GET", path) for path in ("/", "/metrics", "/v1/runs", "/v1/runs/run-1", f"{MODEL}/", f"/{MODEL}")),
    *(("GET", f"/v1/runs/{run}/model") for run in ("user-00", "run-12345678901")),
    *(("GET", f"/v1/runs/run-1/rounds/{number}/anchor") for number in ("one", "-1")),
]
OTHER_NAMES = [
    *("west", "EAST", "east-2", "eas", "", "a%2Fb", "%65ast", "east%00", "east%2F..", "..%2Fclients%2Feast"),
    "east/../west",
]
OTHER_QUERIES = [
    *("wait=20&user=7", "wait=user-00", "wait=", "wait=-1", "wait=1e5", "wait=1&wait=2", "wait=1&wait=user-00"),
    *("wait=%31", "wait=1&after=1&after=2", "user-00", "after=user-00"),
]
REFUSED = [
    *(("GET", f"{place}{MODEL}") for place in OTHER_PLACES),
    ("GET", f"{HOME}{MODEL}#part"),
    *OTHER_CALLS,
    *(("GET", f"{PERSONALISED}".replace("east", name)) for name in OTHER_NAMES),
    *(("PUT", f"{UPDATE}".replace("east", name)) for name in OTHER_NAMES),
    *(("GET", f"{path}?{query}") for path in (MODEL, PERSONALISED, "/v1/runs/current") for query in OTHER_QUERIES),
    *(("GET", f"{path}?wait=1") for path in (MODEL, "/v1/runs/run-1/rounds/1/anchor")),
    ("PUT", f"{UPDATE}?wait=1"),
]


@pytest.mark.parametrize(("method", "url"), REFUSED)
async def test_another_place_call_name_or_query_is_refused_however_it_is_written(
    gated: Opened, method: str, url: str
) -> None:
    await gated().refused(method, url, content=body() if method == "PUT" else b"")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Note", "anything"),
        ("Cookie", "id=7"),
        ("Referer", "http://silo/users/7"),
        ("If-None-Match", '"user-00"'),
        ("User-Agent", "lpsfed-client/user-00"),
        *((name, "user-00") for name in ("Accept-Encoding", "Connection", "Host")),
        *((name, "text/user-00") for name in ("Accept", "Content-Type")),
        ("Authorization", "Bearer user-00"),
        ("Content-Digest", "sha-256=:user-00:"),
        ("Signature-Input", 'sig1=();nonce="user-00"'),
        ("Signature", "sig1=:user-00:"),
        ("Content-Length", "0 "),
    ],
)
async def test_another_header_or_another_value_of_one_is_refused(gated: Opened, name: str, value: str) -> None:
    message = await gated().refused("GET", MODEL, headers={name: value})
    assert "user-00" not in message and "X-Note" not in message


async def test_what_leaves_is_signed_by_the_client_and_says_nothing_more(gated: Opened) -> None:
    gate = gated()
    await gate.send("GET", "/v1/runs/current?wait=20&after=3")
    await gate.send("PUT", UPDATE, content=body())
    for request in gate.wire.reached:
        claim, sha256 = read_claim(request.headers.multi_items()), hashlib.sha256(request.content).digest()
        assert claim.name == "east" and claim.digest == body_digest(sha256) and abs(claim.created - time.time()) < 60
        assert is_valid_claim(claim, RequestTarget.of(request.method, request.url.raw_path), KEY.public_key())
        others = {"accept", "accept-encoding", "connection", "host", "user-agent", "content-type", "content-length"}
        assert set(request.headers) - set(HEADERS) <= others


async def test_the_same_call_again_is_another_signed_request(gated: Opened) -> None:
    gate = gated()
    request = gate.http.build_request("GET", "/v1/runs/run-1/model")
    for _ in range(2):
        await gate.http.send(request)
    first, second = (read_claim(one.headers.multi_items()) for one in gate.wire.reached)
    assert first.nonce != second.nonce and set(HEADERS).isdisjoint(request.headers)


async def test_a_nonce_is_the_beginning_of_the_hash_of_the_request_s_entry(gated: Opened) -> None:
    gate = gated()
    for number in range(1, 3):
        await gate.http.get(f"/v1/runs/run-{number}/model")
    nonces = [read_claim(one.headers.multi_items()).nonce for one in gate.wire.reached]
    assert nonces == [entry["hash"][:32] for entry in gate.ledger.entries() if entry["kind"] == "intent"]
    assert all(gate.ledger.knows_nonce(nonce) for nonce in nonces) and not gate.ledger.knows_nonce("0" * 32)


async def test_the_ledger_has_no_word_of_the_signature(gated: Opened) -> None:
    gate = gated()
    answer = await gate.send("PUT", UPDATE, content=body())
    text = json.dumps(list(gate.ledger.entries()))
    [request] = gate.wire.reached
    assert [name for name in HEADERS if request.headers[name] in text] == []
    assert set(HEADERS).isdisjoint(answer.request.headers)


async def test_a_header_said_twice_is_refused(gated: Opened) -> None:
    gate = gated()
    request = gate.http.build_request("GET", "/v1/runs/run-1/model")
    request.headers = httpx.Headers([*request.headers.multi_items(), ("Accept", "*/*")])
    with pytest.raises(PrivacyError):
        await gate.http.send(request)
    assert gate.wire.reached == []


async def test_a_transport_extension_that_replaces_the_path_is_refused(gated: Opened) -> None:
    await gated().refused("GET", "/v1/runs/run-1/model", extensions={"target": b"/users/7"})


@pytest.mark.parametrize("path", ["/v1/runs/current?wait=1", "/v1/runs/run-1/model", f"{OWN}/personalized?wait=1"])
async def test_a_body_on_a_question_is_refused(gated: Opened, path: str) -> None:
    await gated().refused("GET", path, content=b"user-00")


async def test_a_body_of_unknown_length_is_refused(gated: Opened) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield body()

    await gated().refused("PUT", UPDATE, content=parts())


@pytest.mark.parametrize(
    "content",
    [
        join_message(client="west"),
        join_message(declaration=DECLARATION.model_copy(update={"strategy": "fedavg"})),
        join_message(declaration=DECLARATION.model_copy(update={"scalars": ("margin", "rho", "recall")})),
        join_message(declaration=DECLARATION.model_copy(update={"tensors": DECLARATION.tensors[:1]})),
        join_message(COUNTS),
        join_message().replace(b"{", b'{"note":"user-00",', 1),
        join_message().replace(b"{", b'{"client":"user-00",', 1),
        join_message() + b" " * 7,
        join_message().replace(b'"lpsfed"', b'"\\u006cpsfed"'),
        b"",
        b"[]",
        b"\xff",
    ],
)
async def test_a_join_with_anything_but_this_client_s_own_words_is_refused(gated: Opened, content: bytes) -> None:
    message = await gated().refused("POST", "/v1/clients", content=content)
    assert "user-00" not in message


async def test_counts_leave_only_where_the_policy_shares_them(gated: Opened) -> None:
    gate = gated(counts=True)
    await gate.send("POST", "/v1/clients", content=join_message(COUNTS))
    intent = next(gate.ledger.entries())
    assert intent["join"] == {"client": "east", "strategy": "lpsfed", "counts": COUNTS.model_dump()}
    assert gate.wire.reached[0].content == join_message(COUNTS)


def header_rewritten(change: Callable[[bytes], bytes]) -> bytes:
    """A declared update whose safetensors header is written in another way."""
    whole = body()
    length = int.from_bytes(whole[:8], "little")
    header = change(whole[8 : 8 + length])
    return len(header).to_bytes(8, "little") + header + whole[8 + length :]


def two_metadata(header: bytes) -> bytes:
    return header.replace(b'{"__metadata__":', b'{"__metadata__":{"scalars":"user-00"},"__metadata__":', 1)


def turned(dtype: Any, *shape: int) -> Any:
    """A declared update with another tensor in one place."""
    return body(pooling__w=np.ones(shape or (2, 3), dtype=dtype))


OTHER_UPDATES = {
    "one tensor more": body(embedding=np.ones((2, 3), dtype=np.float32)),
    "one tensor less": body(predictive__b=None),
    "another shape": turned(np.float32, 3, 2),
    "a longer tensor": turned(np.float32, 2, 4),
    **{np.dtype(dtype).name: turned(dtype) for dtype in (np.float64, np.float16, np.int32, np.uint32)},
    "NaN": body(predictive__b=np.array([np.nan], dtype=np.float32)),
    "infinity": body(predictive__b=np.array([np.inf], dtype=np.float32)),
    "one scalar more": body({"margin": 0.1, "rho": 0.2, "recall": 0.3}),
    "a scalar that is no number": body({"margin": float("nan")}),
    "a metadata field more": save(arrays(), metadata={"scalars": "{}", "note": "user-00"}),
    "another metadata field": save(arrays(), metadata={"note": "user-00"}),
    "a digit more": save(arrays(), metadata={"scalars": '{"margin": 0.250, "rho": 0.5}'}),
    "a scalar said twice": save(arrays(), metadata={"scalars": '{"rho": 0.7, "rho": 0.5}'}),
    "bytes after the end": body() + b"user-00",
    "one byte after the end": body() + b"\0",
    "one byte less": body()[:-1],
    "spaces in the header": header_rewritten(lambda header: header + b" " * 64),
    "metadata said twice": header_rewritten(two_metadata),
    "nothing": b"",
    "something else": b"user-00",
}


@pytest.mark.parametrize("content", OTHER_UPDATES.values(), ids=OTHER_UPDATES)
async def test_an_update_that_is_not_exactly_as_declared_is_refused(gated: Opened, content: bytes) -> None:
    message = await gated().refused("PUT", UPDATE, content=content)
    assert "user-00" not in message and "embedding" not in message


async def test_declared_integers_pass_and_are_on_record_with_their_type(gated: Opened) -> None:
    spec = TensorSpec(name="pooling.w", dtype="U32", shape=(2, 3))
    summed = DECLARATION.model_copy(update={"tensors": (spec, DECLARATION.tensors[1])})
    gate = gated(declaration=summed)
    await gate.refused("PUT", UPDATE, content=body())
    await gate.send("PUT", UPDATE, content=turned(np.uint32))
    sent = next(gate.ledger.entries())["tensors"]
    assert [(one["name"], one["dtype"], one["bytes"]) for one in sent] == [
        ("pooling.w", "U32", 24),
        ("predictive.b", "F32", 4),
    ]


async def test_an_update_over_the_silo_s_limit_or_of_another_type_is_refused(gated: Opened) -> None:
    gate = gated(most=len(body()) - 1)
    await gate.refused("PUT", UPDATE, content=body())
    await gate.refused("PUT", UPDATE, content=body(), headers={"Content-Type": "application/json"})
    assert (await gated(most=len(body())).send("PUT", UPDATE, content=body())).status_code == 200


async def test_what_the_client_encodes_is_what_the_gate_lets_pass(gated: Opened) -> None:
    gate = gated()
    exact: dict[str, Float32] = {name: np.float32(-0.1) * value for name, value in arrays().items()}
    for scalars in ({}, {"margin": -0.0}, {"margin": 1e-300, "rho": 0.1 + 0.2}):
        assert (await gate.send("PUT", UPDATE, content=encode_body(Parameters(exact, scalars)))).status_code == 200
    assert len(gate.wire.reached) == 3


async def test_a_redirect_is_not_followed(gated: Opened) -> None:
    gate = gated(Wire(307, {"Location": "http://elsewhere/v1/runs/run-1/model"}))
    answer = await gate.send("GET", "/v1/runs/run-1/model")
    assert answer.status_code == 307 and len(gate.wire.reached) == 1
    with pytest.raises(PrivacyError):  # and even a client that would follow it is stopped
        await gate.http.get("/v1/runs/run-1/model", follow_redirects=True)
    assert [request.url.host for request in gate.wire.reached] == ["aggregator", "aggregator"]


def connected(wire: Wire, folder: Path) -> AbstractAsyncContextManager[Aggregator]:
    boundary = Boundary("east", httpx.URL(HOME), DECLARATION, counts=False, max_upload_bytes=1000)
    limits, inner = CallLimits(), httpx.MockTransport(wire)
    return connect(boundary, Ledger(folder / "ledger.jsonl"), KEY, limits=limits, inner=inner)


async def test_the_client_s_own_connection_heeds_no_redirect_and_no_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        wire = Wire(302, {"Location": "http://elsewhere/"})
        async with connected(wire, tmp_path) as aggregator:
            with pytest.raises(ProtocolError):
                await aggregator.fetch_model("run-1")
        assert [request.url.host for request in wire.reached] == ["aggregator"]
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has knocked
            proxy.accept()


async def test_a_receipt_is_kept_in_the_outcome_and_another_answer_in_its_place_is_not(gated: Opened) -> None:
    receipt = ReceiptOut(
        run="run-1", round=1, client="east", digest="d" * 64, size=9, received_at="2026-01-01T00:00:00Z"
    )
    gate = gated(Wire(201, content=receipt.model_dump_json().encode()))
    await gate.send("PUT", UPDATE, content=body())
    assert list(gate.ledger.entries())[-1]["receipt"] == receipt.model_dump()
    strange = gated(Wire(content=b"<html>welcome</html>"))
    assert (await strange.send("PUT", UPDATE, content=body())).status_code == 200
    assert list(strange.ledger.entries())[-1]["receipt"] is None


async def test_a_failed_call_and_an_answer_without_end_are_outcomes_too(
    gated: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gated(Wire(content=b"x" * 2000))
    monkeypatch.setattr("client_service.boundary.gate.longest_answer", lambda *_: 1999)
    with pytest.raises(TooLargeError):
        await gate.send("GET", "/v1/runs/run-1/model")
    gate.wire.error = httpx.ConnectError("no way")
    with pytest.raises(httpx.ConnectError):
        await gate.send("GET", "/v1/runs/run-1/model")
    kinds = [(entry["kind"], entry.get("error")) for entry in gate.ledger.entries()]
    assert kinds == [("intent", None), ("outcome", "TooLargeError"), ("intent", None), ("outcome", "ConnectError")]


async def test_an_answer_that_would_have_to_be_unpacked_is_refused(gated: Opened) -> None:
    gate = gated(Wire(headers={"Content-Encoding": "gzip"}, content=gzip.compress(b"0" * 10_000)))
    with pytest.raises(ProtocolError, match="content encoding"):
        await gate.send("GET", "/v1/runs/run-1/model")


@pytest.mark.parametrize("what", ["one tensor more", "one tensor less", "NaN", "a longer tensor", "something else"])
async def test_parameters_that_are_not_the_declared_ones_are_not_taken_in_either(tmp_path: Path, what: str) -> None:
    async with connected(Wire(content=OTHER_UPDATES[what]), tmp_path) as aggregator:
        with pytest.raises(ProtocolError):
            await aggregator.fetch_model("run-1")
        with pytest.raises(ProtocolError):
            await aggregator.fetch_personalised("run-1", 1, wait=0.5)
