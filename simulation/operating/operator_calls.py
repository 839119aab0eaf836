"""Calls of the operator to an aggregator, with its token and with retries."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import ConflictError, FederationError, ProtocolError, SettingsError, UnavailableError
from shared.web.address import require_url
from simulation.progress import print_progress

if TYPE_CHECKING:
    import httpx

    from shared.web.outgoing import OutgoingTls

POLL_SECONDS = 1.0
CALL_SECONDS = 60.0  # a busy machine answers late
PATIENCE_SECONDS = 60.0  # for an aggregator that is not there: starting, or starting again
NOTICE_SECONDS = 15.0  # between two words about an aggregator that is still not there

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Operator:
    """Connection to an aggregator with the operator's token.

    patience: seconds for which a call is retried while the aggregator does not answer. tell: receives a line about
    the wait.
    """

    http: httpx.Client
    patience: float = PATIENCE_SECONDS
    tell: Tell = print_progress


@contextmanager
def open_operator(
    url: str,
    token_file: Path,
    tls: OutgoingTls | None = None,
    *,
    patience: float = PATIENCE_SECONDS,
    tell: Tell = print_progress,
) -> Iterator[Operator]:
    """Opens a connection with the operator's token.

    Without `tls` the authorities of httpx are trusted. Raises SettingsError for a token file that is empty or
    unreadable.
    """
    import httpx

    from shared.web.outgoing import OutgoingTls
    from simulation.operating.text_files import read_small_file

    token = read_small_file(token_file, "the operator's token")
    url = require_url(url)
    headers = {"Authorization": f"Bearer {token}"}
    verify = (tls or OutgoingTls()).context
    with httpx.Client(base_url=url, headers=headers, timeout=CALL_SECONDS, trust_env=False, verify=verify) as http:
        yield Operator(http, patience, tell)


def call_as_operator(operator: Operator, method: str, path: str, body: str | None = None) -> object:
    """Returns the answer to a call, which is retried while the aggregator does not answer.

    An aggregator continues the same round after a restart.
    """
    began, last_told = time.monotonic(), -math.inf
    while True:
        try:
            return _send_request(operator, method, path, body)
        except UnavailableError as error:
            if (waited := time.monotonic() - began) > operator.patience:
                raise
            if waited - last_told >= NOTICE_SECONDS:
                bound = f"{waited:.0f} of at most {operator.patience:g} s"
                operator.tell(f"waiting for the aggregator, {bound}: {error}")
                last_told = waited
            time.sleep(POLL_SECONDS)


def _send_request(operator: Operator, method: str, path: str, body: str | None) -> object:
    import httpx

    from shared.web.outgoing import describe_call_failure, describe_tls_failure

    http, expected = operator.http, f"{operator.http.base_url}: expected the aggregator"
    headers = {} if body is None else {"Content-Type": "application/json"}
    try:
        answer = http.request(method, path, content=body, headers=headers)
    except httpx.TransportError as error:
        if refused := describe_tls_failure(error):  # waiting does not help
            raise SettingsError(f"{expected}, but {refused}") from None
        nobody = " (nothing listens there: start it, or give its URL)" if isinstance(error, httpx.ConnectError) else ""
        raise UnavailableError(f"{expected}, got {describe_call_failure(error)}{nobody}") from None
    if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR or answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise UnavailableError(f"{method} {path}: {answer.status_code} {_describe_refusal(answer)}")
    if not answer.is_success:
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            hint = f"{http.base_url} refuses this token: check --operator-token-file, and the aggregator's URL"
            raise FederationError(f"{method} {path}: {answer.status_code} {_describe_refusal(answer)}; {hint}")
        kind = ConflictError if answer.status_code == httpx.codes.CONFLICT else FederationError
        raise kind(f"{method} {path}: {answer.status_code} {_describe_refusal(answer)}")
    try:
        return answer.json()
    except ValueError:
        raise ProtocolError(f"{expected}, got another answer to {path}") from None


def _describe_refusal(answer: httpx.Response) -> str:
    """Returns the detail of a problem document, or the beginning of another answer."""
    from pydantic import ValidationError

    from shared.protocol.problem import ProblemOut

    try:
        return ProblemOut.model_validate_json(answer.content).detail
    except ValidationError:
        return answer.text[:300]
