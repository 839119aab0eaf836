"""An aggregator's address and the operator's token -> a run started, or the latest one, followed to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from shared.errors import FederationError, ProtocolError, SettingsError, UnavailableError
from shared.schemas import MemberOut, QuarantineIn, RoundOut, RunHistoryOut, RunIn
from shared.settings import validated
from shared.web.address import require_url
from shared.web.tls import Calling, failure, reason

POLL_SECONDS = 1.0
CALL_SECONDS = 10.0
PATIENCE_SECONDS = 60.0  # for an aggregator that is not there: starting, or starting again
ENDED = ("finished", "failed")

Observe = Callable[[RunHistoryOut], None]


@contextmanager
def operating(url: str, token_file: Path, calling: Calling | None = None) -> Iterator[httpx.Client]:
    """A way to make the operator's calls; by default whom httpx believes is believed."""
    try:
        token = token_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"operator token: expected a readable text file ({type(error).__name__})") from None
    if not token:
        raise SettingsError("operator token: expected one in the file, got nothing")
    url = require_url(url)
    headers = {"Authorization": f"Bearer {token}"}
    verify = (calling or Calling()).context
    with httpx.Client(base_url=url, headers=headers, timeout=CALL_SECONDS, trust_env=False, verify=verify) as http:
        yield http


def start(http: httpx.Client, request: RunIn) -> RunHistoryOut:
    """A new run. FederationError with the aggregator's reason where one is still going on."""
    return _history(_asked(http, "POST", "/v1/runs", request.model_dump_json()))


def latest(http: httpx.Client) -> RunHistoryOut | None:
    """The newest run, without its rounds."""
    runs = _asked(http, "GET", "/v1/runs")
    return _history(runs[-1]) if isinstance(runs, list) and runs else None


def members(http: httpx.Client) -> list[MemberOut]:
    """Every client of the federation by name, and whether it is quarantined."""
    answer = _asked(http, "GET", "/v1/clients")
    return [_member(one) for one in answer] if isinstance(answer, list) else []


def shut_out(http: httpx.Client, client: str, reason: str) -> MemberOut:
    """Quarantine a client. FederationError where there is none of that name, or where it is shut out already."""
    body = validated(QuarantineIn, {"reason": reason}).model_dump_json()
    return _member(_asked(http, "POST", f"/v1/clients/{quote(client, safe='')}/quarantine", body))


def let_in(http: httpx.Client, client: str) -> MemberOut:
    """Lift a client's quarantine. FederationError where there is none."""
    return _member(_asked(http, "DELETE", f"/v1/clients/{quote(client, safe='')}/quarantine"))


def look(http: httpx.Client, run: str | None) -> RunHistoryOut | None:
    """A run with its rounds, by default the newest; None where there has been none."""
    name = run or (found.run if (found := latest(http)) else None)
    return None if name is None else _history(_asked(http, "GET", f"/v1/runs/{name}"))


def standing(run: RunHistoryOut) -> str:
    """Where a run stands in one line: what it waits for, from whom, and until when; or how it ended."""
    asked = run.request
    if run.phase == "failed":
        return f"{run.run} has failed: {run.reason}"
    if run.phase == "waiting":
        there = f"{len(run.enrolled)} of {asked.clients} clients have joined"
        return f"{run.run} waits for clients: {there}; missing: {_names(run.missing)}; until {run.deadline_at}"
    now = run.rounds[-1]
    where = f"{run.run}, round {now.number} of {asked.rounds}"
    if run.phase != "open":
        return f"{where}: {run.phase}"
    came = sum(one.received for one in now.participants)
    needed = f"{came} of {len(now.participants)} updates, {asked.quorum or asked.clients} needed"
    return f"{where} is open: {needed}; missing: {_names(run.missing)}; until {run.deadline_at}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "nobody"


def follow(http: httpx.Client, run: str, observe: Observe) -> RunHistoryOut:
    """Look at a run until it has ended; its own deadlines bound that. FederationError with the reason if it failed."""
    while True:
        history = _history(_asked(http, "GET", f"/v1/runs/{run}"))
        observe(history)
        if history.phase == "failed":
            raise FederationError(f"{run} failed: {history.reason}")
        if history.phase in ENDED:
            return history
        time.sleep(POLL_SECONDS)


def round_line(request: RunIn, done: RoundOut) -> str:
    """A closed round in one line."""
    received = [one for one in done.participants if one.received]
    size = sum(one.size for one in received)
    return (
        f"round {done.number} of {request.rounds}: {len(received)} of {len(done.participants)} updates, {size:,} bytes"
    )


def _asked(http: httpx.Client, method: str, path: str, body: str | None = None) -> object:
    """One call, made again while nobody answers: an aggregator that restarts comes back to the same round."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return _once(http, method, path, body)
        except UnavailableError:
            if time.monotonic() > until:
                raise
            time.sleep(POLL_SECONDS)


def _once(http: httpx.Client, method: str, path: str, body: str | None) -> object:
    headers = {} if body is None else {"Content-Type": "application/json"}
    try:
        answer = http.request(method, path, content=body, headers=headers)
    except httpx.TransportError as error:
        if refused := failure(error):  # waiting does not help
            raise SettingsError(f"{http.base_url}: expected an aggregator, but {refused}") from None
        raise UnavailableError(f"{http.base_url}: expected an aggregator, got {reason(error)}") from None
    if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR or answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise UnavailableError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
    if not answer.is_success:
        raise FederationError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
    try:
        return answer.json()
    except ValueError:
        raise ProtocolError(f"{http.base_url}: expected an aggregator, got another answer to {path}") from None


def _member(answer: object) -> MemberOut:
    try:
        return MemberOut.model_validate(answer)
    except ValidationError:
        raise ProtocolError("expected a client of the federation from the aggregator, got another answer") from None


def _history(answer: object) -> RunHistoryOut:
    try:
        return RunHistoryOut.model_validate(answer)
    except ValidationError:
        raise ProtocolError("expected a run's history from the aggregator, got another answer") from None
