"""Reads tables of Parquet files within the available memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from client_service.data.files import CELL_BYTES, TABLE_SHARE, read_bytes
from shared import memory
from shared.errors import DataError

VALUE_SHARE = 4  # one byte of usable memory in so many may be values of a table; equal values each count


def read_table(path: Path) -> pl.DataFrame:
    """Reads a Parquet file as a table."""
    return parse_table(path, read_bytes(path))


def parse_table(path: Path, content: bytes) -> pl.DataFrame:
    """Reads the content of a Parquet file as a table.

    Errors do not quote the reader's own message, since that can quote cells.
    """
    with _parquet_errors(path, content):
        return pl.read_parquet(io.BytesIO(content))


def parse_foreign_table(path: Path, content: bytes, is_read: Callable[[str], bool]) -> tuple[pl.DataFrame, pl.Schema]:
    """Reads the columns whose names `is_read` accepts, and the types of all columns.

    Lists and structures are left out. A single column is read whatever its name. DataError, before a row is read, if
    the rows that the file announces would fill the memory. DataError, before a value is processed, if the values would
    fill the memory, since equal values take hardly any room in such a file.
    """
    with _parquet_errors(path, content):
        announced = pl.scan_parquet(io.BytesIO(content))
        kinds = announced.collect_schema()
        alone = len(kinds) == 1  # the column of a list of ids, which may have any name
        names = [name for name, kind in kinds.items() if (is_read(name) or alone) and not kind.is_nested()]
        rows = announced.select(pl.len()).collect().item()
    most = memory.usable_memory() // TABLE_SHARE // CELL_BYTES
    if (cells := rows * max(1, len(names))) > most:
        expected = f"expected at most {most:,} cells, for which this machine has memory"
        raise DataError(f"{path}: {expected}, got {cells:,}: divide the file, or leave columns out")
    with _parquet_errors(path, content):
        table = pl.read_parquet(io.BytesIO(content), columns=names)
    if (size := int(table.estimated_size())) > (most := memory.usable_memory() // VALUE_SHARE):
        expected = f"expected values of at most {most:,} bytes together, for which this machine has memory"
        raise DataError(f"{path}: {expected}, got {size:,}: divide the file, or use shorter ids")
    return table, kinds


@contextmanager
def _parquet_errors(path: Path, content: bytes) -> Iterator[None]:
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError):  # damaged pages panic
        raise DataError(f"{path}: expected a Parquet file, got {len(content)} bytes of something else") from None
