"""A shard and what has happened since -> the next shard: interactions that came, users or interactions to be erased.

A shard with other likings has another digest. Caches, kept models, checkpoints and the privacy account of the old one
are not those of the new one: see `Shard.digest`. A shard whose likings stay what they were keeps its digest, whatever
else was met; `Shard.lists_digest` changes then.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import polars as pl

from client_service.shard.events import MET, clean_events, event_table, id_column
from client_service.shard.shard import Shard, build_shard


def append_events(shard: Shard, table: pl.DataFrame, path: Path, items: pl.DataFrame | None = None) -> Shard:
    """The shard with the interactions of `table` (user, item; split, time and rating where known) besides.

    An interaction without a split is for training; one of the split `met` is no liking, and takes a liking of the same
    pair back. Of a pair that is liked and met the later event decides, and where a time is missing that of `table`. A
    pair that is liked in both stays in the earlier of the two splits. A liked item that the catalogue lacks joins it,
    with its row in `items` (item, title) where there is one; a met one does not. `path` is named in errors. Raises
    DataError, also when nobody would have a training item left.
    """
    if "split" not in table.columns:
        table = table.with_columns(split=pl.lit("train"))
    later = event_table(table, path)
    both = [shard.all_events_with_ids().with_columns(appended=False), later.with_columns(appended=True)]
    events, counted = clean_events(pl.concat(both, how="diagonal"), path)
    catalogue = shard.items_with_ids()
    liked = events.filter(pl.col("split") != MET)
    new = liked.select(pl.col("item").unique()).join(catalogue, on="item", how="anti")
    if items is not None:
        new = new.join(items.with_columns(id_column(items, "item", path)), on="item", how="left")
    catalogue = pl.concat([catalogue, new], how="diagonal_relaxed")
    return build_shard(shard.name, events, catalogue, (*shard.notes, *counted), path)


def erase_users(shard: Shard, user_ids: Collection[str]) -> Shard:
    """The shard without these users and all that they did. An id that the shard does not know changes nothing.

    The catalogue stays: it is the silo's list of items, not of what somebody did. Raises DataError when nobody is left.
    """
    return _drop_events(shard, pl.DataFrame({"user": list(user_ids)}, schema={"user": pl.String}))


def erase_events(shard: Shard, pairs: pl.DataFrame, path: Path) -> Shard:
    """The shard without these interactions (user, item), liked or met. A user without a training item left goes too,
    and is counted; what else he liked stays as met.

    `path` is named in errors. Raises DataError when nobody is left.
    """
    return _drop_events(shard, pl.DataFrame({name: id_column(pairs, name, path) for name in ("user", "item")}))


def _drop_events(shard: Shard, keys: pl.DataFrame) -> Shard:
    where = f"shard {shard.name!r}"
    events, counted = clean_events(shard.all_events_with_ids().join(keys, on=keys.columns, how="anti"), where)
    return build_shard(shard.name, events, shard.items_with_ids(), (*shard.notes, *counted))
