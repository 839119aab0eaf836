"""A query parameter or a body that a route does not declare -> refused, and never repeated in the answer."""

from __future__ import annotations

from typing import get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.datastructures import Headers

from shared.errors import ProtocolError


async def require_declared(request: Request) -> None:
    """ProtocolError for a query parameter that the route does not know, for one that comes twice and is no list, and
    for a body where none is expected."""
    route: APIRoute = request.scope["route"]
    known = declared_parameters(route.dependant)
    asked = request.query_params
    expected = sum(len(asked.getlist(name)) if known[name] else 1 for name in known.keys() & set(asked))
    if others := _count_parameters(request) - expected:
        raise ProtocolError(f"expected at most the query parameters {_describe(known)}, got {others} more")
    if announces_body(request.headers) and not _expects_body(route):
        raise ProtocolError("expected no body, got one")


def _expects_body(route: APIRoute) -> bool:
    """Does the route declare one, to be read by the framework or by itself?"""
    return route.body_field is not None or "requestBody" in (route.openapi_extra or {})


def _describe(known: dict[str, bool]) -> str:
    lists = sorted(name for name, is_list in known.items() if is_list)
    return f"{sorted(known)}, once each" + (f" but for {lists}" if lists else "")


def declared_parameters(dependant: Dependant) -> dict[str, bool]:
    """The query parameters of a route and of all that it depends on by name: may it come several times?"""
    own = {field.alias: get_origin(field.field_info.annotation) in (list, tuple) for field in dependant.query_params}
    for one in dependant.dependencies:
        own |= declared_parameters(one)
    return own


def _count_parameters(request: Request) -> int:
    """How many parameters, empty ones included: a reader of queries passes over them, but they could be counted."""
    query: bytes = request.scope["query_string"]
    return len(query.split(b"&")) if query else 0


def announces_body(headers: Headers) -> bool:
    """Is there to be one, of more than no bytes?"""
    return "transfer-encoding" in headers or headers.get("content-length", "").strip("0") != ""
