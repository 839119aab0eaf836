"""Routes of both services: path segments, HEAD, and checks before a request is handled."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, get_origin
from urllib.parse import unquote_to_bytes

from fastapi import FastAPI, Request, Response, params
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.errors import Fault, FederationError, MediaTypeError, ProtocolError
from shared.web.held_streams import HOLD
from shared.web.problems import answer_raised, name_undeclared

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


async def require_content_type(request: Request) -> None:
    """Raises MediaTypeError if a body is not JSON, or not a form, as declared."""
    route: APIRoute = request.scope["route"]
    if route.body_field is None:
        return
    expected = FORM if isinstance(route.body_field.field_info, params.Form) else JSON
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != expected:
        raise MediaTypeError(f"Content-Type: expected {expected}, got {'another one' if kind else 'none'}")


async def require_declared(request: Request) -> None:
    """Raises ProtocolError for unknown or repeated query parameters and an undeclared body."""
    route: APIRoute = request.scope["route"]
    known = declared_parameters(route.dependant)
    unknown, repeated = _list_undeclared(request, known), _list_repeated(request, known)
    if faults := (*unknown, *repeated):
        more = f"{len(faults)} more: {', '.join(dict.fromkeys(fault.at.partition('.')[2] for fault in faults))}"
        detail = f"expected at most the query parameters {_describe(known)}, got {more}"
        raise ProtocolError(detail, faults=tuple(dict.fromkeys(faults)))
    if announces_body(request.headers) and not expects_body(route):
        expected = "expected no body, got one"
        raise ProtocolError(expected, faults=(Fault("unknown", "body", expected),))


def _list_undeclared(request: Request, known: Mapping[str, bool]) -> tuple[Fault, ...]:
    """Lists unknown parameters, empty names included: these could carry data too."""
    query: bytes = request.scope["query_string"]
    empty = sum(not part.partition(b"=")[0] for part in query.split(b"&")) if query else 0
    names = [name for name, _ in request.query_params.multi_items() if name and name not in known] + [""] * empty
    return tuple(_describe_unknown(name_undeclared(name), known) for name in names)


def _describe_unknown(name: str, known: Mapping[str, bool]) -> Fault:
    near = "".join(f"; likely {one}" for one in get_close_matches(name, known, n=1))
    return Fault("unknown", f"query.{name}", f"expected a declared parameter, got another{near}")


def _list_repeated(request: Request, known: Mapping[str, bool]) -> tuple[Fault, ...]:
    """Lists parameters that are repeated although they are not lists."""
    came = request.query_params
    more = {name: len(came.getlist(name)) - 1 for name, is_list in known.items() if not is_list and name in came}
    fault = "expected it once, got it several times"
    return tuple(Fault("repeated", f"query.{name}", fault) for name, count in more.items() for _ in range(count))


def expects_body(route: APIRoute) -> bool:
    """Tells whether the route declares a body."""
    return route.body_field is not None or "requestBody" in (route.openapi_extra or {})


def _describe(known: Mapping[str, bool]) -> str:
    lists = sorted(name for name, is_list in known.items() if is_list)
    return f"{sorted(known)}, once each" + (f" but for {lists}" if lists else "")


def declared_parameters(dependant: Dependant) -> dict[str, bool]:
    """Returns a route's query parameters, each with whether it may repeat."""
    own = {field.alias: get_origin(field.field_info.annotation) in (list, tuple) for field in dependant.query_params}
    for one in dependant.dependencies:
        own |= declared_parameters(one)
    return own


def announces_body(headers: Headers) -> bool:
    """Tells whether the headers announce a body of one byte or more."""
    said = dict(reversed(headers.raw))  # of a name that comes twice the first counts
    return b"transfer-encoding" in said or said.get(b"content-length", b"").strip(b"0") != b""


