"""A shard -> when a user met an item, where that is known: by it a later event is told from an earlier one."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_service.shard import Shard
from client_service.shard.events import row_numbers

Int64 = NDArray[np.int64]


class PairTimes:
    """Of one shard's likings, in whichever split, and of what its users have met without liking it."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def liked(self, user: str, item: int) -> int | None:
        """Seconds since 1970, UTC, of a user's liking of an item's row; None where there is none, or it has no time."""
        row = self._shard.user_row(user)
        return None if row is None else _find(self._liked, row * len(self._shard.item_ids) + item)

    def met(self, user: str, item: int) -> int | None:
        """Likewise of an item that the user has met and does not like."""
        users, pairs = self._met
        row = users.get(user)
        return None if row is None else _find(pairs, row * len(self._shard.item_ids) + item)

    @cached_property
    def _liked(self) -> tuple[Int64, Int64]:
        events = self._shard.events
        if "time" not in events.columns:
            return _NOTHING
        return _sort(events["user"].cast(pl.Int64), events["item"], events["time"], len(self._shard.item_ids))

    @cached_property
    def _met(self) -> tuple[dict[str, int], tuple[Int64, Int64]]:
        """The row that each user who has met something has here, and the pairs."""
        events = self._shard.met_events
        if events is None or "time" not in events.columns:
            return {}, _NOTHING
        users = events["user"].unique().sort()
        rows = pl.Series(row_numbers(events["user"], users))
        items = pl.Series(row_numbers(events["item"], pl.Series(self._shard.item_ids, dtype=pl.String)))
        inside = items >= 0
        pairs = _sort(
            rows.filter(inside), items.filter(inside), events["time"].filter(inside), len(self._shard.item_ids)
        )
        return {user: row for row, user in enumerate(users)}, pairs


_NOTHING = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)


def _sort(rows: pl.Series, items: pl.Series, times: pl.Series, count: int) -> tuple[Int64, Int64]:
    """Pairs as numbers, ascending, and their times."""
    known = pl.DataFrame({"pair": rows * count + items, "time": times}).drop_nulls("time").sort("pair")
    return known["pair"].to_numpy(), known["time"].to_numpy()


def _find(pairs: tuple[Int64, Int64], pair: int) -> int | None:
    place = int(np.searchsorted(pairs[0], pair))
    return int(pairs[1][place]) if place < len(pairs[0]) and pairs[0][place] == pair else None
