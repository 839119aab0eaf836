"""A shard and what has happened since -> the next shard: interactions that came, users or interactions to be erased.

A shard with other likings has another digest. Caches, kept models, checkpoints and the privacy account of the old one
are not those of the new one: see `Shard.digest`. A shard whose likings stay what they were keeps its digest, whatever
else was met; `Shard.lists_digest` changes then.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import polars as pl

from client_service.shard.events import MET, clean_events, event_table, id_column
from client_service.shard.ids import match_ids, normalise_ids
from client_service.shard.shard import Shard, build_shard


def append_events(shard: Shard, table: pl.DataFrame, path: Path, items: pl.DataFrame | None = None) -> Shard:
    """The shard with the interactions of `table` (user, item; split, time and rating where known) besides.

    An interaction without a split is for training; one of the split `met` is no liking, and takes a liking of the same
    pair back. Of a pair that is liked and met the later event decides, and where times do not tell that of `table`,
    there the last. A pair that is liked in both stays in the earlier of the two splits. A liked item that the catalogue
    lacks joins it, with its row in `items` (item, title) where there is one; a met one does not. `path` is named in
    errors. Raises DataError, also when nobody would have a training item left.
    """
    if "split" not in table.columns:
        table = table.with_columns(split=pl.lit("train"))
    later = _as_known(event_table(table, path, exact=True), shard)
    order = table["order"] + 1 if "order" in table.columns else pl.int_range(1, len(later) + 1, eager=True)
    both = [shard.all_events_with_ids().with_columns(order=pl.lit(0, dtype=pl.Int64)), later.with_columns(order=order)]
    events, counted = clean_events(pl.concat(both, how="diagonal"), path)
    catalogue = shard.items_with_ids()
    liked = events.filter(pl.col("split") != MET)
    new = liked.select(pl.col("item").unique()).join(catalogue, on="item", how="anti")
    if items is not None:
        new = new.join(items.with_columns(id_column(items, "item", path)), on="item", how="left")
    catalogue = pl.concat([catalogue, new], how="diagonal_relaxed")
    return replace(build_shard(shard.name, events, catalogue, (*shard.notes, *counted), path), rating=shard.rating)


def erase_users(shard: Shard, user_ids: Collection[str]) -> Shard:
    """The shard without these users and all that they did, in whatever spelling it has their ids. An id that it does
    not know changes nothing.

    The catalogue stays: it is the silo's list of items, not of what somebody did. Raises DataError when nobody is left.
    """
    return _drop_events(shard, pl.DataFrame({"user": list(user_ids)}, schema={"user": pl.String}))


def erase_events(shard: Shard, pairs: pl.DataFrame, path: Path) -> Shard:
    """The shard without these interactions (user, item), liked or met. A user without a training item left goes too,
    and is counted; what else he liked stays as met.

    `path` is named in errors. Raises DataError when nobody is left.
    """
    return _drop_events(shard, pl.DataFrame({name: id_column(pairs, name, path) for name in ("user", "item")}))


def count_unknown(shard: Shard, keys: pl.DataFrame) -> tuple[int, int]:
    """Of users (user) or interactions (user, item), each once: how many the shard does not have, and how many came."""
    asked = _spell_ids(keys).unique()
    return len(asked.join(_spell_ids(shard.all_events_with_ids()), on=keys.columns, how="anti")), len(asked)


def _spell_ids(events: pl.DataFrame) -> pl.DataFrame:
    return events.with_columns(normalise_ids(events[name]) for name in ("user", "item") if name in events.columns)


def _as_known(events: pl.DataFrame, shard: Shard) -> pl.DataFrame:
    """The same with each id as the shard spells it, which an earlier version may have written."""
    known = {"user": shard.user_ids, "item": shard.item_ids}
    return events.with_columns(match_ids(events[name], known[name]) for name in known if name in events.columns)


def _drop_events(shard: Shard, keys: pl.DataFrame) -> Shard:
    where = f"shard {shard.name!r}"
    table = shard.all_events_with_ids()
    row = pl.int_range(pl.len(), dtype=pl.Int64).alias("row")
    kept = (
        _spell_ids(table).with_columns(row).join(_spell_ids(keys), on=keys.columns, how="anti", maintain_order="left")
    )
    events, counted = clean_events(table[kept["row"]], where)
    built = build_shard(shard.name, events, shard.items_with_ids(), (*shard.notes, *counted))
    return replace(built, rating=shard.rating)
