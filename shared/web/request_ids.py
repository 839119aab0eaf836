"""A request -> an id of its own: in each of its log lines, in its answer, and in the problem document where it has one.

An id that comes is taken over only where the service says so, and only a UUID: a name would stand in the log.
"""

from __future__ import annotations

import os
import re
import uuid
from contextlib import AbstractContextManager

import structlog
from starlette.datastructures import Headers
from starlette.types import Scope

HEADER = "X-Request-ID"
FIELD = "request_id"
WELL_FORMED = re.compile("[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def choose_request_id(scope: Scope, *, callers_own: bool) -> str:
    """The caller's, where it gave one UUID and that counts; else a new one. 32 hexadecimal digits."""
    given = Headers(scope=scope).getlist(HEADER) if callers_own else []
    return adopt_or_create(given[0] if len(given) == 1 else None)


def adopt_or_create(given: str | None) -> str:
    """Return an id that came if it is a UUID, else a new one. 32 hexadecimal digits."""
    if given is not None and WELL_FORMED.fullmatch(given):
        return uuid.UUID(given).hex
    return os.urandom(16).hex()


def bind_request_id(identity: str) -> AbstractContextManager[object]:
    """While this lasts, every log line of this task and of the threads that it asks has the id."""
    return structlog.contextvars.bound_contextvars(**{FIELD: identity})


def current() -> str | None:
    """The id of the request that is being answered; None outside of any."""
    found = structlog.contextvars.get_contextvars().get(FIELD)
    return None if found is None else str(found)
