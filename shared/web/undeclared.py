"""A query parameter or a GET's body that a route does not declare -> refused, and never repeated in the answer."""

from __future__ import annotations

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.datastructures import Headers

from shared.errors import ProtocolError


async def require_declared(request: Request) -> None:
    """ProtocolError for a query parameter that the route does not know, for one that comes twice, for a GET's body."""
    route: APIRoute = request.scope["route"]
    known = declared_parameters(route.dependant)
    if others := _count_parameters(request) - len(known & set(request.query_params)):
        raise ProtocolError(f"expected at most the query parameters {sorted(known)}, once each, got {others} more")
    if request.method == "GET" and announces_body(request.headers):
        raise ProtocolError("expected no body of a GET, got one")


def declared_parameters(dependant: Dependant) -> set[str]:
    """The names of the query parameters of a route and of all that it depends on."""
    own = {field.alias for field in dependant.query_params}
    return own.union(*(declared_parameters(one) for one in dependant.dependencies))


def _count_parameters(request: Request) -> int:
    """How many parameters, empty ones included: a reader of queries passes over them, but they could be counted."""
    query: bytes = request.scope["query_string"]
    return len(query.split(b"&")) if query else 0


def announces_body(headers: Headers) -> bool:
    """Is there to be one, of more than no bytes?"""
    return "transfer-encoding" in headers or headers.get("content-length", "").strip("0") != ""
