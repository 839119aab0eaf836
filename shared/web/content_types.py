"""The content type of a route's body, and the one that a caller prefers for an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fastapi import Request, params
from fastapi.routing import APIRoute

from shared.errors import MediaTypeError

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
WEIGHT = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")


async def require_content_type(request: Request) -> None:
    """MediaTypeError where a route that reads a body as JSON, or as a form, gets another one, or one of no kind."""
    route: APIRoute = request.scope["route"]
    if route.body_field is None:
        return
    expected = FORM if isinstance(route.body_field.field_info, params.Form) else JSON
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != expected:
        raise MediaTypeError(f"Content-Type: expected {expected}, got {'another one' if kind else 'none'}")


def prefers(accept: str, kind: str, usual: str) -> bool:
    """Does an Accept header weigh `kind` more than what is usually answered, or name it at the same weight?

    RFC 9110, 12.5.1: the most specific range of a type counts, `q=0` excludes it. A header that excludes both, as one
    that says nothing, leaves the usual one.
    """
    ranges = _read_ranges(accept)
    weight, weight_of_usual = _weigh(ranges, kind), _weigh(ranges, usual)
    return weight > weight_of_usual or (weight == weight_of_usual > 0.0 and kind in ranges)


def _read_ranges(accept: str) -> dict[str, float]:
    """Each range with its weight; of one that comes twice the larger. One without a readable weight does not count."""
    found: dict[str, float] = {}
    for one in accept.lower().split(","):
        kind, *words = (word.strip() for word in one.split(";"))
        said = [word.partition("=")[2].strip() for word in words if word.partition("=")[0].strip() == "q"]
        if all(WEIGHT.fullmatch(weight) for weight in said):
            found[kind] = max(found.get(kind, 0.0), float(said[0]) if said else 1.0)
    return found


def _weigh(ranges: Mapping[str, float], kind: str) -> float:
    within = f"{kind.partition('/')[0]}/*"
    return next((ranges[one] for one in (kind, within, "*/*") if one in ranges), 0.0)
