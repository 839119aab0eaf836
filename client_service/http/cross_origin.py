"""CORS for the applications' routes: browsers of allowed origins may call them.

The operator's routes and pages allow no other origin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from fastapi.routing import APIRoute, iter_route_contexts
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from client_service.http.authentication import ApplicationRoute
from shared.web import problems

METHODS = ("DELETE", "GET", "HEAD", "POST", "PUT")
REQUEST_HEADERS = ("Authorization", "Content-Type", problems.REQUEST_ID_HEADER)
EXPOSED = ("Retry-After", problems.REQUEST_ID_HEADER)
REFUSED = "expected the preflight of an allowed origin, method and headers, got others"


class CrossOrigin(CORSMiddleware):
    """Answers preflights of applications' routes, and marks all answers of these for allowed origins.

    It must be the outermost layer, so that refusals get the headers too, and a preflight, which carries no key, is
    not counted as a caller's request. A route is an application's by its first segment after /v1.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str], routes: Sequence[BaseRoute]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=METHODS,
            allow_headers=REQUEST_HEADERS,
            expose_headers=EXPOSED,
        )
        self._open = list_application_segments(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _segment(scope["path"]) in self._open:
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answers a preflight request as Starlette does; a refusal is a problem document."""
        answer = super().preflight_response(request_headers)
        if answer.status_code < 400:
            return answer
        kept = {"vary", "access-control-allow-origin", "access-control-allow-methods", "access-control-allow-headers"}
        headers = {name: value for name, value in answer.headers.items() if name in kept}
        return problems.problem_response(answer.status_code, code="cross-origin", detail=REFUSED, headers=headers)


def list_application_segments(routes: Sequence[BaseRoute]) -> frozenset[str]:
    """Lists the first path segments that belong to applications' routes alone."""
    found = list(_list_routes(routes))
    own = {_segment(route.path) for route in found if isinstance(route, ApplicationRoute)}
    return frozenset(own - {_segment(route.path) for route in found if not isinstance(route, ApplicationRoute)})


def _list_routes(routes: Sequence[BaseRoute]) -> Iterator[APIRoute]:
    for context in iter_route_contexts(routes):
        if isinstance(context.original_route, APIRoute):
            yield context.original_route


def _segment(path: str) -> str:
    """Returns the segment after /v1/; "" for other paths."""
    return path[4:].partition("/")[0] if path.startswith("/v1/") else ""
