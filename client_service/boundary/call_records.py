"""Records calls in the ledger: two entries each, one for many repeated polls.

A call with a body, and the first of its kind without one, is an intent that is durable before the call leaves, and an
outcome. A call that repeats an earlier one in the same words is not written beforehand: nothing leaves with it that
has not left before. If its answer repeats an earlier one too, the call is counted in memory, and the count is written
as one line: before anything else is written, when the client ends, and at the latest after `MOST_COUNTED` calls or,
with the next answer, after `COUNTED_SECONDS`. With another answer, or none, the call is written by itself then.

So a crash loses at most that many calls, none of which had a body. Calls with a body are written each time.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
from pydantic import ValidationError

from client_service.boundary.ledger import INTENT, Ledger, entry_nonce
from shared.protocol.schemas import ReceiptOut

POLLS = "polls"  # kind of the entry that counts calls
MOST_COUNTED = 600  # calls that a crash may lose
COUNTED_SECONDS = 600.0
TIME_LEFT = re.compile(rb'"seconds_left":[-+.0-9eE]+')
MOST_SERIES = 8  # questions with their answers that are remembered; of others each call is written

Fields = Mapping[str, Any]


@dataclass
class _RepeatedCalls:
    """Repeated calls that the ledger counts in one line.

    of: ledger entry of the first call. n: repetitions since the last line that counts them.
    """

    of: int
    fields: Fields
    outcome: Fields
    n: int = 0
    bytes: int = 0
    first: str = ""
    last: str = ""


@dataclass(frozen=True)
class PendingCall:
    """Call without an outcome so far, with the nonce and the time of its signature.

    question: its fields as one text, equal for repetitions. intent: its entry; None for a repetition.
    """

    question: str
    fields: Fields
    nonce: str
    created: int
    started: str
    intent: int | None


class CallRecorder:
    """Records the calls of one client, which may overlap."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger, self._clock = ledger, clock
        self._series: OrderedDict[tuple[str, str], _RepeatedCalls] = OrderedDict()
        self._nonces: dict[str, str] = {}  # of the first call of each question that is remembered
        self._repeats = self._counted = 0
        self._since = 0.0

    def begin(self, fields: Fields) -> PendingCall:
        """Records a call before it leaves.

        `fields`: what its intent states.
        """
        question, started = json.dumps(fields, sort_keys=True), _current_time()
        if question in self._nonces:
            return PendingCall(question, fields, self._next_nonce(question), int(time.time()), started, None)
        self.flush()
        intent = self._ledger.append(INTENT, durable_head=bool(fields["bytes"]), **fields)
        nonce = entry_nonce(self._ledger.last_hash)
        return PendingCall(question, fields, nonce, self._ledger.last_second, started, intent)

    def end(self, call: PendingCall, outcome: Fields, *, fingerprint: str) -> None:
        """Records the outcome of a call.

        Outcomes with the same `fingerprint` bring the same news.
        """
        found = self._series.get((call.question, fingerprint))
        if call.intent is None and found is not None:
            self._series.move_to_end((call.question, fingerprint))
            self._count(found, call, outcome)
            return
        intent = self.write_intent(call)
        self._ledger.append("outcome", durable=False, of=intent, **outcome)  # before the next call leaves, it is
        if not call.fields["bytes"]:
            self._add_series(call, fingerprint, _RepeatedCalls(intent, call.fields, outcome))

    def write_intent(self, call: PendingCall) -> int:
        """Writes the intent of a call unless it has one, and returns the entry's number."""
        if call.intent is not None:
            return call.intent
        self.flush()
        return self._ledger.append(INTENT, **call.fields, nonce=call.nonce)

    def flush(self) -> None:
        """Writes all counts to the ledger; they are durable when this returns."""
        for one in self._series.values():
            if one.n:
                self._ledger.append(POLLS, **_describe_polls(one))
                one.n, one.bytes = 0, 0
        self._counted = 0

    def _count(self, series: _RepeatedCalls, call: PendingCall, outcome: Fields) -> None:
        if not self._counted:
            self._since = self._clock()
        if not series.n:
            series.first = call.started
        series.n, series.bytes, series.last = series.n + 1, series.bytes + outcome.get("bytes", 0), _current_time()
        self._counted += 1
        if self._counted >= MOST_COUNTED or self._clock() - self._since >= COUNTED_SECONDS:
            self.flush()

    def _add_series(self, call: PendingCall, fingerprint: str, series: _RepeatedCalls) -> None:
        self._series[call.question, fingerprint] = series
        self._nonces.setdefault(call.question, call.nonce)
        if len(self._series) > MOST_SERIES:
            self.flush()
            (question, _), _ = self._series.popitem(last=False)
            if all(question != known for known, _ in self._series):
                del self._nonces[question]

    def _next_nonce(self, question: str) -> str:
        """Returns a new nonce for a repeated call.

        It follows from the nonce of the first such call, and so from the ledger.
        """
        self._repeats += 1
        return entry_nonce(hashlib.sha256(f"{self._nonces[question]} {self._repeats}".encode()).hexdigest())


def _describe_polls(series: _RepeatedCalls) -> Fields:
    """Returns the fields of a line that counts repeated calls.

    bytes: of all their answers together.
    """
    fields = {name: series.fields[name] for name in ("call", "run", "round") if name in series.fields}
    came = {name: series.outcome[name] for name in ("status", "error") if name in series.outcome}
    span = {"n": series.n, "from": series.first, "to": series.last}
    return {"of": series.of, **fields, **span, **came, "bytes": series.bytes}


def _current_time() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def read_outcome(call: str, response: httpx.Response) -> dict[str, Any]:
    """Returns status, size and hash of an answer, and the receipt of an update."""
    digest = hashlib.sha256(response.content).hexdigest()
    outcome: dict[str, Any] = {"status": response.status_code, "bytes": len(response.content), "sha256": digest}
    if call == "update" and response.is_success:
        outcome["receipt"] = _receipt(response.content)
    return outcome


def fingerprint_answer(call: str, response: httpx.Response) -> str:
    """Returns a text that is equal for answers that differ in the time left alone."""
    content = response.content
    if call == "current" and response.is_success:
        content = TIME_LEFT.sub(b"", content, count=1)
    return f"{response.status_code} {hashlib.sha256(content).hexdigest()}"


def _receipt(content: bytes) -> dict[str, Any] | None:
    """Parses the aggregator's receipt of an update; None for other content."""
    try:
        return ReceiptOut.model_validate_json(content).model_dump()
    except ValidationError:
        return None
