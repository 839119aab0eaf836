"""Retries of calls, and the pauses between them."""

from __future__ import annotations

import random
import ssl
from dataclasses import dataclass

import httpx

BUSY = frozenset({429, 502, 503, 504})  # another attempt may be answered
NOT_DONE = frozenset({429, 503})  # by the silo itself; the others are of a server before it, which does not know
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True)
class Retrying:
    """Number of attempts of a call, and pauses between them.

    A pause is a random part of `pause_seconds`, doubled each time, so that callers that failed together do not return
    together. A longer Retry-After, in seconds, is waited for instead. No pause is longer than `longest_seconds`.
    """

    attempts: int = 5
    pause_seconds: float = 0.2
    longest_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts: expected at least 1, got {self.attempts}")

    def is_busy(self, answer: httpx.Response) -> bool:
        """Tells whether another attempt may be answered."""
        return answer.status_code in BUSY

    def may_repeat(self, last: httpx.TransportError | httpx.Response, *, repeatable: bool) -> bool:
        """Tells whether a call may be sent again.

        One that must not be done twice may if the last attempt has done nothing.
        """
        if isinstance(last, httpx.Response):
            return repeatable or last.status_code in NOT_DONE
        return find_tls_error(last) is None and (repeatable or isinstance(last, NOT_SENT))

    def pause(self, attempt: int, answer: httpx.Response | None = None) -> float:
        """Returns the seconds to wait after `attempt` failures."""
        own = random.uniform(0.0, self.pause_seconds * 2 ** (attempt - 1))
        return min(max(own, _retry_after_seconds(answer)), self.longest_seconds)


def find_tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """Returns the TLS error behind an error, if any; another attempt would fail alike."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def _retry_after_seconds(answer: httpx.Response | None) -> float:
    asked = "" if answer is None else answer.headers.get("Retry-After", "")
    return float(asked) if asked.isascii() and asked.isdigit() else 0.0
