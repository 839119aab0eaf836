"""Ledger of all calls to the outside: an append-only file of hash-chained entries."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from shared.errors import DataError
from shared.files import sync_path
from shared.protocol.signing.requests import NONCE_BYTES

LEDGER = "ledger.jsonl"  # in a client's state directory
GENESIS = "0" * 64
INTENT = "intent"  # kind of the entry that is written before a call
STRIDE = 256  # entries between two places that are remembered, so that reading may begin anywhere
Entry = dict[str, Any]
FileState = tuple[int, int, int]  # inode, size and change time
ENCODE = json.JSONEncoder(separators=(",", ":")).encode  # made once: it takes as long as to use it
ENCODE_SORTED = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True)
class _VerifiedPrefix:
    """First entries whose chain was verified.

    changes: how many changes of the file by other processes were seen by then.
    """

    count: int = 0
    last: str = GENESIS
    changes: int = 0


class Ledger:
    """Append-only file of entries; an intent is durable before its call leaves, the outcome follows.

    Each entry has the hash of the one before, so that an altered, removed or inserted line is detected.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._offsets = [0]  # the byte at which every STRIDE-th entry begins
        self._count, self._last, end = self._read_end()
        self._require_complete()
        self._cut_torn_line(end)
        self._verified, self._changes = _VerifiedPrefix(), 0
        self._stamp: FileState | None = self._file_state()
        self._second, self._synced = 0, True

    def __len__(self) -> int:
        """Counts the entries."""
        return self._count

    @property
    def last_hash(self) -> str:
        """Hash of the last entry; GENESIS before the first."""
        return self._last

    @property
    def last_second(self) -> int:
        """Time of the last entry of this process, in whole seconds since 1970."""
        return self._second

    def append(self, kind: str, *, durable: bool = True, durable_head: bool = False, **fields: Any) -> int:
        """Writes one durable entry, and returns its sequence number, from 1.

        An intent has the second of its time in `created`, which signs its call. durable: False leaves that to the next
        durable entry, or to `sync`. `durable_head`: see `HeadedLedger`.
        """
        del durable_head
        moment = datetime.now(UTC)
        self._second = int(moment.timestamp())
        now = moment.isoformat(timespec="milliseconds")
        if kind == INTENT:
            fields["created"] = self._second
        entry: Entry = {"sequence": self._count + 1, "time": now, "kind": kind, **fields, "previous": self._last}
        entry |= self._extra_fields(entry)
        entry["hash"] = hash_entry(entry)
        if self._file_state() != self._stamp:  # changed by another process
            self._changes += 1
        end = self._write_line((ENCODE(entry) + "\n").encode(), durable=durable)
        self._count, self._last = self._count + 1, entry["hash"]
        self._index_entry(self._count, end)
        return self._count

    def _write_line(self, line: bytes, *, durable: bool) -> int:
        """Appends a line, and returns the file's length."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if durable:
                os.fsync(descriptor)
            self._stamp, self._synced = _identify_file(os.fstat(descriptor)), durable
            return self._stamp[1]
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """Makes entries durable that `append` has left to the next one."""
        if not self._synced:
            sync_path(self._path)
            self._synced = True

    def knows_nonce(self, nonce: str) -> bool:
        """Tells whether a nonce signed an entry's request, or belongs to a given-up update."""
        named = (parse_entry(line) for line in read_lines(self._path) if nonce.encode() in line)
        return any(nonce in (entry_nonce(str(entry.get("hash"))), entry.get("gave_up")) for entry in named)

    def entries(self, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Yields entries with a sequence number greater than `after`, oldest first.

        The cost does not depend on where they lie.
        """
        if not self._path.exists():
            return iter(())
        return islice(self._read(after), limit)

    def verify(self) -> int:
        """Checks every hash and the chain, and counts the entries.

        Raises DataError that names the first line that does not hold. Verified entries are not read again while the
        file is as this process left it; after any other change, even one of the same size, all are.
        """
        written, changes = self._count, self._changes
        untouched = self._file_state() == self._stamp
        verified = self._verified if untouched and self._verified.changes == changes else _VerifiedPrefix()
        count, last = verified.count, verified.last
        for entry in self.entries(count):
            if not _is_next_entry(entry, last):
                raise DataError(f"{self._path}, line {count + 1}: expected the chain to hold, got another hash")
            count, last = count + 1, entry["hash"]
        if count < written:
            raise DataError(f"{self._path}, line {count + 1}: expected {written} entries, the file ends before")
        if untouched and self._file_state() == self._stamp:
            self._verified = _VerifiedPrefix(count, last, changes)
        return count

    def _read(self, after: int) -> Iterator[Entry]:
        with self._path.open("rb") as file:
            for line in islice(file, self._seek(file, after), None):
                if line.endswith(b"\n"):
                    yield parse_entry(line)

    def _seek(self, file: BinaryIO, after: int) -> int:
        """Moves to an indexed place, and returns how many entries to skip.

        It is the last place before entry `after`. Where no line begins there, the file was changed by another
        process: counting begins at its start.
        """
        number = min(after // STRIDE, len(self._offsets) - 1)
        file.seek(max(0, self._offsets[number] - 1))
        if number and file.read(1) != b"\n":
            number = 0
            file.seek(0)
        return after - number * STRIDE

    def _file_state(self) -> FileState | None:
        """Returns what changes with the file: its inode, size and change time."""
        try:
            return _identify_file(os.stat(self._path))
        except FileNotFoundError:
            return None

    def _index_entry(self, count: int, end: int) -> None:
        if count % STRIDE == 0:
            self._offsets.append(end)

    def _read_end(self) -> tuple[int, str, int]:
        """Returns the number of whole entries, the last hash, and their end in bytes."""
        if not self._path.exists():
            return 0, GENESIS, 0
        count, end, last = 0, 0, b""
        with self._path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                count, end, last = count + 1, end + len(line), line
                self._index_entry(count, end)
        return count, str(parse_entry(last).get("hash")) if count else GENESIS, end

    def _extra_fields(self, entry: Entry) -> Mapping[str, Any]:
        """Returns further fields of an entry; none in this class."""
        del entry
        return {}

    def _require_complete(self) -> None:
        """Checks the end of the file against other records; this class has no other records.

        Raises DataError, before anything is changed, where entries are missing.
        """

    def _cut_torn_line(self, end: int) -> None:
        """Removes a last line that a crash cut off; its call was never made."""
        if self._path.exists() and self._path.stat().st_size > end:
            os.truncate(self._path, end)


def _identify_file(found: os.stat_result) -> FileState:
    return found.st_ino, found.st_size, found.st_ctime_ns


def read_lines(path: Path) -> Iterator[bytes]:
    """Yields each whole line of a ledger's file, none without a file."""
    if path.exists():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def follow_chain(entries: Iterable[Entry], previous: str = GENESIS) -> tuple[int, int | None]:
    """Counts a chain's entries, and finds the first that breaks it.

    Returns the count, and the number of that entry or None. `previous`: hash before the first entry; by default that
    of a new ledger.
    """
    count = 0
    for count, entry in enumerate(entries, start=1):
        if not _is_next_entry(entry, previous):
            return count, count
        previous = entry["hash"]
    return count, None


def entry_nonce(digest: str) -> str:
    """Returns the nonce that signs an entry's request; each is used once."""
    return digest[: 2 * NONCE_BYTES]


def has_hash(entry: Entry, digest: str) -> bool:
    """Tells whether an entry has this hash and was not changed since."""
    return bool(entry.get("hash") == digest == hash_entry(entry))


def _is_next_entry(entry: Entry, previous: str) -> bool:
    return entry.get("previous") == previous and has_hash(entry, str(entry.get("hash")))


def parse_entry(line: bytes) -> Entry:
    """Parses a line.

    A damaged line becomes an entry without a hash, which `Ledger.verify` finds.
    """
    text = line.decode("utf-8", "replace")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"damaged": text.rstrip("\n")}


def hash_entry(entry: Entry) -> str:
    """Computes the hash over an entry without its own hash field."""
    content = {name: value for name, value in entry.items() if name != "hash"}
    return hashlib.sha256(ENCODE_SORTED(content).encode()).hexdigest()
