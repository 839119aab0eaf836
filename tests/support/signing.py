"""A client's signature on what a test sends for it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator
from dataclasses import dataclass

import httpx

from shared.protocol.request_heads import CONSTANT, replace_library_headers
from shared.protocol.secure.keys import Context
from shared.protocol.secure.messages import DeliveredShare
from shared.protocol.signing.keys import PrivateKey
from shared.protocol.signing.requests import NONCE_BYTES, RequestTarget, Signatory, sign_request


@dataclass(frozen=True)
class Signing(httpx.Auth):
    """Signs each request as it leaves, in the head of a genuine client.

    `late`: by a clock that is so many seconds behind; `nonce`: this one; `body`: of this one instead of the true one.
    """

    name: str
    key: PrivateKey
    late: float = 0.0
    nonce: str | None = None
    body: bytes | None = None

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        signed = self._sign(request.method, request.url.raw_path, content_of(request))
        unsigned = [(name, value) for name, value in request.headers.multi_items() if name not in signed]
        request.headers = httpx.Headers([*replace_library_headers(unsigned), *signed.items()])
        yield request

    def headers(self, method: str, raw: bytes, body: bytes = b"") -> dict[str, str]:
        """The head of a call, for whoever writes it by hand: all but the host and the body's."""
        return CONSTANT | self._sign(method, raw, body)

    def _sign(self, method: str, raw: bytes, body: bytes) -> dict[str, str]:
        who, created = Signatory(self.name, self.key), int(time.time() - self.late)
        nonce = self.nonce or secrets.token_hex(NONCE_BYTES)
        body = body if self.body is None else self.body
        return sign_request(RequestTarget.of(method, raw), body, who, created=created, nonce=nonce)


def content_of(request: httpx.Request) -> bytes:
    """The body; empty where it is not known before it is sent."""
    try:
        return request.content
    except httpx.RequestNotRead:
        return b""


def sign_alone(context: Context, dealer: str, holder: str, share: DeliveredShare, key: PrivateKey) -> DeliveredShare:
    """Signs one share as a dealer does that has no other: its tree is a leaf."""
    root = share.hash_for(holder, dealer, share.challenge, context)
    signature = key.sign(context.label("signed shares", dealer, root.hex())).hex()
    return share.model_copy(update={"path": "", "signature": signature})
