"""Files beneath a part's mounts -> those that should not be there, by their first bytes and not by their names."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from audit.evidence import ProbeResult, make_result
from audit.probes.expected import Expected
from audit.probes.mounts import ENGINE_S, list_places
from audit.probes.recognised import HEAD_BYTES, ROWS, recognise_content
from audit.probes.walk import SeenEntry, WalkResult
from shared.words import count_noun

KIND = "contents"
SOUGHT = ("private key", "token", "Parquet", "Arrow", "SQLite", "arrays", "archive", "rows")
MOST_FILES = 200_000
IMAGE_S = "/"  # the mount of the image's own files, which are not read


@dataclass
class ContentObserver:
    """Opens every file beneath a mount and reads its first bytes. It records the kind of content and the mount, never a
    name."""

    expected: Expected
    found: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    read: int = 0
    closed: int = 0

    def observe_entry(self, entry: SeenEntry) -> None:
        """Read the head of a regular file outside the image, and record its mount where the content should not be
        there."""
        if not entry.is_file or entry.mount == IMAGE_S or self.read > MOST_FILES:
            return
        self.read += 1
        try:
            kind = recognise_content(*_read_head(entry.path))
        except OSError:
            self.closed += 1
            return
        hosts = kind == ROWS and entry.place in ENGINE_S  # names and addresses, as an engine writes them
        if kind is not None and not hosts and not self.expected.may_lie(kind, entry.place):
            self.found[kind].append(entry.mount)

    def probe_results(self, seen: WalkResult) -> Iterator[ProbeResult]:
        """One result for each kind of content that is searched for."""
        closed = f", {count_noun(self.closed, 'file')} closed to it" if self.closed else ""
        rest = f"{count_noun(self.read, 'file')} read{closed}" if self.read <= MOST_FILES else "more than could be read"
        for kind in SOUGHT:
            there = self.found[kind]
            observed = f"{len(there)} at {list_places(there)}" if there else f"none; {rest}"
            held = seen.is_conclusive and not there and self.read <= MOST_FILES
            yield make_result(KIND, kind, "none but in its place", observed, held=held)


def _read_head(path: Path) -> tuple[bytes, int]:
    """The first bytes and the size; a file that has become something else meanwhile is not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        return (file.read(HEAD_BYTES), about.st_size) if stat.S_ISREG(about.st_mode) else (b"", 0)
