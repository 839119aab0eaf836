"""Readers of click session files; an invalid file raises DataError with file and line.

A folder with train_sessions.txt and test.txt, plain or .gz, as the public preprocessing of session data leaves them: a
session a line, and `prefix <tab> target` a line. Or a file with the columns session, time and item, in any format that
is read of interactions.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from client_service.data.id_columns import find_unusable_ids, normalise_ids
from client_service.data.sessions import TEST, TRAIN, VALID
from client_service.data.times import MICROS
from shared.errors import DataError
from simulation.datasets.columns import DEFAULT_OPTIONS, FileOptions
from simulation.datasets.content import file_stem, line_error, read_text, split_lines
from simulation.datasets.load import read_clicks
from simulation.progress import step
from simulation.sessions.sessions import (
    USUAL_RULES,
    SessionRules,
    Sessions,
    hold_out_last,
    keep_supported,
    keep_usual_lengths,
    number_present_items,
)

TRAIN_FILE, TEST_FILE = "train_sessions.txt", "test.txt"
VALID_SHARE, TEST_SHARE = 0.1, 0.1
WORDS = r"\S+"
EXAMPLE = r"^[^\t]*\S[^\t]*\t\s*\S+\s*$"  # clicks, a tab and the next click


@step("reading the sessions")
def read_sessions(
    path: Path, rules: SessionRules = USUAL_RULES, file_options: FileOptions = DEFAULT_OPTIONS
) -> Sessions:
    """Reads sessions of a folder or a file.

    The last tenth of the training sessions is for validation. Items without a training session are left out: no client
    could rank them. Raises DataError without training sessions.
    """
    found = read_session_file(path, rules, file_options) if path.is_file() else read_session_folder(path)
    kept = keep_supported(hold_out_last(keep_usual_lengths(found, rules), VALID_SHARE, VALID), rules)
    if not (kept.splits == TRAIN).any():
        dropped = "; ".join(kept.notes) or "there are none"
        raise DataError(f"{path}: expected sessions of {rules.shortest} to {rules.longest} clicks, {dropped}")
    return number_present_items(kept)


def read_session_folder(folder: Path) -> Sessions:
    """Reads training sessions, and rebuilds test sessions from their prefixes."""
    train, test = _train_sessions(_find_file(folder, TRAIN_FILE)), _test_sessions(_find_file(folder, TEST_FILE))
    splits = np.repeat(np.array([TRAIN, TEST], dtype=np.int8), [len(train), len(test)])
    return _number_items(folder.name, pl.concat([train, test]), splits)


def read_session_file(
    path: Path, rules: SessionRules = USUAL_RULES, file_options: FileOptions = DEFAULT_OPTIONS
) -> Sessions:
    """Reads clicks in the order of time, and splits sessions at pauses.

    A pause of more than `gap_seconds` ends a session. Equal times keep the order of the file. The last tenth is for
    testing.
    """
    clicks, notes = read_clicks(path, file_options)
    ordered = clicks.sort("session", "time", maintain_order=True)
    found = replace(_split_at_gaps(file_stem(path), ordered, rules.gap_seconds), notes=tuple(notes))
    return hold_out_last(found, TEST_SHARE, TEST)


def _split_at_gaps(name: str, table: pl.DataFrame, gap_seconds: float) -> Sessions:
    """Splits clicks into sessions, in the order of their first clicks."""
    times = table["time"].to_numpy()
    changed = (table["session"] != table["session"].shift(1)).fill_null(True).to_numpy().copy()
    changed[1:] |= np.diff(times) > gap_seconds * MICROS
    starts = np.append(np.flatnonzero(changed), len(table))
    items, clicks = _number_ids(table["item"])
    splits = np.full(len(starts) - 1, TRAIN, dtype=np.int8)
    found = Sessions(name, clicks, starts, splits, items)
    return found.select(np.argsort(times[starts[:-1]], kind="stable"))


def _train_sessions(path: Path) -> pl.Series:
    """Returns the items of each line, in order, without empty lines."""
    found = _lines(path).str.extract_all(WORDS)
    return found.filter(found.list.len() > 0)


def _test_sessions(path: Path) -> pl.Series:
    """Rebuilds whole sessions from a file of prefixes.

    A session of l clicks has l - 1 lines, one for each prefix of it, in any order. If a session's lines follow each
    other, longest first, as published files have them, sessions keep their order. Raises DataError if a session
    lacks one of its prefixes.
    """
    lines = _lines(path)
    wrong = (lines.str.strip_chars() != "") & ~lines.str.contains(EXAMPLE)
    if wrong.any():
        raise line_error(path, (wrong.arg_max() or 0) + 1, "expected clicks, a tab and the next click")
    numbered = pl.DataFrame({"line": np.arange(1, len(lines) + 1), "text": lines}).filter(lines.str.strip_chars() != "")
    words = numbered["text"].str.extract_all(WORDS)
    whole = words.list.join(" ")
    shorter = whole.str.replace(r" ?\S+$", "")  # without the last click
    counts = _count_sessions(path, whole, shorter, words.list.len(), numbered["line"])
    heads = (whole != shorter.shift(1)).fill_null(True)
    in_order = whole.filter(heads).value_counts(name="sessions").rename({whole.name or "": "whole"})
    if in_order.sort("whole").equals(counts.filter(pl.col("sessions") > 0).sort("whole")):
        return words.filter(heads)
    table = pl.DataFrame({"whole": whole, "words": words}).with_columns(again=pl.int_range(pl.len()).over("whole"))
    kept = table.join(counts, on="whole", how="left", maintain_order="left").filter(
        pl.col("again") < pl.col("sessions")
    )
    return kept["words"]


def _count_sessions(
    path: Path, whole: pl.Series, shorter: pl.Series, lengths: pl.Series, line: pl.Series
) -> pl.DataFrame:
    """Counts how many sessions end with each prefix, (whole, sessions).

    Of all lines of a prefix those are counted that no longer prefix needs. Some public files have no prefix of one
    click: the shortest that occurs may lack its own.
    """
    prefixes = pl.DataFrame({"whole": whole, "shorter": shorter, "length": lengths, "line": line})
    ending = prefixes.group_by("whole").agg(pl.len().cast(pl.Int64).alias("here"))
    longer = (
        prefixes.filter(pl.col("length") > pl.col("length").min())
        .group_by("shorter")
        .agg(pl.len().cast(pl.Int64).alias("longer"), pl.col("line").min())
    )
    both = ending.join(longer, left_on="whole", right_on="shorter", how="full", coalesce=True)
    both = both.with_columns(sessions=pl.col("here").fill_null(0) - pl.col("longer").fill_null(0))
    missing = both.filter(pl.col("sessions") < 0)
    if len(missing):
        number = int(missing["line"].to_numpy().min())
        raise line_error(path, number, "expected a line for each shorter prefix of the session too, one is missing")
    return both.select("whole", pl.col("sessions").cast(pl.UInt32))


def _lines(path: Path) -> pl.Series:
    """Reads the lines of a file; raises DataError with the line of an invalid id."""
    lines = pl.Series(split_lines(read_text(path)), dtype=pl.String)
    words = lines.str.extract_all(WORDS)
    owners = pl.Series(np.repeat(np.arange(1, len(lines) + 1), words.list.len().to_numpy()))
    if (found := find_unusable_ids(words.explode().drop_nulls())) is not None:
        raise line_error(path, owners[found[0].arg_max() or 0], f"expected {found[1]}")
    return lines


def _find_file(folder: Path, name: str) -> Path:
    plain, packed = folder / name, folder / f"{name}.gz"
    if not plain.is_file() and not packed.is_file():
        raise DataError(f"{folder}: expected {name} or {name}.gz, got neither")
    return plain if plain.is_file() else packed


def _number_items(name: str, sessions: pl.Series, splits: np.ndarray) -> Sessions:
    """Builds sessions from lists of items (S,)."""
    starts = np.append(0, np.cumsum(sessions.list.len().to_numpy().astype(np.int64)))
    items, clicks = _number_ids(sessions.explode())
    return Sessions(name, clicks, starts, splits, items)


def _number_ids(ids: pl.Series) -> tuple[tuple[str, ...], np.ndarray]:
    """Returns the distinct ids, sorted, and the number of each id."""
    ids = normalise_ids(ids)
    known = ids.unique().sort()
    numbers = ids.cast(pl.Enum(known)).to_physical().to_numpy().astype(np.int64)
    return tuple(known.to_list()), numbers
