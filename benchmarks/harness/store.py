"""Lines of results.jsonl, one per measured cell, appended and never rewritten.

Cells in it are not run again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.cells import Cell, Settings, settings_hash
from benchmarks.harness.plan import REVISION
from shared.errors import DataError

Line = dict[str, Any]
FILE = "results.jsonl"
OWN, SHARED = "own", "shared"  # cache of a cell: its own, or shared by cells with these shards


def read_lines(path: Path) -> list[Line]:
    """Reads all complete lines; raises DataError for an invalid one.

    The remains of a crash after the last line end are ignored.
    """
    if not path.exists():
        return []
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
    lines = []
    for number, text in enumerate(whole.splitlines(), start=1):
        try:
            lines.append(json.loads(text))
        except ValueError:
            raise DataError(
                f"{path}, line {number}: expected JSON written by a benchmark, got something else"
            ) from None
    return lines


def append_line(path: Path, line: Line) -> None:
    """Appends one line durably, after removing an incomplete last line.

    A lock excludes other commands.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        file.seek(0)
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
        file.write((json.dumps(line, sort_keys=True) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


NOTHING = (0, 0.0, False, None, "", "off", "none")  # values at which most settings have no effect
BEFORE = {  # earlier values of the others, before there was a choice
    "aggregate": "mean",
    "krum_kept": 1,
    "basis.least_silos": 3,
    "basis.delta": 1e-5,
}


OPEN = {"similarity_floor": 0.0}  # value of the unset setting in open runs, as lines were measured


class KnownLines:
    """Lines of several tables by the identity of their cells, which tables share."""

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self._lines: dict[str, list[Line]] = {}
        for line in lines:
            self.add_line(line)

    def add_line(self, line: Line) -> None:
        """Adds a measured line, the newest of its identity."""
        self._lines.setdefault(line["identity"], []).append(line)

    def find_line(self, cell: Cell, digests: Callable[[], Sequence[str]] | None = None) -> Line | None:
        """Finds the newest line of a cell.

        digests: of its current shards, computed where a line has some; without them a line fits any shards.
        """
        candidates = self._lines.get(cell.identity(), []) if cell.method is not None else []
        fitting = [line for line in candidates if _line_fits(line, cell)]
        if digests is not None:
            fitting = [line for line in fitting if "digests" not in line or line["digests"] == list(digests())]
        return fitting[-1] if fitting else None


def _line_fits(line: Line, cell: Cell) -> bool:
    """Tells whether a line has the revision, settings, groups and times of a cell."""
    asked = (not cell.groups or _has_groups(line)) and (not cell.timed or _is_timed(line))
    settings = cell.outcome_settings()
    if not line.get("masks"):
        settings = OPEN | settings
    return asked and line.get("revision") == REVISION and has_settings(line, settings)


def has_settings(line: Line, settings: Settings) -> bool:
    """Tells whether a line was measured with these settings.

    A setting that is younger than the line must have the value that all earlier lines had.
    """
    names = line["settings"]
    if not names.keys() <= settings.keys():
        return False
    younger = {name: value for name, value in settings.items() if name not in names}
    same: bool = line["hash"] == settings_hash({name: settings[name] for name in names})
    return same and all(value in (*NOTHING, BEFORE.get(name)) for name, value in younger.items())


def _has_groups(line: Line) -> bool:
    rows = line["floors"].values() if "floors" in line else [line["clients"]]
    return all("groups" in client for row in rows if row for client in row)


def _is_timed(line: Line) -> bool:
    """Tells whether a line was measured alone, with a cache of its own."""
    return line.get("jobs") == 1 and line.get("cache") == OWN


def read_known(root: Path) -> KnownLines:
    """Reads the results of all tables below `root`."""
    lines = (line for path in sorted(root.glob(f"*/{FILE}")) for line in read_lines(path))
    return KnownLines(
        line for line in lines if "identity" in line
    )  # the others are of tables that a run.py measures alone


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    """Replaces all lines of a file at once."""
    partial = path.with_suffix(".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines), encoding="utf-8")
    partial.replace(path)
