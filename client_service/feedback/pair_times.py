"""A shard -> when a user met an item, where that is known: by it a later event is told from an earlier one."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_service.shard import Shard


class PairTimes:
    """Of one shard's interactions, in whichever split."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def of(self, user: str, item: int) -> int | None:
        """Seconds since 1970, UTC, of a user and an item's row; None where there is no such pair, or it has no time."""
        row = self._shard.user_row(user)
        if row is None:
            return None
        pairs, times = self._sorted
        pair = row * len(self._shard.item_ids) + item
        place = int(np.searchsorted(pairs, pair))
        return int(times[place]) if place < len(pairs) and pairs[place] == pair else None

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs as numbers, ascending, and their times."""
        events = self._shard.events
        if "time" not in events.columns:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        pair = pl.col("user").cast(pl.Int64) * len(self._shard.item_ids) + pl.col("item")
        known = events.drop_nulls("time").select(pair.alias("pair"), "time").sort("pair")
        return known["pair"].to_numpy(), known["time"].to_numpy()
