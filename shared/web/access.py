"""Each request -> one log line and one latency sample, by route template: never a path, a query, a body or a secret."""

from __future__ import annotations

import time
from dataclasses import dataclass

import structlog
from prometheus_client import Histogram
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LONGEST_MESSAGE = 4 << 20  # bytes of a JSON body; a declaration of 10,000 tensors fits
UNMATCHED = "(unmatched)"


@dataclass(frozen=True)
class Observed:
    """Measures and logs what it wraps. `requests` has the labels method, route, status."""

    app: ASGIApp
    requests: Histogram
    logger: structlog.stdlib.BoundLogger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, began = 500, time.perf_counter()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            self._record(scope, status, time.perf_counter() - began)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        method, route = scope["method"], getattr(scope.get("route"), "path", UNMATCHED)
        # The method is the caller's text: of a request that matched nothing it could be anything.
        known = method if route != UNMATCHED else "any"
        self.requests.labels(known, route, status).observe(seconds)
        client = scope.get("state", {}).get("client")
        self.logger.info("request", method=known, route=route, status=status, client=client, seconds=round(seconds, 6))


@dataclass(frozen=True)
class Limited:
    """Ends the reading of a JSON message that is too long. Updates have their own limit, where they are spooled."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "PUT":
            await self.app(scope, receive, send)
            return
        came = 0

        async def count() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > LONGEST_MESSAGE:
                raise HTTPException(413, f"expected at most {LONGEST_MESSAGE} bytes, got more")
            return message

        await self.app(scope, count, send)
