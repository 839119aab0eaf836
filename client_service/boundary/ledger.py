"""Every call to the outside -> an intent and an outcome line in an append-only, hash-chained file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from shared.errors import DataError

GENESIS = "0" * 64
Entry = dict[str, Any]


class Ledger:
    """An intent is on the disk before the first byte leaves; the outcome follows. Entries are never changed.

    Each entry carries the hash of the one before, so that a line that was altered, removed or put in shows.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._count, self._last = self._recover()

    def append(self, kind: str, **fields: Any) -> int:
        """Write one durable entry; its sequence number, from 1."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"sequence": self._count + 1, "time": now, "kind": kind, **fields, "previous": self._last}
        entry["hash"] = _hash(entry)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, separators=(",", ":")) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._count, self._last = self._count + 1, entry["hash"]
        return self._count

    def entries(self, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Entries with a sequence number greater than `after`, oldest first."""
        if not self._path.exists():
            return iter(())
        return islice(self._read(after), limit)

    def verify(self) -> int:
        """The number of entries, if every hash and the chain hold; DataError naming the first line that does not."""
        written = self._count
        count, broken = follow_chain(self.entries())
        if broken is not None:
            raise DataError(f"{self._path}, line {broken}: expected the chain to hold, got another hash")
        if count < written:
            raise DataError(f"{self._path}, line {count + 1}: expected {written} entries, the file ends before")
        return count

    def _read(self, after: int) -> Iterator[Entry]:
        with self._path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for line in islice(file, after, None):
                if line.endswith("\n"):
                    yield _entry(line)

    def _recover(self) -> tuple[int, str]:
        """Where the file ends. A last line that a crash cut off was never acted upon: it is taken away."""
        if not self._path.exists():
            return 0, GENESIS
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with self._path.open("r+b") as file:
                file.truncate(whole)
        count, last = 0, GENESIS
        for entry in self._read(0):
            count, last = count + 1, str(entry.get("hash"))
        return count, last


def follow_chain(entries: Iterable[Entry]) -> tuple[int, int | None]:
    """How many entries the chain from its very beginning has, and the number of the first that breaks it, if any."""
    previous, count = GENESIS, 0
    for count, entry in enumerate(entries, start=1):
        if entry.get("previous") != previous or entry.get("hash") != _hash(entry):
            return count, count
        previous = entry["hash"]
    return count, None


def _entry(line: str) -> Entry:
    """A line that somebody has damaged is an entry without a hash: shown as it is, and found by `verify`."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"damaged": line.rstrip("\n")}


def _hash(entry: Entry) -> str:
    content = {name: value for name, value in entry.items() if name != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
