"""The operator's forms: what a browser sends -> the fields of a form, if it came from this very page.

A browser sends the operator's password by itself, even where another site made it call. So a form counts only with the
word that the page has put into it, which no other site can read.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qsl

from fastapi import Request

from shared.errors import ForbiddenError, MediaTypeError, ProtocolError
from shared.web.content_types import FORM
from shared.web.credentials import same
from shared.web.request_bodies import read_whole

LONGEST_FORM = 16 << 10  # bytes
CONTEXT = b"forms of the operator's page"


def form_guard(operator_token: str) -> str:
    """The word of the page's forms: nobody can compute it but who has the operator's token."""
    return hmac.new(operator_token.encode(), CONTEXT, hashlib.sha256).hexdigest()


async def read_form(request: Request, operator_token: str) -> dict[str, str]:
    """The fields of a form that this page has made; ForbiddenError for any other one."""
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise ForbiddenError("expected a form of the operator's page, got one of another site")
    if request.headers.get("content-type", "").partition(";")[0].strip() != FORM:
        raise MediaTypeError(f"expected a form as {FORM}, got another type")
    fields = _parse_form(await read_whole(request, LONGEST_FORM))
    if not same(fields.pop("guard", ""), form_guard(operator_token)):
        raise ForbiddenError("expected a form of the operator's page; load the page again")
    return fields


def _parse_form(body: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=16)
    except ValueError:
        raise ProtocolError("expected the fields of a form, got something else") from None
    if len(fields := dict(pairs)) < len(pairs):
        raise ProtocolError("expected each field of the form once, got one twice")
    return fields
