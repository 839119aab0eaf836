"""A query parameter or a body that a route does not declare -> refused; its value is never repeated in the answer."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.datastructures import Headers

from shared.errors import Fault, ProtocolError
from shared.web.problems import name_undeclared


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
