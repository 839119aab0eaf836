"""A route's body -> the content type that it may have."""

from __future__ import annotations

from fastapi import Request, params
from fastapi.routing import APIRoute

from shared.errors import MediaTypeError

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
