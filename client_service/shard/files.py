"""Paths -> bytes and tables, a DataError for what cannot be read; bytes -> files that appear whole or not at all."""

from __future__ import annotations

import io
import os
from pathlib import Path
from uuid import uuid4

import polars as pl

from shared.errors import DataError
from shared.new_files import PRIVATE, sync_path


def read_bytes(path: Path) -> bytes:
    """The file's content, or a DataError naming it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, got {error.strerror}") from None


def read_table(path: Path) -> pl.DataFrame:
    """A Parquet file as a table."""
    return parse_table(path, read_bytes(path))


def parse_table(path: Path, content: bytes) -> pl.DataFrame:
    """The content of a Parquet file as a table. The reader's own words are left out: they can quote cells."""
    try:
        return pl.read_parquet(io.BytesIO(content))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError):  # damaged pages panic
        raise DataError(f"{path}: expected a Parquet file, got {len(content)} bytes of something else") from None


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step: a reader, or a crash, sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        write_private_bytes(temporary, content)
        sync_path(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_private_bytes(path: Path, content: bytes) -> None:
    """A new file, which its user alone may read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as file:
        file.write(content)


def settle(partial: Path, path: Path) -> None:
    """Make a file that was written at `partial` durable, then put it at `path` in one step."""
    sync_path(partial)
    partial.replace(path)
    sync_path(path.parent)
