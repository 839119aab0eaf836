"""Request bodies, read piece by piece up to a route's limit."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request

CLOSE = {"Connection": "close"}  # the rest of the body may go on coming: nothing can follow it on this connection


async def read_body(request: Request, most: int) -> bytes:
    """Reads the whole body; `Request.body` returns it later too.

    Raises HTTPException for a body longer than `most` bytes, by its announced length or where it passes the limit;
    and for a compressed one, which could unpack to a huge one.
    """
    if "content-encoding" in request.headers:
        raise HTTPException(415, "expected a body without content encoding, got an encoded one", CLOSE)
    if _announced_length(request) > most:
        raise too_long_error(most)
    parts, came = [], 0
    async for piece in request.stream():
        came += len(piece)
        if came > most:
            raise too_long_error(most)
        parts.append(piece)
    request._body = b"".join(parts)  # where `Request.body` keeps it too
    return request._body


def too_long_error(most: int) -> HTTPException:
    return HTTPException(413, f"expected at most {most} bytes, got more", CLOSE)


def _announced_length(request: Request) -> int:
    length = request.headers.get("content-length", "0")
    return int(length[:20]) if length.isascii() and length.isdigit() else 0
