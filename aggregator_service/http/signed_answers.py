"""Each answer to a signed request -> the same answer with the aggregator's own signature, so that clients can pin it.

What an answer says is in its status and its body: nobody on the way can change these, or give the answer to another
request. An answer that announces its digest (a large one, from a file) passes piece by piece; others are short.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_service.coordinator import Coordinator
from shared.protocol.signing.answers import sign_answer
from shared.protocol.signing.keys import PrivateKey
from shared.protocol.signing.messages import DIGEST, SIGNATURE, WRITTEN, read_digest


@dataclass(frozen=True)
class SignedAnswers:
    """Signs what it wraps. A request without a signature has nothing that an answer could be bound to."""

    app: ASGIApp
    coordinator: Coordinator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Headers(scope=scope).getlist(SIGNATURE) if scope["type"] == "http" else []
        key = self.coordinator.signing_key
        if key is None or len(asked) != 1 or not WRITTEN[SIGNATURE].fullmatch(asked[0]):
            await self.app(scope, receive, send)
            return
        await self.app(scope, receive, _HeldAnswer(send, key, asked[0]).send)


class _HeldAnswer:
    """One answer: its start is held back until its digest is known."""

    def __init__(self, send: Send, key: PrivateKey, request_signature: str) -> None:
        self._send, self._key, self._request_signature = send, key, request_signature
        self._start: Message | None = None
        self._pieces: list[bytes] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            announced = Headers(raw=message["headers"]).get(DIGEST)
            if announced is None:
                self._start = message
            else:
                await self._send_start(message, read_digest(announced))
        elif self._start is None:
            await self._send(message)
        else:
            await self._collect(message)

    async def _collect(self, message: Message) -> None:
        """Pass everything on at once when the last piece has come."""
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
