"""A growing ledger -> running totals and the latest calls, read bit by bit: no look takes longer for a long ledger."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from client_service.boundary.crossings import Attempt, attempts
from client_service.boundary.ledger import GENESIS, Ledger, follow_chain
from client_service.pages.updates import REFUSED, as_declared
from shared.method.declaration import Declaration

READ, CHECKED = 2000, 500  # entries that one look reads for the first time, and those that it checks again
KEPT = 200  # latest calls that are held whole; the polls, which are most of a ledger, are only counted
LONGEST_OPEN = 64  # calls without an outcome that are waited for
POLL = "current"

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class RecordTotal:
    """All calls of one kind. `unanswered`: under way, or cut off: they may have arrived. `other`: not as declared."""

    call: str
    count: int = 0
    refused: int = 0
    unanswered: int = 0
    other: int = 0
    bytes_out: int = 0
    bytes_in: int = 0

    def plus(self, one: Attempt, declaration: Declaration) -> RecordTotal:
        return RecordTotal(
            self.call,
            self.count + one.times,
            self.refused + one.times * ((one.status or 0) >= REFUSED),
            self.unanswered + one.times * (one.status is None),
            self.other + one.times * (not as_declared(one, declaration)),
            self.bytes_out + one.bytes,
            self.bytes_in + one.answer_bytes,
        )


@dataclass(frozen=True)
class Summary:
    """What has been read: `read` of `written` entries. `broken`: the first line at which the chain does not hold."""

    written: int
    read: int
    broken: int | None
    totals: tuple[RecordTotal, ...]
    latest: tuple[Attempt, ...]


@dataclass(frozen=True)
class Cursor:
    """So many entries from the beginning, whose chain holds and ends in this hash."""

    count: int = 0
    last: str = GENESIS


class Record:
    """Follows one ledger. What was read before is checked again and again, so that a later change shows."""

    def __init__(self, ledger: Ledger, declaration: Declaration) -> None:
        self._ledger, self._declaration = ledger, declaration
        self._lock = threading.Lock()
        self._broken: int | None = None
        self._begin()

    def look(self) -> Summary:
        """Read on, check again, and tell what is known by now."""
        with self._lock:
            written = len(self._ledger)
            if not self._check_again():
                self._begin()
            self._read_on(written)
            return self._summary(written)

    def entries(self, last: int, limit: int) -> Sequence[tuple[int, Entry]]:
        """At most so many entries up to line `last`, newest first, each with its line."""
        first = max(0, last - limit)
        return list(enumerate(self._ledger.entries(first, last - first), start=first + 1))[::-1]

    def _begin(self) -> None:
        self._read = self._again = Cursor()
        self._totals: Mapping[str, RecordTotal] = {}
        self._latest: deque[Attempt] = deque(maxlen=KEPT)
        self._open: list[Entry] = []

    def _read_on(self, written: int) -> None:
        """The next entries, as far as their chain holds; a line that breaks it is tried again at the next look."""
        entries = list(self._ledger.entries(self._read.count, READ))
        _, broken = follow_chain(entries, self._read.last)
        whole = entries if broken is None else entries[: broken - 1]
        self._take(whole)
        self._read = _advance_cursor(self._read, whole)
        cut_off = len(entries) < READ and self._read.count < written
        if broken is not None or cut_off:
            self._broken = self._read.count + 1
        elif self._broken is not None and self._read.count >= self._broken:
            self._broken = None  # somebody has mended it

    def _check_again(self) -> bool:
        """Do the next of the entries that have been read before still hold?"""
        wanted = min(CHECKED, self._read.count - self._again.count)
        entries = list(self._ledger.entries(self._again.count, wanted))
        count, broken = follow_chain(entries, self._again.last)
        if broken is not None or count < wanted:
            self._broken = self._again.count + (broken or count + 1)
            return False
        done = _advance_cursor(self._again, entries)
        self._again = Cursor() if done.count >= self._read.count else done
        return True

    def _take(self, entries: Sequence[Entry]) -> None:
        """Count the calls whose outcome is there, and hold the others back until it comes."""
        held = [*self._open, *entries]
        ended = {entry.get("of") for entry in held if entry.get("kind") == "outcome"}
        waiting = [entry for entry in held if entry.get("kind") == "intent" and entry.get("sequence") not in ended]
        self._open = waiting[-LONGEST_OPEN:]
        waited = {entry.get("sequence") for entry in self._open}
        for one in attempts(entry for entry in held if entry.get("sequence") not in waited):
            self._totals = self._plus(self._totals, one)
            if one.call != POLL and one.of is None:
                self._latest.append(one)

    def _summary(self, written: int) -> Summary:
        totals, waiting = self._totals, attempts(self._open)
        for one in waiting:
            totals = self._plus(totals, one)
        latest = (*self._latest, *(one for one in waiting if one.call != POLL))
        ordered = tuple(sorted(latest, key=lambda one: one.sequence))
        return Summary(written, self._read.count, self._broken, tuple(totals[call] for call in sorted(totals)), ordered)

    def _plus(self, totals: Mapping[str, RecordTotal], one: Attempt) -> Mapping[str, RecordTotal]:
        return {**totals, one.call: totals.get(one.call, RecordTotal(one.call)).plus(one, self._declaration)}


def _advance_cursor(cursor: Cursor, entries: Sequence[Entry]) -> Cursor:
    return replace(cursor, count=cursor.count + len(entries), last=entries[-1]["hash"]) if entries else cursor
