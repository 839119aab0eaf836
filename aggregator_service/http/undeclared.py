"""A request -> refused, if its query or its body says anything that its route has not declared.

Who may only ask could otherwise say something by how it asks. What came is counted and never repeated.
"""

from __future__ import annotations

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.datastructures import Headers

from shared.errors import ProtocolError


async def nothing_undeclared(request: Request) -> None:
    """ProtocolError for a query parameter that the route does not know, for one that comes twice, for a GET's body."""
    route: APIRoute = request.scope["route"]
    known = declared(route.dependant)
    if others := _came(request) - len(known & set(request.query_params)):
        raise ProtocolError(f"expected at most the query parameters {sorted(known)}, once each, got {others} more")
    if request.method == "GET" and announces_body(request.headers):
        raise ProtocolError("expected no body of a GET, got one")


def declared(dependant: Dependant) -> set[str]:
    """The names of the query parameters of a route and of all that it depends on."""
    own = {field.alias for field in dependant.query_params}
    return own.union(*(declared(one) for one in dependant.dependencies))


def _came(request: Request) -> int:
    """How many parameters, empty ones included: a reader of queries passes over them, but they could be counted."""
    query: bytes = request.scope["query_string"]
    return len(query.split(b"&")) if query else 0


def announces_body(headers: Headers) -> bool:
    """Is there to be one, of more than no bytes?"""
    return "transfer-encoding" in headers or headers.get("content-length", "").strip("0") != ""
