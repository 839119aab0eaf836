"""A request's path -> the route that has as many segments: a slash within a percent-encoded id parts none.

The server decodes `%2F` before anybody looks at a path. So routes look at what came over the wire.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

SLASH = "\ud800"  # in the place of one within a segment: no UTF-8 decodes to it


class BySegments(APIRoute):
    """A route whose parameters are whole segments of a path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        raw: bytes = scope.get("raw_path") or b""
        if b"%2" not in raw:  # most ids hold no such character, and this is asked of every route
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
