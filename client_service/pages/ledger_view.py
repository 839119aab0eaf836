"""Ledger on the silo's page: running totals, latest calls, fields of each update."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from client_service.boundary.call_attempts import Attempt, list_attempts
from client_service.boundary.ledger import GENESIS, Ledger, follow_chain
from shared.method.declaration import Declaration
from shared.protocol.masked_wire import body_forms, readable_scalars
from shared.web.pages import Verdict
from shared.words import format_shape

REFUSED = 400  # the least status of a refusal
CLOSED = 409  # of a call to a round that needs it no more


@dataclass(frozen=True)
class Field:
    """One part of an update's body; the parts' bytes add up to the body's."""

    name: str
    kind: str
    shape: str
    bytes: str
    sha256: str | None
    value: str


@dataclass(frozen=True)
class SentUpdate:
    """One update that left, or may have left."""

    key: str
    run: str | None
    round: int | None
    time: str
    bytes: int
    sha256: str
    outcome: Verdict
    agrees: Verdict
    fields: tuple[Field, ...]


def describe_update(one: Attempt, declaration: Declaration) -> SentUpdate:
    """Describes a sent update for the page."""
    agrees = matches_declaration(one, declaration)
    return SentUpdate(
        key=f"update-{one.sequence}",
        run=one.run,
        round=one.round,
        time=one.time,
        bytes=one.bytes,
        sha256=one.sha256,
        outcome=_outcome(one),
        agrees=Verdict("good", "as declared", "") if agrees else Verdict("bad", "other fields", ""),
        fields=_fields(one),
    )


def matches_declaration(one: Attempt, declaration: Declaration) -> bool:
    """Tells whether a call sent nothing beyond the declaration.

    An update holds the declared tensors and at most the declared scalars; every other call holds neither.
    """
    if one.call != "update":
        return not one.tensors and not one.scalars
    part = declaration.with_tensors(one.tensor_names)
    ours = {(name, form.dtype, form.shape) for name, form in body_forms(part).items()}
    theirs = [(field.get("name"), field.get("dtype"), tuple(field.get("shape", ()))) for field in one.tensors]
    return len(theirs) == len(ours) and set(theirs) == ours and set(one.scalars) <= set(readable_scalars(part))


def _outcome(one: Attempt) -> Verdict:
    if one.error is not None:
        return Verdict("warn", "no answer", f"{one.error}: it may have arrived")
    if one.status is None:
        return Verdict("busy", "no answer yet", "under way, or cut off: it may have arrived")
    if one.status >= REFUSED:
        return Verdict("bad", f"refused, {one.status}", "the aggregator did not take it")
    if one.receipt is None or one.receipt.get("digest") != one.sha256:
        return Verdict("bad", "other receipt", "the aggregator’s receipt has another digest, or there is none")
    return Verdict("good", "receipt agrees", "the aggregator’s receipt has the same digest")


def _fields(one: Attempt) -> tuple[Field, ...]:
    """Lists an update's tensors, its scalars, and the header that names them."""
    tensors = [_tensor(field) for field in one.tensors]
    scalars = [Field(name, "scalar", "one number", "in the header", None, str(v)) for name, v in one.scalars.items()]
    rest = one.bytes - sum(field.get("bytes", 0) for field in one.tensors)
    return (*tensors, *scalars, Field("header", "names and scalars", "JSON", f"{rest:,}", None, ""))


def _tensor(field: Mapping[str, Any]) -> Field:
    lengths, count = format_shape(field.get("shape", ())), f"{field.get('bytes', 0):,}"
    kind = f"{field.get('dtype')}{', only up' if field.get('up_only') else ''}"
    return Field(str(field.get("name")), kind, lengths, count, field.get("sha256"), "")


READ, CHECKED = 2000, 500  # entries that one update reads for the first time, and those that it checks again
KEPT = 200  # latest calls that are kept in memory; polls, which are most of a ledger, are only counted
MOST_OPEN = 64  # calls without an outcome that are waited for
POLL = "current"

Entry = Mapping[str, Any]


