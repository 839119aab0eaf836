"""A client's request -> how long its body may be, found before any of it is read."""

from __future__ import annotations

from fastapi import Request
from fastapi.routing import APIRoute

from aggregator_service.coordinator import Coordinator
from shared.errors import ForbiddenError
from shared.protocol.lengths import longest_join, with_room
from shared.protocol.secure.messages import FromClient
from shared.protocol.secure_lengths import longest_message

LONGEST_BY_OPERATOR = 64 << 10  # a run's settings, a reason


async def longest_body(request: Request, service: Coordinator) -> int:
    """Of JSON. AuthenticationError, ForbiddenError or NotFoundError for whoever has nothing to say here."""
    kind = _kind(request)
    if issubclass(kind, FromClient):
        return with_room(longest_message(kind, await _clients(request, service)))
    return longest_join(service.declaration)


def _kind(request: Request) -> type[object]:
    """What the route declares as its body."""
    route: APIRoute = request.scope["route"]
    assert route.body_field is not None
    kind: type[object] = route.body_field.field_info.annotation  # type: ignore[assignment]
    return kind


async def _clients(request: Request, service: Coordinator) -> int:
    """How many take part in the run of the path, of whose clients the caller says that it is one."""
    name, place = request.state.client, request.path_params
    service.require_joined(name)
    if place["client"] != name:
        raise ForbiddenError(f"expected your own name, {name!r}, got {place['client']!r}")
    return len(await service.members_of(place["run"]))
