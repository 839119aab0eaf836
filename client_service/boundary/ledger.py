"""Every call to the outside -> an intent and an outcome line in an append-only, hash-chained file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from shared.errors import DataError

GENESIS = "0" * 64
STRIDE = 256  # entries between two places that are remembered, so that reading may begin anywhere
Entry = dict[str, Any]


@dataclass(frozen=True)
class _Held:
    """The first entries, whose chain was seen to hold, and by then how many changes of the file were not ours."""

    count: int = 0
    last: str = GENESIS
    changes: int = 0


class Ledger:
    """An intent is on the disk before the first byte leaves; the outcome follows. Entries are never changed.

    Each entry carries the hash of the one before, so that a line that was altered, removed or put in shows.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._places = [0]  # the byte at which every STRIDE-th entry begins
        self._count, self._last = self._recover()
        self._held, self._changes, self._stamp = _Held(), 0, self._look()

    def __len__(self) -> int:
        """Entries that have been written."""
        return self._count

    def append(self, kind: str, **fields: Any) -> int:
        """Write one durable entry; its sequence number, from 1."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"sequence": self._count + 1, "time": now, "kind": kind, **fields, "previous": self._last}
        entry["hash"] = _hash(entry)
        if self._look() != self._stamp:  # not by us
            self._changes += 1
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, separators=(",", ":")) + "\n")
            file.flush()
            os.fsync(file.fileno())
            end = file.tell()
        self._stamp = self._look()
        self._count, self._last = self._count + 1, entry["hash"]
        self._remember(self._count, end)
        return self._count

    def entries(self, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Entries with a sequence number greater than `after`, oldest first. It costs the same wherever they lie."""
        if not self._path.exists():
            return iter(())
        return islice(self._read(after), limit)

    def verify(self) -> int:
        """The number of entries, if every hash and the chain hold; DataError naming the first line that does not.

        Entries that held before are not read again while the file is as our own last entry left it. After any other
        change, one that left its size as it was too, all are.
        """
        written, changes = self._count, self._changes
        untouched = self._look() == self._stamp
        held = self._held if untouched and self._held.changes == changes else _Held()
        count, last = held.count, held.last
        for entry in self.entries(count):
            if not _follows(entry, last):
                raise DataError(f"{self._path}, line {count + 1}: expected the chain to hold, got another hash")
            count, last = count + 1, entry["hash"]
        if count < written:
            raise DataError(f"{self._path}, line {count + 1}: expected {written} entries, the file ends before")
        if untouched and self._look() == self._stamp:
            self._held = _Held(count, last, changes)
        return count

    def _read(self, after: int) -> Iterator[Entry]:
        with self._path.open("rb") as file:
            for line in islice(file, self._seek(file, after), None):
                if line.endswith(b"\n"):
                    yield _entry(line)

    def _seek(self, file: BinaryIO, after: int) -> int:
        """Go to the last remembered place before entry `after`; how many entries are still to be passed over.

        Where no line begins there, somebody has changed the file, and only counting from its beginning helps.
        """
        number = min(after // STRIDE, len(self._places) - 1)
        file.seek(max(0, self._places[number] - 1))
        if number and file.read(1) != b"\n":
            number = 0
            file.seek(0)
        return after - number * STRIDE

    def _look(self) -> tuple[int, ...] | None:
        """What another change of the file is seen by: which file it is, its size, and when the system saw it change."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_ctime_ns

    def _remember(self, count: int, end: int) -> None:
        if count % STRIDE == 0:
            self._places.append(end)

    def _recover(self) -> tuple[int, str]:
        """Where the file ends. A last line that a crash cut off was never acted upon: it is taken away."""
        if not self._path.exists():
            return 0, GENESIS
        count, end, last, line = 0, 0, b"", b""
        with self._path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                count, end, last = count + 1, end + len(line), line
                self._remember(count, end)
        if line and not line.endswith(b"\n"):
            os.truncate(self._path, end)
        return count, str(_entry(last).get("hash")) if count else GENESIS


def follow_chain(entries: Iterable[Entry], previous: str = GENESIS) -> tuple[int, int | None]:
    """How many entries the chain has, and the number of the first that breaks it, if any.

    `previous`: the hash before the first of them; by default that of a ledger's very beginning.
    """
    count = 0
    for count, entry in enumerate(entries, start=1):
        if not _follows(entry, previous):
            return count, count
        previous = entry["hash"]
    return count, None


def _follows(entry: Entry, previous: str) -> bool:
    return entry.get("previous") == previous and bool(entry.get("hash") == _hash(entry))


def _entry(line: bytes) -> Entry:
    """A line that somebody has damaged is an entry without a hash: shown as it is, and found by `verify`."""
    text = line.decode("utf-8", "replace")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"damaged": text.rstrip("\n")}


def _hash(entry: Entry) -> str:
    content = {name: value for name, value in entry.items() if name != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
