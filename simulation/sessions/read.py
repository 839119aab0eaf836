"""Files of click sessions -> Sessions. DataError with file and line for what is none.

A folder with train_sessions.txt and test.txt, plain or .gz, as the public preprocessing of session data leaves them: a
session a line, and `prefix <tab> target` a line. A CSV file with columns session, time, item.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from client_service.sessions.shard import TEST, TRAIN, VALID
from shared.errors import DataError
from simulation.sessions.sessions import Sessions, hold_out_last, keep_usual_lengths, only_known_items

TRAIN_FILE, TEST_FILE = "train_sessions.txt", "test.txt"
COLUMNS = ("session", "time", "item")
VALID_SHARE, TEST_SHARE = 0.1, 0.1
GAP_SECONDS = 1800.0


def read_sessions(path: Path, *, every_length: bool = False) -> Sessions:
    """Of a folder or a CSV file; the last tenth of the training sessions is for validation.

    every_length: keep sessions of more than 20 clicks too, as published figures of centralised models do.
    """
    found = read_session_table(path) if path.is_file() else read_session_folder(path)
    usual = found if every_length else keep_usual_lengths(found)
    return only_known_items(hold_out_last(usual, VALID_SHARE, VALID))


def read_session_folder(folder: Path) -> Sessions:
    """Training sessions, and the test sessions that the test file's lines are the prefixes of."""
    train = [line.split() for line in _lines(folder, TRAIN_FILE)]
    test = list(_whole_sessions(_test_lines(folder)))
    if not train:
        raise DataError(f"{folder / TRAIN_FILE}: expected a session a line, got an empty file")
    return _number(folder.name, [*train, *test], np.repeat([TRAIN, TEST], [len(train), len(test)]))


def read_session_table(path: Path, *, gap_seconds: float = GAP_SECONDS) -> Sessions:
    """Clicks in the order of time; a pause of more than `gap_seconds` ends a session. The last tenth is for testing."""
    table = pl.read_csv(path, infer_schema_length=0)
    if tuple(table.columns[:3]) != COLUMNS:
        raise DataError(f"{path}: expected columns {', '.join(COLUMNS)}, got {', '.join(table.columns)}")
    times = table["time"].cast(pl.Float64, strict=False)
    if (bad := times.is_null().arg_max()) is not None and times.is_null().any():
        raise DataError(f"{path}, line {bad + 2}: expected a time in seconds, got {table['time'][bad]!r}")
    ordered = table.with_columns(time=times).sort("session", "time", maintain_order=True)
    return hold_out_last(_split_at_gaps(path.stem, ordered, gap_seconds), TEST_SHARE, TEST)


def _split_at_gaps(name: str, table: pl.DataFrame, gap_seconds: float) -> Sessions:
    """Sessions in the order of their first clicks."""
    session, times = table["session"].to_numpy(), table["time"].to_numpy()
    begins = np.ones(len(table), dtype=bool)
    begins[1:] = (session[1:] != session[:-1]) | (np.diff(times) > gap_seconds)
    starts = np.concatenate([np.flatnonzero(begins), [len(table)]])
    items, clicks = np.unique(table["item"].to_numpy().astype(str), return_inverse=True)
    splits = np.full(len(starts) - 1, TRAIN, dtype=np.int8)
    found = Sessions(name, clicks.astype(np.int64), starts, splits, tuple(items.tolist()))
    return found.select(np.argsort(times[starts[:-1]], kind="stable"))


def _whole_sessions(lines: Iterable[list[str]]) -> Iterator[list[str]]:
    """Of a session's prefixes, longest first, the whole session alone."""
    prefix: list[str] = []
    for line in lines:
        if line != prefix:
            yield line
        prefix = line[:-1]


def _test_lines(folder: Path) -> Iterator[list[str]]:
    for number, line in enumerate(_lines(folder, TEST_FILE), start=1):
        prefix, tab, target = line.partition("\t")
        if not tab or not prefix.strip() or not target.strip():
            raise DataError(f"{folder / TEST_FILE}, line {number}: expected clicks, a tab and the next click")
        yield [*prefix.split(), target.strip()]


def _lines(folder: Path, name: str) -> Iterator[str]:
    """Without empty ones."""
    plain, packed = folder / name, folder / f"{name}.gz"
    if not plain.is_file() and not packed.is_file():
        raise DataError(f"{folder}: expected {name} or {name}.gz, got neither")
    with plain.open(encoding="utf-8") if plain.is_file() else gzip.open(packed, "rt", encoding="utf-8") as file:
        yield from (line.rstrip("\n") for line in file if line.strip())


def _number(name: str, sessions: list[list[str]], splits: np.ndarray) -> Sessions:
    """Items get numbers in the order of their ids."""
    lengths = np.fromiter(map(len, sessions), dtype=np.int64, count=len(sessions))
    items, clicks = np.unique(np.array([item for one in sessions for item in one]), return_inverse=True)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Sessions(name, clicks.astype(np.int64), starts, splits.astype(np.int8), tuple(items.tolist()))
