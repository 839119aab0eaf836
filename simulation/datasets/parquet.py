"""Reader of Parquet files."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from client_service.data.id_columns import read_id_column
from client_service.data.tables import parse_foreign_table
from shared.errors import DataError
from simulation.datasets.columns import DETAIL_FIELDS, FileOptions
from simulation.datasets.content import line_error, read_content
from simulation.datasets.tables import MOST_NAMES, Table, require_no_delimiter, row_lines


def read_parquet(path: Path, file_options: FileOptions) -> Table:
    """Reads a Parquet file; the line of a row is its number.

    Ids may be strings, categories or whole numbers, times dates.
    """
    require_no_delimiter(path, file_options)
    table, kinds = parse_foreign_table(path, read_content(path), lambda name: file_options.is_read(name.lower()))
    for name, kind in kinds.items():
        if kind.is_nested() and file_options.is_id(name.lower()):
            raise DataError(f"{path}: expected strings or whole numbers in column {name!r}, got {kind.base_type()}")
    if table.is_empty() and table.columns and file_options.needs_rows:
        raise line_error(path, 1, "expected data, got a table without rows")
    columns, details = {}, {name for role in DETAIL_FIELDS for name in file_options.names(role)}
    for column in table.get_columns():
        name = column.name.lower()
        if file_options.is_id(name):
            columns[name] = _id_column(path, column)
        elif file_options.is_attribute(name) and column.dtype == pl.List(pl.String):
            columns[name] = column.list.join("|")
        elif name in details or column.dtype == pl.String or file_options.is_attribute(name):
            columns[name] = column.cast(pl.String) if column.dtype in (pl.Categorical, pl.Enum) else column
    others = tuple(name for one in kinds if (name := one.lower()) not in columns)
    return Table(path, columns, row_lines(len(table)), file_options, others, len(kinds) <= MOST_NAMES)


def _id_column(path: Path, column: pl.Series) -> pl.Series:
    try:
        ids = read_id_column(column)
    except ValueError as error:
        raise DataError(f"{path}: expected in column {column.name!r} {error}") from None
    if ids is None:
        raise DataError(f"{path}: expected strings or whole numbers in column {column.name!r}, got {column.dtype}")
    return ids