def is_late(one: Attempt) -> bool:
    """Tells whether a call was refused because enough other silos had answered before.

    The shares of a few silos open a sum; those of the last ones come after it, in every secure round.
    """
    return one.call == "answers" and one.status == CLOSED


@dataclass(frozen=True)
class CallTally:
    """Totals of all calls of one kind.

    refused: by the aggregator. late: calls that came after enough others (`is_late`). unanswered: under way or cut off;
    they may have arrived. other: not as declared.
    """

    call: str
    count: int = 0
    refused: int = 0
    late: int = 0
    unanswered: int = 0
    other: int = 0
    bytes_out: int = 0
    bytes_in: int = 0

    def add(self, one: Attempt, declaration: Declaration) -> CallTally:
        """Returns the totals with one more call."""
        return CallTally(
            self.call,
            self.count + one.times,
            self.refused + one.times * ((one.status or 0) >= REFUSED and not is_late(one)),
            self.late + one.times * is_late(one),
            self.unanswered + one.times * (one.status is None),
            self.other + one.times * (not matches_declaration(one, declaration)),
            self.bytes_out + one.bytes,
            self.bytes_in + one.answer_bytes,
        )


@dataclass(frozen=True)
class Summary:
    """State of reading the ledger: `read` of `written` entries.

    broken: first line at which the hash chain does not hold.
    """

    written: int
    read: int
    broken: int | None
    totals: tuple[CallTally, ...]
    latest: tuple[Attempt, ...]


@dataclass(frozen=True)
class Cursor:
    """Position in the ledger: number of entries whose chain holds, and the last hash."""

    count: int = 0
    last: str = GENESIS


class LedgerReader:
    """Reader of one ledger that follows its growth.

    Entries that were read are checked again in turn, so that a later change is found.
    """

    def __init__(self, ledger: Ledger, declaration: Declaration) -> None:
        self._ledger, self._declaration = ledger, declaration
        self._lock = threading.Lock()
        self._broken: int | None = None
        self._begin()

    def update(self) -> Summary:
        """Reads new entries, checks some old ones again, and returns the summary."""
        with self._lock:
            written = len(self._ledger)
            if not self._check_again():
                self._begin()
            self._read_new(written)
            return self._summary(written)

    def entries(self, last: int, limit: int) -> Sequence[tuple[int, Entry]]:
        """Returns at most `limit` entries up to line `last`, newest first, with their lines."""
        first = max(0, last - limit)
        return list(enumerate(self._ledger.entries(first, last - first), start=first + 1))[::-1]

    def _begin(self) -> None:
        self._read = self._again = Cursor()
        self._totals: Mapping[str, CallTally] = {}
        self._latest: deque[Attempt] = deque(maxlen=KEPT)
        self._open: list[Entry] = []

    def _read_new(self, written: int) -> None:
        """Reads the next entries as far as their chain holds.

        A line that breaks the chain is tried again by the next update.
        """
        entries = list(self._ledger.entries(self._read.count, READ))
        _, broken = follow_chain(entries, self._read.last)
        whole = entries if broken is None else entries[: broken - 1]
        self._count(whole)
        self._read = _advance_cursor(self._read, whole)
        cut_off = len(entries) < READ and self._read.count < written
        if broken is not None or cut_off:
            self._broken = self._read.count + 1
        elif self._broken is not None and self._read.count >= self._broken:
            self._broken = None  # the file was repaired

    def _check_again(self) -> bool:
        """Tells whether the next of the entries that were read before still hold."""
        wanted = min(CHECKED, self._read.count - self._again.count)
        entries = list(self._ledger.entries(self._again.count, wanted))
        count, broken = follow_chain(entries, self._again.last)
        if broken is not None or count < wanted:
            self._broken = self._again.count + (broken or count + 1)
            return False
        done = _advance_cursor(self._again, entries)
        self._again = Cursor() if done.count >= self._read.count else done
        return True

    def _count(self, entries: Sequence[Entry]) -> None:
        """Counts the calls with an outcome; holds the others back until it comes."""
        held = [*self._open, *entries]
        ended = {entry.get("of") for entry in held if entry.get("kind") == "outcome"}
        waiting = [entry for entry in held if entry.get("kind") == "intent" and entry.get("sequence") not in ended]
        self._open = waiting[-MOST_OPEN:]
        waited = {entry.get("sequence") for entry in self._open}
        for one in list_attempts(entry for entry in held if entry.get("sequence") not in waited):
            self._totals = self._add_call(self._totals, one)
            if one.call != POLL and one.of is None:
                self._latest.append(one)

    def _summary(self, written: int) -> Summary:
        totals, waiting = self._totals, list_attempts(self._open)
        for one in waiting:
            totals = self._add_call(totals, one)
        latest = (*self._latest, *(one for one in waiting if one.call != POLL))
        ordered = tuple(sorted(latest, key=lambda one: one.sequence))
        return Summary(written, self._read.count, self._broken, tuple(totals[call] for call in sorted(totals)), ordered)

    def _add_call(self, totals: Mapping[str, CallTally], one: Attempt) -> Mapping[str, CallTally]:
        return {**totals, one.call: totals.get(one.call, CallTally(one.call)).add(one, self._declaration)}


