"""Problem documents (RFC 9457) of errors, with each validation fault once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from shared import errors
from shared.errors import Fault, FaultCode
from shared.faults import describe_expected, describe_fault, describe_kind, describe_safely
from shared.protocol.problem import FaultOut, ProblemOut
from shared.timeouts import RETRY_AFTER_SECONDS
from shared.web.request_bodies import CLOSE

REQUEST_ID_HEADER: Final = "X-Request-ID"
REQUEST_ID_FIELD: Final = "request_id"  # in each log line of a request
Place = tuple[int | str, ...]

KINDS: Final[Mapping[str, FaultCode]] = {
    "missing": "missing",
    "extra_forbidden": "unknown",
    "json_invalid": "not-json",
    "finite_number": "out-of-range",
    "int_parsing_size": "out-of-range",
    "multiple_of": "out-of-range",
    "string_pattern_mismatch": "wrong-form",
    "string_unicode": "wrong-form",
}
BY_FORM: Final[Sequence[tuple[re.Pattern[str], FaultCode]]] = (
    (re.compile("greater_than.*|less_than.*|.*too_(short|long)"), "out-of-range"),
    (re.compile("(datetime|date|time|timezone|uuid|url|bytes)_.*"), "wrong-form"),
    (re.compile(".*_type|.*_parsing|int_from_float"), "wrong-type"),
)
NAME: Final = re.compile(r"[A-Za-z][A-Za-z_.\[\]]{0,39}[0-9]?")
"""Form of an undeclared name that an error may repeat; any other text could be an id."""
UNNAMED: Final = "(another name)"
PARAMETER_DEPTH: Final = 2  # as query.k and body.k


def name_undeclared(name: str) -> str:
    """Returns an undeclared name for an error, or a placeholder where it may be data."""
    return name if NAME.fullmatch(name) else UNNAMED


def list_faults(errors: Iterable[Mapping[str, Any]], body: Any) -> tuple[Fault, ...]:
    """Lists one fault for each place of a message.

    body: the message, by which a place is looked up.
    """
    at_place: dict[Place, list[Mapping[str, Any]]] = {}
    for error in errors:
        at_place.setdefault(_find_place(error, body), []).append(error)
    return tuple(
        _merge_faults(place, found) for place, found in at_place.items() if not _is_consequence(place, found, at_place)
    )


def _is_consequence(place: Place, found: Sequence[Mapping[str, Any]], others: Iterable[Place]) -> bool:
    """Tells whether a list is too short only because its wrong members were dropped."""
    short = all(error["type"] == "too_short" for error in found)
    return short and any(len(other) > len(place) and other[: len(place)] == place for other in others)


def _find_place(error: Mapping[str, Any], body: Any) -> Place:
    """Returns the place of an error in the message, without pydantic's names of union members."""
    where: Place = tuple(error["loc"])
    if error["type"] == "json_invalid":
        return where[:1]
    if where[:1] != ("body",) or not isinstance(body, Mapping | list | tuple):
        return where
    place: list[int | str] = [where[0]]
    value: Any = body
    for at, part in enumerate(where[1:], 2):
        inside = part in value if isinstance(value, Mapping) else _is_member(part, value)
        if inside:
            value = value[part]
        if inside or (error["type"] == "missing" and at == len(where)):
            place.append(part)
    return tuple(place)


def _is_member(part: int | str, value: Any) -> bool:
    return isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)


def _merge_faults(place: Place, found: Sequence[Mapping[str, Any]]) -> Fault:
    """Merges the errors of a union's members about one place into one fault.

    Faults of a member that has the value's type come first.
    """
    chosen = [error for error in found if _code(error) != "wrong-type"] or found
    first = chosen[0]
    # A member of a list is data; a field of the message itself is a parameter of the request.
    came = describe_safely if len(place) <= PARAMETER_DEPTH and len(chosen) == 1 else describe_kind
    expected = " or ".join(dict.fromkeys(map(describe_expected, chosen)))
    detail = describe_fault(first, came) if len(chosen) == 1 else f"expected {expected}, got {came(first)}"
    # A name in a message may itself be something that came.
    return Fault(
        _code(first), ".".join(str(part) if isinstance(part, int) else name_undeclared(part) for part in place), detail
    )


def _code(error: Mapping[str, Any]) -> FaultCode:
    kind: str = error["type"]
    if kind in KINDS:
        return KINDS[kind]
    return next((code for form, code in BY_FORM if form.fullmatch(kind)), "wrong-value")


def list_methods(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """Lists the HTTP methods of a path, sorted; HEAD with GET."""
    found = {method for route in _find_routes(routes, scope) for method in route.methods or ()}
    return sorted(found | {"HEAD"} if "GET" in found else found)


def _find_routes(routes: Sequence[BaseRoute], scope: Scope) -> Iterator[APIRoute]:
    for context in iter_route_contexts(routes):
        route = context.original_route
        if isinstance(route, APIRoute) and route.matches(scope)[0] is not Match.NONE:
            yield route


MEDIA_TYPE = "application/problem+json"
MARK = "4XX"  # placeholder for all responses by which a route refuses: see `openapi.list_refusals`
INTERNAL = "internal"  # the code of our own mistakes
INVALID = 422
LONGEST_DETAIL = 500  # characters; a refusal may quote what came, and what came may be long
MOST_FAULTS = 20  # faults in a problem document; a list of 10,000 wrong values is one mistake
STATUS: dict[type[errors.FederationError], int] = {
    errors.AuthenticationError: 401,
    errors.ForbiddenError: 403,
    errors.NotFoundError: 404,
    errors.ConflictError: 409,
    errors.TooLargeError: 413,
    errors.MediaTypeError: 415,
    errors.HeadError: 400,
    errors.ProtocolError: 422,
    errors.SettingsError: 422,
    errors.DataError: 422,
    errors.DamagedError: 500,
    errors.UnavailableError: 503,
    errors.StorageFullError: 507,
    errors.FederationError: 500,
}
SOON = {"Retry-After": str(RETRY_AFTER_SECONDS)}
HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 413: CLOSE, 503: SOON, 507: SOON}
CODES = {
    400: "bad-request",
    401: "authentication",
    404: "not-found",
    405: "method-not-allowed",
    408: "too-slow",
    413: "too-large",
    415: "media-type",
    431: "head-too-large",
}
TITLES = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Not permitted",
    404: "Not found",
    405: "Method not allowed",
    408: "Body too slow",
    409: "Conflict",
    413: "Too large",
    415: "Unsupported media type",
    422: "Invalid message",
    429: "Too many requests",
    431: "Request head too large",
    503: "Unavailable",
    507: "Storage full",
}


