"""Separated text, with and without a header -> a Table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from simulation.datasets.content import line_error, read_text, split_lines
from simulation.datasets.tables import Table, row_lines, table_of_fields

RATING = ("user", "item", "rating", "timestamp")
FIELDS_OF_U_ITEM = 24  # id, title, two dates, a link and 19 genre flags
UNIT = "\x1f"  # ASCII's own separator of fields; lists of lists would take polars five times as long


def read_ratings(path: Path) -> Table:
    """MovieLens' `user::item::rating::timestamp`, or the same fields between tabs or commas."""
    whole = read_text(path)
    first = whole.partition("\n")[0]
    separator = next((mark for mark in ("::", "\t", ",") if mark in first), None)
    if separator is None:
        raise line_error(path, 1, "expected fields separated by '::', tabs or commas, got none of these")
    return _without_header(path, whole, separator, RATING)


def read_csv(path: Path) -> Table:
    """Comma-separated values whose first line names the columns."""
    return _with_header(path, ",")


def read_recbole(path: Path) -> Table:
    """RecBole's `.inter` and `.item`: tabs between fields, and a header of names with types (`user_id:token`)."""
    return _with_header(path, "\t")


def read_movie_titles(path: Path) -> Table:
    """MovieLens' `movies.dat`: `item::title::genres`, in latin-1 in some editions."""
    return _without_header(path, read_text(path, latin=True), "::", ("item", "title", "genres"))


def read_u_item(path: Path) -> Table:
    """MovieLens 100k's `u.item`: 24 fields between bars, of which the first two are the item and its title."""
    names = ("item", "title", *("other",) * (FIELDS_OF_U_ITEM - 2))
    return _without_header(path, read_text(path, latin=True), "|", names)


def _without_header(path: Path, whole: str, separator: str, names: Sequence[str]) -> Table:
    """Text without quoting; `names` are the fields that every line must have."""
    line, records = _split_plain(whole, separator)
    return table_of_fields(path, names, records, line)


def _with_header(path: Path, separator: str) -> Table:
    whole = read_text(path)
    quoted = separator == "," and '"' in whole
    line, records = _split_quoted(path, whole) if quoted else _split_plain(whole, separator)
    names = [name.strip().partition(":")[0].lower() for name in records[0]]
    return table_of_fields(path, names, records[1:], line[1:])


def _split_plain(whole: str, separator: str) -> tuple[pl.Series, pl.Series]:
    """Each line's number and its fields."""
    rows = split_lines(whole)
    return row_lines(len(rows)), pl.Series(rows, dtype=pl.String).str.split(separator)


def _split_quoted(path: Path, whole: str) -> tuple[pl.Series, pl.Series]:
    """Records that may hold separators and line ends between quotes; each with the line on which it ends."""
    reader = csv.reader(io.StringIO(whole.rstrip("\r\n"), newline=""), strict=True)
    numbers, records = [], []
    try:
        for record in reader:
            numbers.append(reader.line_num)
            records.append(UNIT.join(record))
    except csv.Error:
        raise line_error(path, reader.line_num, "expected paired quotes, got one misplaced or not closed") from None
    return pl.Series(numbers), pl.Series(records, dtype=pl.String).str.split(UNIT)