@dataclass(frozen=True)
class HeadAsGet:
    """Middleware that answers HEAD as GET without the body.

    It belongs inside the check of signatures, which cover the method as sent. Its connection is never held open: what
    is written there later would be a body.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        scope.get("state", {}).pop(HOLD, None)
        scope["method"] = "GET"  # in this very scope: what is outside finds the route there
        try:
            await self.app(scope, receive, send_head)
        finally:
            scope["method"] = "HEAD"


class PlainPaths:
    """Middleware that answers plain requests for known paths.

    The framework's way to a route, with a match of each path before it, takes a fifth of a call's time. It belongs
    inside all other middleware; the framework gets every request that a route's plain handler leaves to it, and each
    whose path is percent-encoded.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._known: dict[tuple[str, str], list[tuple[re.Pattern[str], DeclaredRoute]]] = {}
        for one in routes:
            if isinstance(one, DeclaredRoute) and one.answer_plainly is not None and "}" not in one.path[-1:]:
                form = re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(one.path)))
                for method in one.methods or ():
                    self._known.setdefault((method, _last_segment(one.path)), []).append((form, one))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._find_route(scope) if scope["type"] == "http" else None
        if route is None or route.answer_plainly is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            await route.authorise(request)
            answering = route.answer_plainly(request)
            response = None if answering is None else await answering
        except (FederationError, HTTPException, ClientDisconnect) as error:
            response = await answer_raised(request, error)
        if response is not None:
            await response(scope, receive, send)
        else:
            await self._app(scope, _repeat_body(request), send)

    def _find_route(self, scope: Scope) -> DeclaredRoute | None:
        """Finds the route of a path, and notes both in the request."""
        path: str = scope["path"]
        if b"%" in (scope.get("raw_path") or b"%"):
            return None
        for form, route in self._known.get((scope["method"], _last_segment(path)), ()):
            if (found := form.fullmatch(path)) is not None:
                scope["route"], scope["path_params"] = route, found.groupdict()
                return route
        return None


def _repeat_body(request: Request) -> Receive:
    """Returns what receives a request for another reader.

    It begins anew if the body was read.
    """
    body: bytes | None = getattr(request, "_body", None)  # where `read_body` keeps it
    if body is None:
        return request.receive
    pieces = [body]

    async def receive() -> Message:
        return {"type": "http.request", "body": pieces.pop()} if pieces else await request.receive()

    return receive


def _last_segment(path: str) -> str:
    return path.rpartition("/")[2]


SLASH = "\ud800"  # stands for a slash within a segment: no UTF-8 decodes to it


class SegmentRoute(APIRoute):
    """Route whose parameters are whole segments of a path, slashes included."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        raw: bytes = scope.get("raw_path") or b""
        if b"%2" not in raw:  # most ids have no such character, and every route runs this check
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
    """Builds the handlers of all routes now, as the last step of making an app.

    FastAPI puts this off until the first request and changes warning filters for the whole process meanwhile: two
    threads would undo each other's filters, and a request would pay for it.
    """
    for _ in iter_route_contexts(app.routes):
        pass


Handler = Callable[[Request], Coroutine[Any, Any, Response]]
PlainHandler = Callable[[Request], Coroutine[Any, Any, Response | None] | None]
"""(request) -> its answer to be awaited; None, at once or after its body, if the framework is to handle it."""


class DeclaredRoute(SegmentRoute):
    """Route that refuses an undeclared query, body or content type."""

    answer_plainly: PlainHandler | None

    def get_route_handler(self) -> Handler:
        answer = super().get_route_handler()
        answer_plainly = self.answer_plainly = self.plain_handler()

        async def handle(request: Request) -> Response:
            await self.authorise(request)
            answering = None if answer_plainly is None else answer_plainly(request)
            if answering is not None and (response := await answering) is not None:
                return response
            await require_declared(request)
            await require_content_type(request)
            if self.body_field is not None:
                await self.read_body(request)
            return await answer(request)

        return handle

    def plain_handler(self) -> PlainHandler | None:
        """Returns a handler of requests in their usual form; by default there is none."""
        return None

    async def authorise(self, request: Request) -> None:
        """Raises an error for callers without permission; by default all may call."""

    async def read_body(self, request: Request) -> None:
        """Reads the body up to the route's limit; by default the framework does."""
