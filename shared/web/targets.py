"""A request's target -> refused where its path or query is no UTF-8, which no id could be."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from shared.web import problems


@dataclass(frozen=True)
class DecodedTargets:
    """Answers 400 for a percent-encoded byte sequence that is no UTF-8: it would reach a route as other characters."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_utf8(scope):
            refusal = problems.problem(
                400, code="bad-request", detail="path and query: expected UTF-8, got other bytes"
            )
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _is_utf8(scope: Scope) -> bool:
    target: bytes = scope.get("raw_path", b"") + b"?" + scope.get("query_string", b"")
    if b"%" not in target:  # the server lets nothing but ASCII through
        return True
    try:
        unquote_to_bytes(target).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
