"""A request that claims to be a client's -> refused by its head, or known as that client's and its body checked.

It stands before all that reads a body: of what nobody known has signed, nothing is read.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_service.coordinator import Coordinator
from aggregator_service.http.heads import Heads
from aggregator_service.http.undeclared import announces_body
from shared.errors import AuthenticationError, DigestError, ProtocolError, UnavailableError
from shared.protocol.signing.messages import NO_BODY, RequestTarget, body_digest, is_signed
from shared.web import problems
from shared.web.crowd import vouch

MOST_AT_ONCE = 32  # requests of one client under way; each may wait for half a minute, and it needs one or two
TOO_MANY = f"expected at most {MOST_AT_ONCE} requests of one client at once, got more"
ANOTHER_BODY = "content-digest: expected the sha256 of the body that came, got another"


@dataclass(frozen=True)
class Signed:
    """Leaves in the request's state the client's name, as `client`, and the signature's `nonce`. A request that claims
    nothing passes without."""

    app: ASGIApp
    coordinator: Coordinator
    heads: Heads
    under_way: Counter[str] = field(default_factory=Counter)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_signed((headers := Headers(scope=scope)).keys()):
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        try:
            claim = self.coordinator.identify(_target(scope), headers.items())
            if not announces_body(headers) and claim.digest != NO_BODY:
                raise DigestError(ANOTHER_BODY)
            state["client"], state["nonce"] = claim.name, claim.nonce
            self.heads.require(scope, claim.name)
        except (AuthenticationError, ProtocolError, UnavailableError) as error:
            self.coordinator.metrics.strangers.inc(isinstance(error, AuthenticationError))
            state["code"] = error.code
            await problems.answer(error)(scope, receive, send)
            return
        vouch(scope)
        if self.under_way[claim.name] >= MOST_AT_ONCE:
            await problems.answer(UnavailableError(TOO_MANY))(scope, receive, send)
            return
        with self._counted(claim.name):
            await self.app(scope, _Digested(receive, claim.digest), send)

    @contextmanager
    def _counted(self, client: str) -> Iterator[None]:
        self.under_way[client] += 1
        try:
            yield
        finally:
            self.under_way[client] -= 1
            if not self.under_way[client]:
                del self.under_way[client]


class _Digested:
    """A body as it comes. Where it ends as another one than was signed, its end is an error instead."""

    def __init__(self, receive: Receive, expected: str) -> None:
        self._receive, self._expected = receive, expected
        self._hash = hashlib.sha256()

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._hash.update(message.get("body", b""))
            if not message.get("more_body", False) and body_digest(self._hash.digest()) != self._expected:
                raise DigestError(ANOTHER_BODY)
        return message


def _target(scope: Scope) -> RequestTarget:
    return RequestTarget(scope["method"], scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1"))
