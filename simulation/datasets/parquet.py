"""A Parquet file -> a Table."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from client_service.shard.files import parse_table
from shared.errors import DataError
from simulation.datasets.content import line_error, read_content
from simulation.datasets.tables import DETAIL_NAMES, ID_NAMES, Table, is_title, row_lines


def read_parquet(path: Path) -> Table:
    """A row's "line" is its number. Ids may be integers, times dates."""
    table = parse_table(path, read_content(path))
    if table.is_empty():
        raise line_error(path, 1, "expected data, got a table without rows")
    columns = {name.lower(): _string_column(path, table[name]) for name in table.columns if name.lower() in ID_NAMES}
    columns |= {name.lower(): table[name] for name in table.columns if name.lower() in DETAIL_NAMES}
    texts = [name for name in table.columns if table.schema[name] == pl.String and is_title(name.lower())]
    columns |= {name.lower(): table[name] for name in texts}
    return Table(path, columns, row_lines(len(table)))


def _string_column(path: Path, column: pl.Series) -> pl.Series:
    if not (column.dtype.is_integer() or column.dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)):
        raise DataError(f"{path}: expected strings or integers in column {column.name!r}, got {column.dtype}")
    return column.cast(pl.String)
