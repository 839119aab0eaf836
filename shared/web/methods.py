"""A request's path -> the methods that its routes answer, whichever of them the framework has found first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastapi.routing import APIRoute, iter_route_contexts
from starlette.routing import BaseRoute, Match
from starlette.types import Scope


def list_methods(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """By name; HEAD wherever GET is, as `HeadAsGet` answers it. Each method of a path is a route of its own."""
    found = {method for route in _find_routes(routes, scope) for method in route.methods or ()}
    return sorted(found | {"HEAD"} if "GET" in found else found)


def _find_routes(routes: Sequence[BaseRoute], scope: Scope) -> Iterator[APIRoute]:
    for context in iter_route_contexts(routes):
        route = context.original_route
        if isinstance(route, APIRoute) and route.matches(scope)[0] is not Match.NONE:
            yield route
