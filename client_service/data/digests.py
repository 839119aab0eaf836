"""Digests of a shard's content, in hexadecimal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl
    from scipy import sparse

NO_TIME = -(1 << 63)  # stands for a time that is not known


def content_digest(ids: Sequence[Sequence[str | None] | None], matrices: Sequence[sparse.csr_array]) -> str:
    """Computes sha256 over users, items, titles and the three matrices.

    The order of rows in the files and the shard's name do not count: the digest keys what is computed from the
    content.
    """
    digest = hashlib.sha256()
    for part in ids:
        digest.update(json.dumps(part).encode() + b"\n")
    for pairs in matrices:
        digest.update(pairs.indptr.astype("<i8").tobytes())
        digest.update(pairs.indices.astype("<i8").tobytes())
    return digest.hexdigest()


def table_digest(content: str, tables: Sequence[pl.DataFrame]) -> str:
    """Computes sha256 over another digest and the columns of tables, with their names.

    Rows count in their order.
    """
    digest = hashlib.sha256(content.encode())
    for column in (column for table in tables for column in table.get_columns()):
        digest.update(json.dumps(column.name).encode() + b"\n" + _column_bytes(column) + b"\n")
    return digest.hexdigest()


def _column_bytes(column: pl.Series) -> bytes:
    """Encodes a column; equal values give equal bytes, whatever their width."""
    import polars as pl  # it takes a while, and lists of ids do not need it

    if column.dtype == pl.String:
        return json.dumps(column.to_list()).encode()
    if column.dtype.is_integer():
        return column.cast(pl.Int64).fill_null(NO_TIME).to_numpy().astype("<i8").tobytes()
    return column.cast(pl.Float64).fill_null(float("nan")).to_numpy().astype("<f8").tobytes()


def encode_list(ids: Iterable[str]) -> bytes:
    """Encodes ids one a line, as in a file."""
    return ("\n".join(ids) + "\n").encode()


def list_digest(ids: Iterable[str]) -> str:
    """Computes sha256 over a list of ids; two silos compare their lists by it."""
    return hashlib.sha256(encode_list(ids)).hexdigest()
