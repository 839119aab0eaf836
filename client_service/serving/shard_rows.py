"""The ids of the rows of a shard for which a model is kept <-> a file beside it: by them another shard takes it over.

It holds ids of users: after an erasure those of earlier shards go, with their models.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import polars as pl

from client_service.models.carrying import ShardRows
from client_service.shard.files import replace_file
from shared.errors import DataError

SHORT = 16  # characters of the shard's digest
PATTERN = "rows-*.parquet"
USER, ITEM, CATALOGUE = "user", "item", "catalogue"


def rows_path(folder: Path, shard: str) -> Path:
    """Of the shard of this digest."""
    return folder / PATTERN.replace("*", shard[:SHORT])


def keep_rows(folder: Path, shard: str, rows: ShardRows) -> None:
    """Durable when this returns; nothing is written where they are there already."""
    path = rows_path(folder, shard)
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    sides = ((USER, rows.users, rows.prints), (ITEM, rows.items, None), (CATALOGUE, (rows.catalogue,), None))
    schema = {"side": pl.String, "id": pl.String, "print": pl.Int64}
    columns = ({"side": side, "id": ids, "print": prints} for side, ids, prints in sides if len(ids))
    tables = [pl.DataFrame(one, schema) for one in columns]
    buffer = io.BytesIO()
    pl.concat(tables).write_parquet(buffer)
    replace_file(path, buffer.getvalue())


def kept_rows(folder: Path, shard: str) -> ShardRows | None:
    """None where there are none. DataError for a file that cannot be read."""
    path = rows_path(folder, shard)
    if not path.exists():
        return None
    try:
        table = pl.read_parquet(path)
        users, items, lists = (table.filter(pl.col("side") == side) for side in (USER, ITEM, CATALOGUE))
        prints = users["print"].fill_null(0).to_numpy().astype(np.int64)
        return ShardRows(users["id"].to_list(), items["id"].to_list(), lists["id"].item(), prints)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError):
        raise DataError(f"{path}: expected the rows of a kept model's shard, got something else") from None
