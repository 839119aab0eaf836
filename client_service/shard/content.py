"""A table of interactions -> clean pairs, row numbers, 0/1 matrices and the digest of them all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from shared.errors import DataError
from shared.method.graph import interaction_matrix

SPLITS = ("train", "valid", "test")  # in order of precedence: a pair in two splits stays in the first
SPLIT_TYPE = pl.Enum(SPLITS)


def id_column(table: pl.DataFrame, name: str, path: Path) -> pl.Series:
    """A column of ids as strings; integers become their decimal form. Raises DataError on anything else."""
    if name not in table.columns:
        # Other columns are counted, not named: those of a user-item matrix saved as a table are item ids.
        raise DataError(f"{path}: expected a column {name!r}, got {table.width} columns of other names")
    column = table[name]
    if not (column.dtype.is_integer() or column.dtype in (pl.String, pl.Categorical, pl.Enum)):
        raise DataError(f"{path}: expected strings or integers in column {name!r}, got {column.dtype}")
    ids = column.cast(pl.String)
    missing = ids.null_count() + int((ids == "").sum())
    if missing:
        raise DataError(f"{path}: expected a value in every row of column {name!r}, {missing} are missing")
    return ids


def cleaned(interactions: pl.DataFrame, path: Path) -> tuple[pl.DataFrame, list[str]]:
    """Each (user, item) once, in its first split, only users with a training item; and what was dropped, counted."""
    table = pl.DataFrame({name: id_column(interactions, name, path) for name in ("user", "item", "split")})
    unknown = len(table) - int(table["split"].is_in(SPLITS).sum())
    if unknown:
        raise DataError(f"{path}: expected train, valid or test in column 'split', {unknown} rows have something else")
    table = table.with_columns(pl.col("split").cast(SPLIT_TYPE))
    pairs = table.sort("split").unique(["user", "item"], keep="first", maintain_order=True)
    trained = pairs.filter(pl.col("split") == "train")["user"].unique()
    if trained.is_empty():
        raise DataError(f"{path}: expected at least one training interaction, got none among {len(table)} rows")
    kept = pairs.filter(pl.col("user").is_in(trained.implode()))
    dropped_users = pairs["user"].n_unique() - len(trained)
    counted = [
        (len(table) - len(pairs), "repeated pairs dropped"),
        (dropped_users, "users without a training item dropped"),
    ]
    return kept, [f"{count} {what}" for count, what in counted if count]


def row_numbers(ids: pl.Series, listed: pl.Series) -> NDArray[np.int64]:
    """The place of each id in `listed` (sorted, distinct); -1 where it is not listed."""
    codes = ids.cast(pl.Enum(listed), strict=False).to_physical()
    return codes.cast(pl.Int64).fill_null(-1).to_numpy()


def matrix(rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]) -> sparse.csr_array:
    """(E,), (E,) -> (M, N), 0/1, with sorted indices."""
    pairs = interaction_matrix(rows, columns, shape)
    pairs.sort_indices()
    return pairs


def content_digest(ids: Sequence[Sequence[str | None] | None], matrices: Sequence[sparse.csr_array]) -> str:
    """sha256 over users, items, titles and the three matrices. The order of rows in the files and the shard's name do
    not count: the digest keys what is computed from the content."""
    digest = hashlib.sha256()
    for part in ids:
        digest.update(json.dumps(part).encode() + b"\n")
    for pairs in matrices:
        digest.update(pairs.indptr.astype("<i8").tobytes())
        digest.update(pairs.indices.astype("<i8").tobytes())
    return digest.hexdigest()
