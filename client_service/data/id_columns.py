"""Reads columns and lists of ids, in the normalised spelling of `ids.py`."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

import polars as pl

from client_service.data.files import read_bytes, read_lines, unpack_content
from client_service.data.ids import (
    BLANKS,
    LONGEST_ID,
    MISSING,
    NO_ID,
    TOO_LONG,
    UNPRINTED,
    WHOLE_FLOAT,
    WITH_CONTROLS,
)
from client_service.data.tables import parse_foreign_table
from shared.errors import DataError

EXACT: Final = {pl.Float64: 2**53, pl.Float32: 2**24}  # largest number up to which floats hold each whole number
LISTED: Final = {  # names of columns, in lower case
    "user": ("user", "users", "user_id", "userid", "user id"),
    "item": ("item", "items", "item_id", "itemid", "item id", "movie", "movie_id", "movieid"),
}
SEPARATORS: Final = ",;\t"
SEVERAL: Final = re.compile(r",|;|\t|::")
QUOTED: Final = re.compile(r'"(?:[^"]|"")*"')


def normalise_ids(ids: pl.Series) -> pl.Series:
    """Normalises the spelling of each id of a column of text.

    Blanks alone become "", and null stays null.
    """
    ids = ids.str.strip_chars(BLANKS)
    if bool((ids.str.len_bytes() != ids.str.len_chars()).any()):
        ids = ids.str.normalize("NFC")
    if bool(ids.str.ends_with(".0").any()):
        ids = ids.str.replace(WHOLE_FLOAT, "${1}${2}")
    return ids


def read_id_column(column: pl.Series) -> pl.Series | None:
    """Reads a column as ids in their normalised spelling; None for another type.

    The column holds text, categories, whole numbers or floats. A missing id is null, and NaN counts as missing.
    ValueError for floats beyond those that hold each whole number.
    """
    if column.dtype in EXACT:
        column = column.fill_nan(None)
        largest = float(column.abs().max() or 0)  # type: ignore[arg-type]
        if largest > (most := EXACT[column.dtype]):  # type: ignore[index]
            raise ValueError(f"strings or whole numbers, got {column.dtype} beyond {most:,}, which holds no exact ids")
        whole = column.is_null() | (column == column.round())
        texts = column.cast(pl.Int64, strict=False).cast(pl.String)
        return texts if bool(whole.all()) else normalise_ids(column.cast(pl.String))
    if column.dtype.is_integer():
        return column.cast(pl.String)
    if column.dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null):
        return normalise_ids(column.cast(pl.String))
    return None


def match_ids(ids: pl.Series, known: Sequence[str] | pl.Series) -> pl.Series:
    """Spells each id as `known` does.

    A shard that an earlier version wrote may have ids in another spelling. An id that is in `known` stays. An id that
    `known` has in another spelling takes that spelling. Any other id takes its normalised spelling.
    """
    known = pl.Series("known", known, dtype=pl.String)
    spelled = normalise_ids(known)
    if bool((spelled == known).all()):
        return normalise_ids(ids)
    table = pl.DataFrame({"spelled": spelled, "known": known}).unique("spelled", keep="first", maintain_order=True)
    found = pl.DataFrame({"id": ids, "spelled": normalise_ids(ids)}).join(
        table, on="spelled", how="left", maintain_order="left"
    )
    found = found.with_columns(exact=pl.col("id").is_in(known.implode()))
    return found.select(
        pl.when("exact").then("id").otherwise(pl.coalesce("known", "spelled")).alias(ids.name)
    ).to_series()


def index_ids(ids: Iterable[str]) -> dict[str, int]:
    """Maps each id to its row.

    An id is also found under its normalised spelling, unless another id has that spelling.
    """
    exact = {one: row for row, one in enumerate(ids)}
    listed = pl.Series(list(exact), dtype=pl.String)
    spelled = normalise_ids(listed)
    others = spelled.filter(spelled != listed), listed.filter(spelled != listed)
    return {one: exact[as_is] for one, as_is in zip(*others, strict=True)} | exact


def read_id_list(path: Path, field: Literal["user", "item"]) -> pl.Series:
    """Reads the ids of a list file, each once.

    The file, plain or .gz, has one id in each line, or is a table with a header and a column of that field. UTF-8 or
    UTF-16, any line ends, and blanks and quotes around an id are accepted. DataError for another file.
    """
    if path.name.removesuffix(".gz").endswith(".parquet"):
        found = _read_parquet_list(path, field)
    else:
        found = pl.Series(field, _read_text_list(path, field), dtype=pl.String)
    ids = normalise_ids(found.drop_nulls())
    ids = ids.filter(ids != "").unique(maintain_order=True)
    if ids.is_empty():
        raise DataError(f"{path}: expected ids of {field}s, one a line, got none")
    if (unusable := find_unusable_ids(ids)) is not None:
        raise DataError(f"{path}: expected in each line {unusable[1]}")
    return ids


def _read_parquet_list(path: Path, field: str) -> pl.Series:
    table, kinds = parse_foreign_table(
        path, unpack_content(path, read_bytes(path)), lambda name: name.lower() in LISTED[field]
    )
    named = [name for name in kinds if name.lower() in LISTED[field]]
    if not named and len(kinds) != 1:
        raise DataError(f"{path}: expected a column {field!r}, got {len(kinds)} columns of other names")
    place = named[0] if named else kinds.names()[0]
    try:
        ids = read_id_column(table[place]) if place in table.columns else None
    except ValueError as error:
        raise DataError(f"{path}: expected {error}") from None
    if ids is None:
        raise DataError(f"{path}: expected ids of {field}s as strings or whole numbers, got another kind of column")
    return ids


def _read_text_list(path: Path, field: str) -> list[str]:
    lines = [line for one in read_lines(path) if (line := one.strip(BLANKS))]
    if lines and all(line[-1] in SEPARATORS for line in lines):  # a spreadsheet wrote empty columns
        lines = [line.rstrip(SEPARATORS) for line in lines]
    names = [name.strip(BLANKS + '"').lower() for name in re.split(f"[{SEPARATORS}]", lines[0])] if lines else []
    place = next((place for place, name in enumerate(names) if name in LISTED[field]), None)
    if place is not None and len(names) > 1:
        delimiter = next(mark for mark in SEPARATORS if mark in lines[0])
        return [row[place] for row in csv.reader(lines[1:], delimiter=delimiter) if len(row) > place]
    ids = lines[1:] if place is not None else lines
    if (
        ids
        and all(SEVERAL.search(line) for line in ids if not QUOTED.fullmatch(line))
        and not all(QUOTED.fullmatch(line) for line in ids)
    ):
        raise DataError(
            f"{path}: expected ids of {field}s, one a line, got lines of several columns: give them a header with a "
            f"column {field!r}, or put ids with commas between quotes"
        )
    return [line[1:-1].replace('""', '"') if QUOTED.fullmatch(line) else line for line in ids]


def find_unusable_ids(ids: pl.Series) -> tuple[pl.Series, str] | None:
    """Finds the first kind of unusable id in a column; None if all are usable.

    Returns a Boolean column of the places of these ids, and what was expected in words.
    """
    kinds = (
        (ids.str.len_chars() > LONGEST_ID, TOO_LONG),
        (ids.str.contains(UNPRINTED), WITH_CONTROLS),
        (ids.is_in(MISSING), NO_ID),
    )
    return next(((wrong, expected) for wrong, expected in kinds if wrong.any()), None)
