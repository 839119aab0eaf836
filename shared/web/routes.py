"""Routes of both services: matching by segments, and the order of checks before an answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.routing import Match
from starlette.types import Scope

from shared.web.content_types import require_content_type
from shared.web.undeclared import require_declared

SLASH = "\ud800"  # in the place of one within a segment: no UTF-8 decodes to it


class BySegments(APIRoute):
    """A route whose parameters are whole segments of a path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        raw: bytes = scope.get("raw_path") or b""
        if b"%2" not in raw:  # most ids hold no such character, and this is asked of every route
            return super().matches(scope)
        path = "/".join(map(_decode, raw.split(b"?")[0].split(b"/")))
        match, found = super().matches({**scope, "path": path})
        if "path_params" in found:
            found["path_params"] = {name: _restore(value) for name, value in found["path_params"].items()}
        return match, found


def _decode(segment: bytes) -> str:
    return unquote_to_bytes(segment).decode("utf-8", "replace").replace("/", SLASH)


def _restore(value: Any) -> Any:
    return value.replace(SLASH, "/") if isinstance(value, str) else value


def build(app: FastAPI) -> None:
    """Build what each route reads and answers now, as the last step of making an app.

    FastAPI puts this off until a request asks for a router, and filters warnings for the whole process while it
    builds: two threads that do so at once undo each other's filters, and a request pays for it.
    """
    for _ in iter_route_contexts(app.routes):
        pass


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class DeclaredRoute(BySegments):
    """A route that refuses what it has not declared: a query, a body, or a body of another kind."""

    def get_route_handler(self) -> Handler:
        answer = super().get_route_handler()

        async def handle(request: Request) -> Response:
            await self.admit(request)
            await require_declared(request)
            await require_content_type(request)
            if self.body_field is not None:
                await self.read_body(request)
            return await answer(request)

        return handle

    async def admit(self, request: Request) -> None:
        """Whoever may call, which here is anybody; an error of the tree for others, of whom nothing more is read."""

    async def read_body(self, request: Request) -> None:
        """Read a body of JSON or of a form as far as the route lets it be long; else the framework reads it."""
