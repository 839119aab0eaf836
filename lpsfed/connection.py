"""What both clients tell httpx, and what a call that nobody has answered ends with."""

from __future__ import annotations

import logging
import ssl
from os import PathLike
from typing import Any

import httpx

from lpsfed.calls import ApiCall, read_problem
from lpsfed.errors import UnreachableError
from lpsfed.retrying import NOT_DONE, NOT_SENT, find_tls_error

TIMEOUT_SECONDS = 30.0  # of one attempt


def connection_options(url: str, key: str | None, ca: str | PathLike[str] | None, timeout: float) -> dict[str, Any]:
    """Options of an httpx client. ValueError for an address or a key that cannot be one, OSError for no such `ca`."""
    address = httpx.URL(url)
    if address.scheme not in ("http", "https") or not address.host:
        raise ValueError(f"url: expected http://HOST:PORT or https://HOST:PORT, got {url!r}")
    if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
        raise ValueError("key: expected ASCII characters without spaces, got others, or none")
    silence_request_log()
    verify: Any = True if ca is None else ssl.create_default_context(cafile=ca)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return {"base_url": address, "headers": headers, "timeout": timeout, "verify": verify, "trust_env": False}


def silence_request_log() -> None:
    """Keep users' ids out of the application's log: httpx writes the address of each request at level INFO.

    Who sets a level for the logger `httpx` has decided otherwise, and it stays.
    """
    logger = logging.getLogger("httpx")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)


def describe_failure(
    call: ApiCall[Any], attempts: int, last: httpx.TransportError | httpx.Response
) -> UnreachableError:
    """The error of a call whose last attempt ended so, after so many."""
    if isinstance(last, httpx.Response):
        what, undone = _describe_answer(last), last.status_code in NOT_DONE
    else:
        what, undone = _describe_transport(last), isinstance(last, NOT_SENT)
    if not call.repeatable and not undone:
        return UnreachableError(f"{call.name}: expected an answer, got {what}; it may have been done")
    return UnreachableError(f"{call.name}: expected an answer within {attempts} attempts, got {what}")


def _describe_answer(answer: httpx.Response) -> str:
    return f"{answer.status_code} {read_problem(answer).get('detail', '')}".strip()


def _describe_transport(error: httpx.TransportError) -> str:
    failed = find_tls_error(error)
    if isinstance(failed, ssl.SSLCertVerificationError):
        return f"none: the certificate is not trusted ({failed.verify_message})"
    return type(error).__name__ if failed is None else f"none: TLS failed ({failed.reason or 'no reason'})"
