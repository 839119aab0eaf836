"""Raw entries of the ledger -> rows of the page. An entry may have been damaged: nothing in it is taken on trust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client_service.pages.record import Summary
from shared.web.pages import Verdict

SHOWN = 20
LONGEST = 120  # characters of a text that is shown
WHOLE = Verdict("idle", "", "")


@dataclass(frozen=True)
class JournalRow:
    """`line`: its place in the file. `mark` says so where the chain breaks."""

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
    """One page of the ledger, newest first; `older` and `newer` are where to go on, where there is more."""

    rows: tuple[JournalRow, ...]
    written: int
    older: str | None
    newer: str | None


def journal(entries: Sequence[tuple[int, Mapping[str, Any]]], last: int, summary: Summary) -> Journal:
    """`entries`: newest first, each with its line; the page ends at line `last`."""
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
    """An intent's call and place, the calls that a line counts, an outcome's intent, or what is left of a line."""
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
    """A number of bytes; None where there is none to speak of."""
    return value if type(value) is int and value > 0 else None
