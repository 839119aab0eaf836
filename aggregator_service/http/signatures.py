"""Verification of signed requests, and signatures of the answers to them.

Requests are verified before anything reads a body: no body is read of a request that no registered client has signed.
Each answer to a signed request carries the aggregator's signature over its status, its body and that request, so that
clients can pin the key. An answer that announces its digest (a large one, from a file) passes piece by piece; others
are collected first.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_service.coordinator import Coordinator
from aggregator_service.http.request_heads import RequestHeads
from shared.errors import AuthenticationError, DigestError, ProtocolError, UnavailableError
from shared.protocol.signing.events import MEDIA_TYPE as EVENTS
from shared.protocol.signing.keys import PrivateKey
from shared.protocol.signing.requests import (
    DIGEST,
    NO_BODY,
    PATTERNS,
    SIGNATURE,
    RequestTarget,
    body_digest,
    is_signed,
    read_digest,
)
from shared.protocol.signing.responses import sign_answer
from shared.web import problems
from shared.web.connection_limits import mark_trusted
from shared.web.routes import announces_body

MOST_AT_ONCE = 32  # simultaneous requests of one client; each may wait for half a minute, and one or two are enough
TOO_MANY = f"expected at most {MOST_AT_ONCE} requests of one client at once, got more"
RECEIVED = (
    "received"  # key of a request's state: sha256 of its body so far, which `ArrivalRecorder` counts once for all
)
DIGEST_MISMATCH = "content-digest: expected the sha256 of the received body, got another"


@dataclass(frozen=True)
class SignatureMiddleware:
    """Middleware that verifies signatures and puts `client` and `claim` into the request's state.

    A request without a signature passes without them.
    """

    app: ASGIApp
    coordinator: Coordinator
    heads: RequestHeads
    active: Counter[str] = field(default_factory=Counter)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope).items() if scope["type"] == "http" else []
        if not is_signed(name for name, _ in headers):
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        try:
            signatures = self.coordinator.federation.signatures
            claim = await signatures.accept_request(_target(scope), headers)
            if not announces_body(Headers(scope=scope)) and claim.digest != NO_BODY:
                raise DigestError(DIGEST_MISMATCH)
            state["client"], state["claim"] = claim.name, claim
            self.heads.require_declared_head(scope, headers, claim.name)
        except (AuthenticationError, ProtocolError, UnavailableError) as error:
            self.coordinator.metrics.strangers.inc(isinstance(error, AuthenticationError))
            state["code"] = error.code
            await problems.error_response(error)(scope, receive, send)
            return
        mark_trusted(scope)
        if self.active[claim.name] >= MOST_AT_ONCE:
            await problems.error_response(UnavailableError(TOO_MANY))(scope, receive, send)
            return
        with self._count_active(claim.name):
            await self.app(scope, _DigestCheck(receive, claim.digest, state[RECEIVED]), send)

    @contextmanager
    def _count_active(self, client: str) -> Iterator[None]:
        self.active[client] += 1
        self.coordinator.last_calls.record_call(client)
        try:
            yield
        finally:
            self.coordinator.last_calls.record_call(client)
            self.active[client] -= 1
            if not self.active[client]:
                del self.active[client]


class _DigestCheck:
    """Request body that ends with an error where its digest was not signed.

    received: hash of what has come so far.
    """

    def __init__(self, receive: Receive, expected: str, received: hashlib._Hash) -> None:
        self._receive, self._expected, self._received = receive, expected, received

    async def __call__(self) -> Message:
        message = await self._receive()
        whole = message["type"] == "http.request" and not message.get("more_body", False)
        if whole and body_digest(self._received.digest()) != self._expected:
            raise DigestError(DIGEST_MISMATCH)
        return message


def _target(scope: Scope) -> RequestTarget:
    return RequestTarget(scope["method"], scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1"))


@dataclass(frozen=True)
class SignedAnswers:
    """Middleware that signs answers to signed requests.

    An answer to an unsigned request cannot be bound to it.
    """

    app: ASGIApp
    coordinator: Coordinator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Headers(scope=scope).getlist(SIGNATURE) if scope["type"] == "http" else []
        key = self.coordinator.signing_key
        if key is None or len(asked) != 1 or not PATTERNS[SIGNATURE].fullmatch(asked[0]):
            await self.app(scope, receive, send)
            return
        await self.app(scope, receive, _SignedAnswer(send, key, asked[0]).send)


class _SignedAnswer:
    """One answer, whose start is held back until its digest is known."""

    def __init__(self, send: Send, key: PrivateKey, request_signature: str) -> None:
        self._send, self._key, self._request_signature = send, key, request_signature
        self._start: Message | None = None
        self._pieces: list[bytes] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            announced = headers.get(DIGEST)
            if headers.get("content-type", "").startswith(EVENTS):  # each event is signed, the first for this request
                await self._send(message)
            elif announced is None:
                self._start = message
            else:
                await self._send_start(message, read_digest(announced))
        elif self._start is None:
            await self._send(message)
        else:
            await self._collect(message)

    async def _collect(self, message: Message) -> None:
        """Collects the pieces and sends everything when the last one has come."""
        self._pieces.append(message.get("body", b""))
        if self._start is None or message.get("more_body", False):
            return
        content, start, self._start = b"".join(self._pieces), self._start, None
        await self._send_start(start, hashlib.sha256(content).digest())
        await self._send({"type": "http.response.body", "body": content})

    async def _send_start(self, start: Message, sha256: bytes) -> None:
        created = int(time.time())
        signed = sign_answer(start["status"], sha256, self._request_signature, self._key, created=created)
        MutableHeaders(scope=start).update(signed)
        await self._send(start)
