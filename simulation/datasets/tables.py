"""Separated text and Parquet -> named columns of strings, each value with the line it came from."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from client_service.shard.files import parsed_table
from shared.errors import DataError
from simulation.datasets.content import content, fault, lines

COLUMNS = {
    "user": ("user", "user_id", "userid"),
    "item": ("item", "item_id", "itemid", "movie", "movie_id", "movieid"),
    "split": ("split",),
    "title": ("title", "item_title", "movie_title", "name", "item_name"),
}
KNOWN_COLUMNS = frozenset(name for names in COLUMNS.values() for name in names)
UNIT = "\x1f"  # ASCII's own separator of fields; lists of lists would take polars five times as long


def _is_title(name: str) -> bool:
    return "title" in name or "name" in name


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of strings under lower-case names; `line` (from 1) says where each row stands in the file."""

    path: Path
    columns: dict[str, pl.Series]
    line: pl.Series

    def find(self, field: str) -> pl.Series | None:
        """The column that goes by one of the field's names, if there is one. Titles have many: "app_name" is one."""
        names = [name for name in COLUMNS[field] if name in self.columns]
        if field == "title":
            names += [name for name in self.columns if _is_title(name)]
        return self.columns[names[0]] if names else None

    def required(self, field: str) -> pl.Series:
        """The field's values, none of them empty, or a DataError with the line of the first that is."""
        column = self.find(field)
        if column is None:
            accepted = " or ".join(COLUMNS[field])
            raise fault(self.path, 1, f"expected a column {accepted}, got other columns")
        empty = (column.is_null() | (column == "")).fill_null(True)
        if empty.any():
            row = empty.arg_max()
            raise fault(self.path, self.line[row or 0], f"expected a value in the field {field!r}, got none")
        return column


def separated(path: Path, whole: str, separator: str, names: Sequence[str]) -> Table:
    """Text without quoting and without a header; `names` are the fields that every line must have."""
    numbers, records = _plain(whole, separator)
    return _table(path, names, records, numbers)


def with_header(path: Path, whole: str, separator: str) -> Table:
    """Text whose first line names the columns. A RecBole type (`user_id:token`) is cut off."""
    quoted = separator == "," and '"' in whole
    numbers, records = _quoted(path, whole) if quoted else _plain(whole, separator)
    names = [name.strip().partition(":")[0].lower() for name in records[0]]
    return _table(path, names, records[1:], numbers[1:])


def _plain(whole: str, separator: str) -> tuple[pl.Series, pl.Series]:
    rows = lines(whole)
    return _counted(len(rows)), pl.Series(rows, dtype=pl.String).str.split(separator)


def _counted(count: int) -> pl.Series:
    return pl.Series(np.arange(1, count + 1))


def _quoted(path: Path, whole: str) -> tuple[pl.Series, pl.Series]:
    """Records that may hold separators and line ends between quotes; each with the line on which it ends."""
    reader = csv.reader(io.StringIO(whole.rstrip("\r\n"), newline=""), strict=True)
    numbers, records = [], []
    try:
        for record in reader:
            numbers.append(reader.line_num)
            records.append(UNIT.join(record))
    except csv.Error:
        raise fault(path, reader.line_num, "expected paired quotes, got one misplaced or not closed") from None
    return pl.Series(numbers), pl.Series(records, dtype=pl.String).str.split(UNIT)


def _table(path: Path, names: Sequence[str], fields: pl.Series, line: pl.Series) -> Table:
    if fields.is_empty():
        raise fault(path, 2, "expected data after the header, got none")
    wrong = fields.list.len() != len(names)
    if wrong.any():
        row = wrong.arg_max() or 0
        raise fault(path, line[row], f"expected {len(names)} fields, got {len(fields[row])}")
    wanted = [(place, name) for place, name in enumerate(names) if name in KNOWN_COLUMNS or _is_title(name)]
    columns = {name: fields.list.get(place).str.strip_chars() for place, name in wanted}
    return Table(path, columns, line)


def parquet(path: Path) -> Table:
    """A Parquet file; its "line" is the row. Ids may be integers."""
    table = parsed_table(path, content(path))
    if table.is_empty():
        raise fault(path, 1, "expected data, got a table without rows")
    columns = {name.lower(): _strings(path, table[name]) for name in table.columns if name.lower() in KNOWN_COLUMNS}
    texts = [name for name in table.columns if table.schema[name] == pl.String and _is_title(name.lower())]
    columns |= {name.lower(): table[name] for name in texts}
    return Table(path, columns, _counted(len(table)))


def _strings(path: Path, column: pl.Series) -> pl.Series:
    if not (column.dtype.is_integer() or column.dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)):
        raise DataError(f"{path}: expected strings or integers in column {column.name!r}, got {column.dtype}")
    return column.cast(pl.String)
