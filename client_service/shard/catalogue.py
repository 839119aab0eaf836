"""A shard and a list of the items that all clients share -> the row of each of the shard's items in that list.

The list is public among the clients; which of its items a silo has is not, and no message here says so.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from client_service.shard.events import row_numbers
from client_service.shard.files import read_bytes
from client_service.shard.shard import Shard
from shared.errors import DataError


def with_places(shard: Shard, path: Path | None, size: int) -> Shard:
    """The shard with its items' places in the catalogue of `size` items; as it is where there is no catalogue.

    Raises DataError for a list of another length, with repeats, or without an item that the shard has.
    """
    if path is None:
        return shard
    listed = pl.Series("item", read_bytes(path).decode("utf-8", errors="replace").splitlines(), dtype=pl.String)
    if len(listed) != size or listed.n_unique() != size:
        expected = f"{size} different item ids, as many as the method's setting `catalogue` says"
        raise DataError(f"{path}: expected {expected}, got {len(listed)}, {listed.n_unique()} of them different")
    ordered = listed.sort()
    rows = row_numbers(pl.Series("item", shard.item_ids, dtype=pl.String), ordered)
    if (rows < 0).any():
        raise DataError(f"{path}: expected every item of the shard, {int((rows < 0).sum())} are not listed")
    return replace(shard, places=rows.astype(np.int64))
