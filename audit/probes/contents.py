"""Probes for files beneath a part's mounts that should not be there, by content."""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from audit.evidence.evidence import ProbeResult, make_result
from audit.probes.containers import ENGINE_MOUNTS, list_places
from audit.probes.expected import ExpectedMounts
from audit.probes.files import SeenEntry, WalkResult
from shared.words import count_noun

HEAD_BYTES = 4096
PRIVATE_KEY, TOKEN, ROWS = "private key", "token", "rows"
MAGIC = {
    b"PAR1": "Parquet",
    b"SQLite format 3\0": "SQLite",
    b"\x93NUMPY": "arrays",
    b"PK\x03\x04": "archive",  # .npz and what torch saves too
    b"ARROW1": "Arrow",
    b"\x1f\x8b": "archive",
    b"\x28\xb5\x2f\xfd": "archive",
    b"\xfd7zXZ\0": "archive",
    b"BZh": "archive",
    b"7z\xbc\xaf\x27\x1c": "archive",
}
TAR = (257, b"ustar")
KEY_AS_TEXT = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY")
KEY_AS_BYTES = re.compile(
    rb"\x30(?:[\x00-\x7f]|\x81.|\x82..)\x02\x01[\x00\x01]\x30", re.DOTALL
)  # PKCS 8 without its armour
SECRET = re.compile(rb"\s*(?:[0-9a-fA-F]{64}|[A-Za-z0-9_-]{43}=?)\s*")  # 256 bits, as the operators' tokens are
LONGEST_TOKEN = 80
MOST_HEADER = 100 << 20  # bytes of a safetensors head
FEWEST_ROWS, LONGEST_FIELD = 5, 64
SEPARATORS = ("::", "\t", ",", ";", "|")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def recognise_content(head: bytes, size: int) -> str | None:
    """Recognises the kind of a file by its first `HEAD_BYTES` and its size."""
    if known := next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), None):
        return known
    if KEY_AS_TEXT.search(head) or KEY_AS_BYTES.match(head):
        return PRIVATE_KEY
    if size <= LONGEST_TOKEN and SECRET.fullmatch(head):
        return TOKEN
    if head[TAR[0] :].startswith(TAR[1]):
        return "archive"
    if _is_safetensors(head, size):
        return "arrays"
    return ROWS if _has_rows(head, size) else None


def _is_safetensors(head: bytes, size: int) -> bool:
    length = int.from_bytes(head[:8], "little")
    return head[8:10] == b'{"' and 2 <= length <= min(MOST_HEADER, size - 8)


def _has_rows(head: bytes, size: int) -> bool:
    """Tells whether text has lines of one shape: a table, or JSON objects."""
    try:
        text = head.decode("utf-8") if size <= len(head) else head.decode("utf-8", errors="ignore")
    except UnicodeDecodeError:
        return False
    lines = text.splitlines()
    lines = [line for line in (lines if size <= len(head) else lines[:-1]) if line.strip()]
    if len(lines) < FEWEST_ROWS or "\0" in text:
        return False
    return all(line.startswith('{"') for line in lines) or any(_is_table(lines, sign) for sign in SEPARATORS)


def _is_table(lines: list[str], separator: str) -> bool:
    """Tells whether lines have equally many short fields and a column of numbers.

    The first line may be a header.
    """
    rows = [[field.strip().strip('"') for field in line.split(separator)] for line in lines]
    same = len(rows[0]) > 1 and all(len(row) == len(rows[0]) for row in rows)
    if not same or any(len(field) > LONGEST_FIELD for row in rows for field in row):
        return False
    columns = zip(*rows[1:], strict=True)
    return any(all(NUMBER.fullmatch(field) for field in column) or _has_ids(column) for column in columns)


def _has_ids(column: tuple[str, ...]) -> bool:
    """Tells whether fields are words with digits and without spaces: `user-00006`."""
    return all(" " not in field and any(sign.isdigit() for sign in field) for field in column)


KIND = "contents"
SEARCHED_KINDS = ("private key", "token", "Parquet", "Arrow", "SQLite", "arrays", "archive", "rows")
MOST_FILES = 200_000
IMAGE_MOUNT = "/"  # the mount of the image's own files, which are not read


@dataclass
class ContentObserver:
    """Observer that reads the first bytes of every file beneath a mount.

    It records the kind of content and the mount, never a name.
    """

    expected: ExpectedMounts
    found: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    read: int = 0
    closed: int = 0

    def observe_entry(self, entry: SeenEntry) -> None:
        """Reads a file's head, and records its mount where the content is unexpected.

        Files of the image are not read.
        """
        if not entry.is_file or entry.mount == IMAGE_MOUNT or self.read > MOST_FILES:
            return
        self.read += 1
        try:
            kind = recognise_content(*_read_head(entry.path))
        except OSError:
            self.closed += 1
            return
        hosts = kind == ROWS and entry.place in ENGINE_MOUNTS  # names and addresses, as an engine writes them
        if kind is not None and not hosts and not self.expected.may_lie(kind, entry.place):
            self.found[kind].append(entry.mount)

    def probe_results(self, seen: WalkResult) -> Iterator[ProbeResult]:
        """Yields one result for each kind of content that is searched for."""
        closed = f", {count_noun(self.closed, 'file')} closed to it" if self.closed else ""
        rest = f"{count_noun(self.read, 'file')} read{closed}" if self.read <= MOST_FILES else "more than could be read"
        for kind in SEARCHED_KINDS:
            there = self.found[kind]
            observed = f"{len(there)} at {list_places(there)}" if there else f"none; {rest}"
            held = seen.is_conclusive and not there and self.read <= MOST_FILES
            yield make_result(KIND, kind, "none but in its place", observed, held=held)


def _read_head(path: Path) -> tuple[bytes, int]:
    """Returns a file's first bytes and size, without waiting for a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        return (file.read(HEAD_BYTES), about.st_size) if stat.S_ISREG(about.st_mode) else (b"", 0)
