"""Options of both clients' connections, and errors of calls without an answer."""

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
    """Returns options of an httpx client.

    Raises ValueError for a wrong address or key, OSError for a missing `ca`.
    """
    address = httpx.URL(url)
    if address.scheme not in ("http", "https") or not address.host:
        raise ValueError(f"url: expected http://HOST:PORT or https://HOST:PORT, got {url!r}")
    if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
        raise ValueError("key: expected ASCII characters without spaces, got other characters or an empty text")
    silence_request_log()
    verify: Any = True if ca is None else ssl.create_default_context(cafile=ca)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return {"base_url": address, "headers": headers, "timeout": timeout, "verify": verify, "trust_env": False}


def silence_request_log() -> None:
    """Keeps users' ids out of the application's log.

    httpx logs the address of each request at level INFO. A level that is set for the logger `httpx` stays.
    """
    logger = logging.getLogger("httpx")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)


def describe_failure(
    call: ApiCall[Any], attempts: int, last: httpx.TransportError | httpx.Response
) -> UnreachableError:
    """Makes the error of a call whose last attempt failed."""
    if isinstance(last, httpx.Response):
        what, undone = _describe_answer(last), last.status_code in NOT_DONE
    else:
        what, undone = _describe_transport(last), isinstance(last, NOT_SENT)
    if not call.repeatable and not undone:
        return UnreachableError(
            f"{call.name}: expected an answer, got {what}; it may have been done: check before you repeat it"
        )
    return UnreachableError(f"{call.name}: expected an answer within {attempts} attempts, got {what}")


def _describe_answer(answer: httpx.Response) -> str:
    return f"{answer.status_code} {read_problem(answer).get('detail', '')}".strip()


def _describe_transport(error: httpx.TransportError) -> str:
    failed = find_tls_error(error)
    if isinstance(failed, ssl.SSLCertVerificationError):
        return f"none: the certificate is not trusted ({failed.verify_message})"
    return type(error).__name__ if failed is None else f"none: TLS failed ({failed.reason or 'no reason'})"
