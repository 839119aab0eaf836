"""The operator's forms: what somebody has typed -> a run to start or to cancel, if it came from this very page.

A browser sends the operator's password by itself, even where another site made it call. So a form counts only with the
word that the page has put into it, which no other site can read.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import ValidationError

from shared.errors import ForbiddenError, MediaTypeError, ProtocolError
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunHistoryOut, RunIn
from shared.web.content_types import FORM
from shared.web.credentials import same
from shared.web.whole import read_whole

LONGEST_FORM = 4 << 10  # bytes
FIELDS = ("clients", "rounds", "quorum", "deadline_seconds", "seed")
CONTEXT = b"forms of the operator's page"


@dataclass(frozen=True)
class StartForm:
    """What the form that starts a run holds: each field as it is typed, and whose settings of the method count."""

    values: Mapping[str, str]
    source: str


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


def start_form(runs: list[RunHistoryOut], joined: int) -> StartForm:
    """As the last run was asked for; the first one with everybody who has joined."""
    last = next((one for one in reversed(runs) if one.request.part == "training"), None)
    if last is None:
        request, source = RunIn(clients=max(joined, 2)), "those of the aggregator’s settings"
    else:
        request, source = last.request, f"those of {last.run}"
    values = {name: getattr(request, name) for name in FIELDS}
    return StartForm({name: "" if value is None else f"{value:.15g}" for name, value in values.items()}, source)


def read_start(fields: Mapping[str, str], runs: list[RunHistoryOut], method: MethodSettings) -> RunIn:
    """The run that the form asks for, with the method of the last training run, or of the settings.

    ProtocolError with the names of the fields that are no such numbers, and what they are expected to be.
    """
    if others := sorted(set(fields) - set(FIELDS)):
        raise ProtocolError(f"expected the fields {', '.join(FIELDS)}, got {len(others)} more")
    last = next((one for one in reversed(runs) if one.request.part == "training"), None)
    typed = {name: value.strip() for name, value in fields.items() if value.strip()}
    before = {} if last is None else {"changing_members": last.request.changing_members}
    try:
        return RunIn.model_validate({**before, **typed, "method": method if last is None else last.request.method})
    except ValidationError as error:
        raise ProtocolError("; ".join(f"{one['loc'][0]}: {one['msg']}" for one in error.errors())) from None
