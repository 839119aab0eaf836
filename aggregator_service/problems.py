"""Errors of every kind -> RFC 9457 problem documents. The input that caused one is never repeated by validation."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from shared.schemas import ProblemOut

MEDIA_TYPE = "application/problem+json"
LONGEST_DETAIL = 500  # characters; a refusal may quote what came, and what came may be long
CODES = {400: "bad-request", 404: "not-found", 405: "method-not-allowed", 413: "too-large"}
TITLES = {
    400: "Bad request",
    401: "Who is calling?",
    403: "Not yours",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Too large",
    415: "Unsupported media type",
    422: "Not as declared",
    503: "Not available now",
}


def problem(status: int, *, code: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """One problem document."""
    title = TITLES.get(status, "Error")
    # What came may hold lone surrogates, which no UTF-8 document can.
    plain = detail[:LONGEST_DETAIL].encode("utf-8", "replace").decode()
    content = ProblemOut(title=title, status=status, detail=plain, code=code).model_dump_json()
    return Response(content, status, headers={"Cache-Control": "no-store"} | dict(headers or {}), media_type=MEDIA_TYPE)


async def invalid(request: Request, error: Exception) -> Response:
    """A message that does not fit its schema: where and why, not what came."""
    del request
    assert isinstance(error, RequestValidationError)
    lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
    return problem(422, code="protocol", detail="; ".join(lines))


async def refused(request: Request, error: Exception) -> Response:
    """What the framework itself refuses: no such route or method, an unreadable body."""
    del request
    assert isinstance(error, HTTPException)
    code = CODES.get(error.status_code, "http")
    return problem(error.status_code, code=code, detail=str(error.detail), headers=error.headers)


async def unexpected(request: Request, error: Exception) -> Response:
    """Our own mistake. The log has the reason; the caller learns nothing of the inside."""
    del request, error
    return problem(500, code="internal", detail="the aggregator has made a mistake; its log says which")