def _advance_cursor(cursor: Cursor, entries: Sequence[Entry]) -> Cursor:
    return replace(cursor, count=cursor.count + len(entries), last=entries[-1]["hash"]) if entries else cursor


SHOWN = 20
LONGEST = 120  # characters of a text that is shown
WHOLE = Verdict("idle", "", "")


@dataclass(frozen=True)
class JournalRow:
    """Row of the page's journal: one entry of the ledger.

    line: number of its line in the file. mark: a verdict at the line where the chain breaks.
    """

    line: int
    time: str
    kind: str
    about: str
    status: str
    bytes: int | None
    sha256: str
    hash: str
    mark: Verdict


@dataclass(frozen=True)
class Journal:
    """One page of the ledger, newest entry first.

    older, newer: links; None at the ends.
    """

    rows: tuple[JournalRow, ...]
    written: int
    older: str | None
    newer: str | None


def list_entries(entries: Sequence[tuple[int, Mapping[str, Any]]], last: int, summary: Summary) -> Journal:
    """Builds a page of the ledger that ends at line `last`.

    entries: newest first, each with its line.
    """
    first = min((line for line, _ in entries), default=1)
    return Journal(
        rows=tuple(_row(line, entry, summary.broken) for line, entry in entries),
        written=summary.written,
        older=f"./?before={first}#ledger" if first > 1 else None,
        newer=None if last >= summary.written else f"./?before={last + SHOWN + 1}#ledger",
    )


def _row(line: int, entry: Mapping[str, Any], broken: int | None) -> JournalRow:
    return JournalRow(
        line=line,
        time=_text(entry.get("time")),
        kind=_text(entry.get("kind", "damaged")),
        about=_describe_entry(entry),
        status=_text(entry.get("status", entry.get("error", ""))),
        bytes=_byte_count(entry.get("bytes")),
        sha256=_text(entry.get("sha256")) if entry.get("bytes") else "",
        hash=_text(entry.get("hash")),
        mark=Verdict("bad", "chain breaks here", "") if line == broken else WHOLE,
    )


def _describe_entry(entry: Mapping[str, Any]) -> str:
    """Describes an entry by its call and round, or by what it answers."""
    if "damaged" in entry:
        return _text(entry["damaged"])
    if "n" in entry:
        return f"{_text(entry.get('call'))}: {_text(entry['n'])} more like {_text(entry.get('of'))}"
    if "of" in entry:
        return f"answer to {_text(entry['of'])}"
    words = [_text(entry.get("call")), _text(entry.get("run")), _text(entry.get("round"))]
    return " · ".join(filter(None, [*words[:2], words[2] and f"round {words[2]}"]))


def _text(value: object) -> str:
    return "" if value is None else str(value)[:LONGEST]


def _byte_count(value: object) -> int | None:
    """Returns a positive number of bytes; None for any other value."""
    return value if type(value) is int and value > 0 else None
