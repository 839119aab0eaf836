"""Routes of both services: matching by segments, HEAD, targets, and the order of checks before an answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, get_origin
from urllib.parse import unquote_to_bytes

from fastapi import FastAPI, Request, Response, params
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.errors import Fault, MediaTypeError, ProtocolError
from shared.web.problems import name_undeclared

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


async def require_content_type(request: Request) -> None:
    """MediaTypeError where a route that reads a body as JSON, or as a form, gets another one, or one of no kind."""
    route: APIRoute = request.scope["route"]
    if route.body_field is None:
        return
    expected = FORM if isinstance(route.body_field.field_info, params.Form) else JSON
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != expected:
        raise MediaTypeError(f"Content-Type: expected {expected}, got {'another one' if kind else 'none'}")


async def require_declared(request: Request) -> None:
    """ProtocolError for a query parameter that the route does not know, for one that comes twice and is no list, and
    for a body where none is expected."""
    route: APIRoute = request.scope["route"]
    known = declared_parameters(route.dependant)
    unknown, repeated = _list_undeclared(request, known), _list_repeated(request, known)
    if faults := (*unknown, *repeated):
        more = f"{len(faults)} more: {', '.join(dict.fromkeys(fault.at.partition('.')[2] for fault in faults))}"
        told = f"expected at most the query parameters {_describe(known)}, got {more}"
        raise ProtocolError(told, faults=tuple(dict.fromkeys(faults)))
    if announces_body(request.headers) and not _expects_body(route):
        expected = "expected no body, got one"
        raise ProtocolError(expected, faults=(Fault("unknown", "body", expected),))


def _list_undeclared(request: Request, known: Mapping[str, bool]) -> tuple[Fault, ...]:
    """Each unknown parameter, empty ones included: a reader of queries passes over them, but they could be counted."""
    query: bytes = request.scope["query_string"]
    empty = sum(not part.partition(b"=")[0] for part in query.split(b"&")) if query else 0
    names = [name for name, _ in request.query_params.multi_items() if name and name not in known] + [""] * empty
    return tuple(_describe_unknown(name_undeclared(name), known) for name in names)


def _describe_unknown(name: str, known: Mapping[str, bool]) -> Fault:
    near = "".join(f"; likely {one}" for one in get_close_matches(name, known, n=1))
    return Fault("unknown", f"query.{name}", f"expected a declared parameter, got another{near}")


def _list_repeated(request: Request, known: Mapping[str, bool]) -> tuple[Fault, ...]:
    """Each parameter that comes once more than it may."""
    asked = request.query_params
    more = {name: len(asked.getlist(name)) - 1 for name, is_list in known.items() if not is_list and name in asked}
    fault = "expected it once, got it several times"
    return tuple(Fault("repeated", f"query.{name}", fault) for name, count in more.items() for _ in range(count))


def _expects_body(route: APIRoute) -> bool:
    """Does the route declare one, to be read by the framework or by itself?"""
    return route.body_field is not None or "requestBody" in (route.openapi_extra or {})


def _describe(known: Mapping[str, bool]) -> str:
    lists = sorted(name for name, is_list in known.items() if is_list)
    return f"{sorted(known)}, once each" + (f" but for {lists}" if lists else "")


def declared_parameters(dependant: Dependant) -> dict[str, bool]:
    """The query parameters of a route and of all that it depends on by name: may it come several times?"""
    own = {field.alias: get_origin(field.field_info.annotation) in (list, tuple) for field in dependant.query_params}
    for one in dependant.dependencies:
        own |= declared_parameters(one)
    return own


def announces_body(headers: Headers) -> bool:
    """Is there to be one, of more than no bytes?"""
    return "transfer-encoding" in headers or headers.get("content-length", "").strip("0") != ""


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


SLASH = "\ud800"  # in the place of one within a segment: no UTF-8 decodes to it


class SegmentRoute(APIRoute):
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


def build_routes(app: FastAPI) -> None:
    """Build what each route reads and answers now, as the last step of making an app.

    FastAPI puts this off until a request asks for a router, and filters warnings for the whole process while it
    builds: two threads that do so at once undo each other's filters, and a request pays for it.
    """
    for _ in iter_route_contexts(app.routes):
        pass


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class DeclaredRoute(SegmentRoute):
    """A route that refuses what it has not declared: a query, a body, or a body of another kind."""

    def get_route_handler(self) -> Handler:
        answer = super().get_route_handler()

        async def handle(request: Request) -> Response:
            await self.authorise(request)
            await require_declared(request)
            await require_content_type(request)
            if self.body_field is not None:
                await self.read_body(request)
            return await answer(request)

        return handle

    async def authorise(self, request: Request) -> None:
        """Whoever may call, which here is anybody; an error of the tree for others, of whom nothing more is read."""

    async def read_body(self, request: Request) -> None:
        """Read a body of JSON or of a form as far as the route lets it be long; else the framework reads it."""
