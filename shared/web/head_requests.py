"""HEAD -> what GET answers, without its body (RFC 9110, 9.3.2)."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True)
class HeadAsGet:
    """Belongs inside of whatever holds a request to its signature: that is of the method that came."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        scope["method"] = "GET"  # in this very scope: what is outside finds the route there
        try:
            await self.app(scope, receive, send_head)
        finally:
            scope["method"] = "HEAD"