def install_error_handlers(app: FastAPI) -> None:
    """Answers every error of an app with a problem document."""
    app.add_exception_handler(errors.FederationError, _answer_project_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(ClientDisconnect, _answer_disconnect)
    app.add_exception_handler(Exception, _answer_unexpected)


def problem_response(
    status: int,
    *,
    code: str,
    detail: str,
    headers: Mapping[str, str] | None = None,
    faults: Iterable[errors.Fault] | None = None,
) -> Response:
    """Makes a problem document."""
    title = TITLES.get(status, "Error")
    shown = None if faults is None else tuple(_show_fault(one) for one in list(faults)[:MOST_FAULTS])
    found = ProblemOut(
        title=title, status=status, detail=_encodable(detail), code=code, errors=shown, request_id=current_request_id()
    )
    content = found.model_dump_json(exclude_none=True)
    return Response(content, status, headers={"Cache-Control": "no-store"} | dict(headers or {}), media_type=MEDIA_TYPE)


def _show_fault(fault: errors.Fault) -> FaultOut:
    return FaultOut(code=fault.code, at=_encodable(fault.at) or None, detail=_encodable(fault.detail))


def _encodable(text: str) -> str:
    """Shortens text and replaces lone surrogates, which UTF-8 cannot encode."""
    return text[:LONGEST_DETAIL].encode("utf-8", "replace").decode()


def error_response(error: errors.FederationError) -> Response:
    """Makes the problem document of one of the project's errors."""
    status, faults = find_status(error), None
    if status == INVALID:
        known = error.faults if isinstance(error, errors.ProtocolError) else ()
        faults = known or (errors.Fault("wrong-value", "", str(error)),)
    return problem_response(status, code=error.code, detail=str(error), headers=HEADERS.get(status), faults=faults)


def find_status(error: errors.FederationError) -> int:
    """Returns the HTTP status of an error."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


async def _answer_project_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.FederationError)
    return answer_error(request, error)


def answer_error(request: Request, error: errors.FederationError) -> Response:
    """Answers one of the project's errors, and notes its code."""
    _note_code(request, error.code)
    return error_response(error)


async def answer_raised(request: Request, error: errors.FederationError | HTTPException | ClientDisconnect) -> Response:
    """Answers an error as the app's handlers do, where the framework was bypassed."""
    if isinstance(error, errors.FederationError):
        return answer_error(request, error)
    answer = _answer_http_error if isinstance(error, HTTPException) else _answer_disconnect
    return await answer(request, error)


async def _answer_invalid(request: Request, error: Exception) -> Response:
    """Answers a message that does not fit its schema, without its values.

    The values may be data.
    """
    assert isinstance(error, RequestValidationError)
    _note_code(request, errors.ProtocolError.code)
    faults = list_faults(error.errors(), error.body)
    detail = "; ".join(f"{fault.at}: {fault.detail}" for fault in faults)
    return problem_response(INVALID, code=errors.ProtocolError.code, detail=detail, faults=faults)


def _note_code(request: Request, code: str) -> None:
    """Stores the problem's code in the request's state, for records of answers."""
    request.state.code = code


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Answers an error of the framework: unknown route or method, unreadable body."""
    assert isinstance(error, HTTPException)
    code = CODES.get(error.status_code, "http")
    _note_code(request, code)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # the framework names the methods of one route, and a path may have several
        headers["Allow"] = ", ".join(list_methods(request.app.routes, request.scope))
    return problem_response(error.status_code, code=code, detail=str(error.detail), headers=headers)


async def _answer_disconnect(request: Request, error: Exception) -> Response:
    """Answers a request whose body was cut off; the caller has gone."""
    del error
    _note_code(request, errors.ProtocolError.code)
    return problem_response(
        400, code=errors.ProtocolError.code, detail="expected the whole body, got a part: the connection was closed"
    )


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    """Answers an unexpected error with 500; the reason is in the log alone."""
    del request, error
    return internal_error()


def internal_error() -> Response:
    return problem_response(
        500, code=INTERNAL, detail="internal error; the service's log has the cause under this request_id"
    )


def describe_refusal(status: int, when: str = "") -> str:
    """Describes a refusal for the OpenAPI document.

    when: the cause, where the status alone does not tell it.
    """
    return f"{HTTPStatus(status).phrase}{when and f', {when}'}: a problem document (RFC 9457)"


def current_request_id() -> str | None:
    """Returns the id of the request being answered; None outside a request."""
    found = structlog.contextvars.get_contextvars().get(REQUEST_ID_FIELD)
    return None if found is None else str(found)
