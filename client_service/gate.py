"""The one way out: an HTTP transport that lets through exactly the declared calls and writes each into the ledger.

Whatever is built above it, an undeclared method, path, query, header or body raises PrivacyError and nothing is sent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import ValidationError

from client_service.ledger import Ledger
from shared.errors import PrivacyError, ProtocolError, TooLargeError
from shared.schemas import Declaration, JoinIn
from shared.wire import MEDIA_TYPE, check, decode

USER_AGENT = "lpsfed-client"
HEADERS = {"host", "accept", "accept-encoding", "connection", "user-agent", "authorization", "content-type"}
HEADERS |= {"content-length", "if-none-match"}
NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
MAX_RESPONSE_BYTES = 256 << 20


@dataclass(frozen=True)
class Call:
    """One kind of declared call: its name, method, path and the query fields that it may have, all numbers."""

    name: str
    method: str
    path: re.Pattern[str]
    query: frozenset[str] = frozenset()


def declared_calls(client: str) -> tuple[Call, ...]:
    """All that this client ever asks of the aggregator."""
    run, number = r"/v1/runs/(?P<run>run-[0-9]{1,9})", r"/rounds/(?P<round>[0-9]{1,9})"
    own = f"{run}{number}/clients/{re.escape(client)}"
    return (
        Call("join", "POST", re.compile(r"/v1/clients")),
        Call("current", "GET", re.compile(r"/v1/runs/current"), frozenset({"after", "wait"})),
        Call("model", "GET", re.compile(f"{run}/model")),
        Call("anchor", "GET", re.compile(f"{run}{number}/anchor")),
        Call("update", "PUT", re.compile(f"{own}/update")),
        Call("personalized", "GET", re.compile(f"{own}/personalized"), frozenset({"wait"})),
    )


@dataclass(frozen=True)
class Boundary:
    """Who sends, where to, and what may be sent."""

    client: str
    aggregator: httpx.URL
    declaration: Declaration
    counts: bool
    max_upload_bytes: int


@dataclass
class Traffic:
    """Bytes of all bodies so far."""

    up: int = 0
    down: int = 0


class GateTransport(httpx.AsyncBaseTransport):
    """Checks a request against the boundary, records it, sends it, records the outcome."""

    def __init__(self, inner: httpx.AsyncBaseTransport, boundary: Boundary, ledger: Ledger) -> None:
        self._inner, self._boundary, self._ledger = inner, boundary, ledger
        self.traffic = Traffic()
        self._calls = declared_calls(boundary.client)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call, place = self._declared(request)
        body = await request.aread()
        fields = self._fields(call, request, body)
        what = {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest(), **fields}
        intent = self._ledger.append("intent", call=call.name, to=str(self._boundary.aggregator), **place, **what)
        self.traffic.up += len(body)
        try:
            response = await self._answer(request)
        except (httpx.HTTPError, TooLargeError) as error:
            self._ledger.append("outcome", of=intent, error=type(error).__name__)
            raise
        self.traffic.down += len(response.content)
        self._ledger.append("outcome", of=intent, **self._outcome(call, response))
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _declared(self, request: httpx.Request) -> tuple[Call, dict[str, str]]:
        """The declared call that this request is, and the run and round in its path."""
        self._check_destination(request)
        self._check_headers(request.headers)
        for call in self._calls:
            match = call.path.fullmatch(request.url.raw_path.decode("ascii").partition("?")[0])
            if match and request.method == call.method:
                self._check_query(call, request.url.params)
                return call, match.groupdict()
        raise PrivacyError(f"expected one of the calls {[call.name for call in self._calls]}, got another")

    def _check_destination(self, request: httpx.Request) -> None:
        url, home = request.url, self._boundary.aggregator
        if (url.scheme, url.host, url.port) != (home.scheme, home.host, home.port) or url.userinfo or url.fragment:
            raise PrivacyError("expected the aggregator as destination, got another")

    def _check_headers(self, headers: httpx.Headers) -> None:
        if extra := len({name.lower() for name in headers} - HEADERS):
            raise PrivacyError(f"expected the headers {sorted(HEADERS)}, {extra} more would leave")
        if headers.get("user-agent") != USER_AGENT:
            raise PrivacyError(f"expected the user agent {USER_AGENT!r}, got another")

    def _check_query(self, call: Call, query: httpx.QueryParams) -> None:
        if not set(query) <= call.query or not all(NUMBER.fullmatch(value) for value in query.values()):
            raise PrivacyError(f"expected numbers for {sorted(call.query)} in the query of {call.name!r}, got others")

    def _fields(self, call: Call, request: httpx.Request, body: bytes) -> dict[str, Any]:
        """What the body holds, field by field, read from the very bytes that are about to leave."""
        if call.name == "join":
            return {"join": self._joined(body)}
        if call.name == "update":
            return self._update(request.headers, body)
        if body:
            raise PrivacyError(f"expected no body for {call.name!r}, got {len(body)} bytes")
        return {}

    def _joined(self, body: bytes) -> dict[str, Any]:
        try:
            message = JoinIn.model_validate_json(body)
        except ValidationError:
            raise PrivacyError("expected a join message, got another body") from None
        if (message.client, message.declaration) != (self._boundary.client, self._boundary.declaration):
            raise PrivacyError("expected this client's own name and declaration in the join message, got others")
        if message.counts is not None and not self._boundary.counts:
            raise PrivacyError("expected no counts in the join message: the silo's policy does not share them")
        counts = None if message.counts is None else message.counts.model_dump()
        return {"client": message.client, "strategy": message.declaration.strategy, "counts": counts}

    def _update(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        if len(body) > self._boundary.max_upload_bytes or headers.get("content-type") != MEDIA_TYPE:
            raise PrivacyError(f"expected at most {self._boundary.max_upload_bytes} bytes of {MEDIA_TYPE}")
        try:
            specification, content = decode(body)
            check(self._boundary.declaration, specification, content)
        except ProtocolError as error:
            raise PrivacyError(f"the update is not as declared: {error}") from None
        return {
            "tensors": [_tensor(spec.name, spec.shape, content.arrays[spec.name].tobytes()) for spec in specification],
            "scalars": dict(content.scalars),
        }

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        """The whole answer, read here so that its size is on record and bounded."""
        response = await self._inner.handle_async_request(request)
        parts, size = [], 0
        try:
            async for part in response.aiter_raw():
                parts.append(part)
                size += len(part)
                if size > MAX_RESPONSE_BYTES:
                    raise TooLargeError(f"expected an answer of at most {MAX_RESPONSE_BYTES} bytes, got more")
        finally:
            await response.aclose()
        return httpx.Response(response.status_code, headers=response.headers, content=b"".join(parts), request=request)

    def _outcome(self, call: Call, response: httpx.Response) -> dict[str, Any]:
        digest = hashlib.sha256(response.content).hexdigest()
        outcome: dict[str, Any] = {"status": response.status_code, "bytes": len(response.content), "sha256": digest}
        if call.name == "update" and response.is_success:
            outcome["receipt"] = response.json()
        return outcome


def _tensor(name: str, shape: tuple[int, ...], content: bytes) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": "F32",
        "shape": list(shape),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
