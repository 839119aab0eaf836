"""Readers of separated text, with and without a header."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from client_service.data.files import require_text_memory
from client_service.data.ids import BLANKS
from simulation.datasets.columns import DEFAULT_OPTIONS, FileOptions
from simulation.datasets.content import format_extension, line_error, read_text, split_lines
from simulation.datasets.tables import MOST_NAMES, Table, require_no_delimiter, row_lines, table_of_fields

RATING = ("user", "item", "rating", "timestamp")
GENRES_OF_U_ITEM = (  # after id, title, two dates and a link; u.genre names them
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama"),
    *("Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
DELIMITERS = (",", ";", "\t", "|")  # in a header with as many of two the first counts
QUOTING = ("csv", "tsv")  # formats in which quotes may stand around a field
UNIT = "\x1f"  # ASCII's own separator of fields; lists of lists would take polars five times as long


def read_ratings(path: Path, file_options: FileOptions) -> Table:
    """Reads MovieLens' `user::item::rating::timestamp`, also with tabs or commas."""
    whole = read_text(path)
    first = whole.partition("\n")[0]
    separator = next((mark for mark in ("::", "\t", ",") if mark in first), None)
    if separator is None:
        raise line_error(path, 1, "expected fields separated by '::', tabs or commas, got none of these")
    return _without_header(path, whole, file_options.delimiter or separator, RATING)


def read_csv(path: Path, file_options: FileOptions) -> Table:
    """Reads values with a header line.

    They are separated by commas, semicolons, tabs or bars, the most frequent one.
    """
    whole = read_text(path)
    return _with_header(path, whole, file_options.delimiter or _find_delimiter(whole.partition("\n")[0]), file_options)


def read_recbole(path: Path, file_options: FileOptions) -> Table:
    """Reads RecBole's `.inter` and `.item`: tabs, and names with types (`user_id:token`)."""
    whole = read_text(path)
    table = _with_header(path, whole, file_options.delimiter or "\t", file_options)
    kinds = {
        name.lower(): kind for name, _, kind in (one.partition(":") for one in whole.partition("\n")[0].split("\t"))
    }
    lists = [name for name in table.columns if kinds.get(name) == "token_seq" and file_options.is_attribute(name)]
    return replace(
        table, columns=table.columns | {name: table.columns[name].str.replace_all(" ", "|") for name in lists}
    )


def read_json_lines(path: Path, file_options: FileOptions) -> Table:
    """Reads one JSON object a line, whose keys name the columns.

    Numbers keep all their digits; lists and objects are not read.
    """
    require_no_delimiter(path, file_options)
    whole = read_text(path)
    require_text_memory(path, whole, ":")
    numbers: list[int] = []
    wanted: dict[str, list[str | None]] = {}
    others: dict[str, None] = {}
    for number, line in enumerate(split_lines(whole), 1):
        if not line.strip():
            continue
        record = _parse_object(path, number, line)  # and not kept: it takes twenty times its line
        for name in record:
            if name not in wanted and name not in others:
                if file_options.is_read(name.strip().lower()):
                    wanted[name] = [None] * len(numbers)
                else:
                    others[name] = None
        numbers.append(number)
        for name, values in wanted.items():
            values.append(_text_of(record.get(name), joined=file_options.is_attribute(name.strip().lower())))
    columns = {
        name.strip().lower(): pl.Series(values, dtype=pl.String).str.strip_chars() for name, values in wanted.items()
    }
    has_names = len(wanted) + len(others) <= MOST_NAMES
    unread = tuple(name.lower() for name in others)
    return Table(path, columns, pl.Series(numbers), file_options, unread, has_names)


def _parse_object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line, parse_int=str, parse_float=str, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise line_error(path, number, "expected a JSON object a line, got something else")
    return found


def _text_of(value: Any, *, joined: bool) -> str | None:
    """Converts a string or a Boolean to text; None for other values.

    joined: a list of strings too, with bars between them.
    """
    if joined and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return "|".join(value)
    if isinstance(value, bool):
        return "1" if value else "0"
    return value if isinstance(value, str) else None


def _find_delimiter(header: str) -> str:
    return max(DELIMITERS, key=header.count)


def read_movie_titles(path: Path, file_options: FileOptions) -> Table:
    """Reads MovieLens' `movies.dat`: `item::title::genres`, in latin-1 in some editions."""
    return _without_header(path, read_text(path, latin=True), "::", ("item", "title", "genres"), file_options)


def read_u_item(path: Path, file_options: FileOptions) -> Table:
    """Reads the items of MovieLens 100k from `u.item`.

    Its 24 fields between bars are the item, its title, three others and 19 marks of genres.
    """
    whole = read_text(path, latin=True)
    names = ("item", "title", *("other",) * 3, *GENRES_OF_U_ITEM)
    table = _without_header(path, whole, "|", names, file_options)
    if "genres" not in file_options.attributes:
        return table
    marks = _split_plain(whole, "|")[1]
    genres = pl.DataFrame(
        {name: marks.list.get(place) == "1" for place, name in enumerate(GENRES_OF_U_ITEM, 5) if name != "unknown"}
    )
    named = genres.select(
        pl.concat_str(
            [pl.when(pl.col(name)).then(pl.lit(name)) for name in genres.columns], separator="|", ignore_nulls=True
        )
    )
    return replace(table, columns=table.columns | {"genres": named.to_series()})


def _without_header(
    path: Path, whole: str, separator: str, names: Sequence[str], file_options: FileOptions = DEFAULT_OPTIONS
) -> Table:
    """Reads text without quoting and header; `names` are the fields of every line."""
    require_text_memory(path, whole, separator)
    line, records = _split_plain(whole, separator)
    return table_of_fields(path, names, records, line, file_options)


def _with_header(path: Path, whole: str, separator: str, file_options: FileOptions) -> Table:
    require_text_memory(path, whole, separator)
    quoted = format_extension(path) in QUOTING and '"' in whole
    line, records = _split_quoted(path, whole, separator) if quoted else _split_plain(whole, separator)
    names = [name.strip(BLANKS).partition(":")[0].lower() for name in records[0]]
    return table_of_fields(path, names, records[1:], line[1:], file_options)


def _split_plain(whole: str, separator: str) -> tuple[pl.Series, pl.Series]:
    """Returns each line's number and its fields."""
    rows = split_lines(whole)
    return row_lines(len(rows)), pl.Series(rows, dtype=pl.String).str.split(separator)


def _split_quoted(path: Path, whole: str, separator: str) -> tuple[pl.Series, pl.Series]:
    """Returns records that may hold quoted separators and line ends, each with its last line."""
    reader = csv.reader(io.StringIO(whole.rstrip("\r\n"), newline=""), delimiter=separator, strict=True)
    numbers, records = [], []
    try:
        for record in reader:
            numbers.append(reader.line_num)
            records.append(UNIT.join(record))
    except csv.Error:
        raise line_error(path, reader.line_num, "expected paired quotes, got one misplaced or not closed") from None
    return pl.Series(numbers), pl.Series(records, dtype=pl.String).str.split(UNIT)
