"""Merges the event log into a shard: new interactions, withdrawn positives, erasures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

from client_service.data.events import MET, clean_events, id_column, read_events
from client_service.data.id_columns import match_ids, normalise_ids
from client_service.data.interactions import Shard, build_shard, with_unmet_items
from client_service.data.ratings import choose_least_rating
from client_service.event_log.database import AbsorbedBatch, LogSnapshot
from client_service.event_log.log_store import MergeResult
from client_service.event_log.messages import ItemIn
from client_service.event_log.store import EventStore

CATEGORIES = frozenset(("category", "categories", "genre", "genres"))  # features that hold an item's categories


def append_events(shard: Shard, table: pl.DataFrame, path: Path, items: pl.DataFrame | None = None) -> Shard:
    """Adds the interactions of a table to a shard.

    Columns: user, item; split, time and rating where known. An interaction without a split is for training; one of
    the split `met` is not positive, and withdraws a positive of the same pair. Of a pair that is both the later event
    decides; where times do not tell, the table's, there the last. A pair that is positive in both stays in the earlier
    of the two splits. A positive item that the catalogue lacks joins it, with its row in `items` (item, title) where
    there is one; a met one does not. `path` is named in errors. Raises DataError, also where no user would have a
    training item left.
    """
    if "split" not in table.columns:
        table = table.with_columns(split=pl.lit("train"))
    later = _match_spelling(read_events(table, path, exact=True), shard)
    order = table["order"] + 1 if "order" in table.columns else pl.int_range(1, len(later) + 1, eager=True)
    both = [shard.all_events_with_ids().with_columns(order=pl.lit(0, dtype=pl.Int64)), later.with_columns(order=order)]
    events, counted = clean_events(pl.concat(both, how="diagonal"), path)
    catalogue = shard.items_with_ids()
    positive = events.filter(pl.col("split") != MET)
    new = positive.select(pl.col("item").unique()).join(catalogue, on="item", how="anti")
    if (known := _join_items(items, shard.unmet, path)) is not None:
        new = new.join(known, on="item", how="left")
    catalogue = pl.concat([catalogue, new], how="diagonal_relaxed")
    built = build_shard(shard.name, events, catalogue, (*shard.notes, *counted), path)
    return _keep_other_data(built, shard)


def _join_items(posted: pl.DataFrame | None, unmet: pl.DataFrame | None, path: Path) -> pl.DataFrame | None:
    """Joins posted metadata of items with those of the unmet items; posted values win."""
    if posted is None:
        return unmet
    posted = posted.with_columns(id_column(posted, "item", path))
    if unmet is None:
        return posted
    names = [name for name in unmet.columns if name in posted.columns and name != "item"]
    same = posted.with_columns(posted[name].cast(unmet[name].dtype, strict=False) for name in names)
    joined = same.join(unmet, on="item", how="full", coalesce=True, suffix=" before")
    both = [pl.coalesce(name, f"{name} before").alias(name) for name in names]
    return joined.with_columns(both).drop(f"{name} before" for name in names)


def _keep_other_data(built: Shard, shard: Shard) -> Shard:
    """Adds to a rebuilt shard what its tables lack: unmet items, rating scale, vectors."""
    whole, vectors = with_unmet_items(built, shard.unmet), shard.feature_file
    return replace(whole, rating=shard.rating, feature_file=vectors, feature_digest=shard.feature_digest)


def erase_users(shard: Shard, user_ids: Collection[str]) -> Shard:
    """Removes users and all their events from a shard.

    Ids match in any spelling; an unknown id changes nothing. The catalogue stays: it is the silo's list of items.
    Raises DataError if no user is left.
    """
    return _drop_events(shard, pl.DataFrame({"user": list(user_ids)}, schema={"user": pl.String}))


def erase_events(shard: Shard, pairs: pl.DataFrame, path: Path) -> Shard:
    """Removes interactions (user, item), positive or met, from a shard.

    A user without a training item left is removed too, and counted; the user's other positives stay as met. `path` is
    named in errors. Raises DataError if no user is left.
    """
    return _drop_events(shard, pl.DataFrame({name: id_column(pairs, name, path) for name in ("user", "item")}))


def count_unknown(shard: Shard, keys: pl.DataFrame) -> tuple[int, int]:
    """Counts the keys that a shard does not have, and all keys, each once.

    keys: users (user) or interactions (user, item).
    """
    keys = _spell_ids(keys).unique()
    return len(keys.join(_spell_ids(shard.all_events_with_ids()), on=keys.columns, how="anti")), len(keys)


def _spell_ids(events: pl.DataFrame) -> pl.DataFrame:
    return events.with_columns(normalise_ids(events[name]) for name in ("user", "item") if name in events.columns)


def _match_spelling(events: pl.DataFrame, shard: Shard) -> pl.DataFrame:
    """Spells each id as the shard does, which an earlier version may have written."""
    known = {"user": shard.user_ids, "item": shard.item_ids}
    return events.with_columns(match_ids(events[name], known[name]) for name in known if name in events.columns)


def _drop_events(shard: Shard, keys: pl.DataFrame) -> Shard:
    source = f"shard {shard.name!r}"
    table = shard.all_events_with_ids()
    row = pl.int_range(pl.len(), dtype=pl.Int64).alias("row")
    kept = (
        _spell_ids(table).with_columns(row).join(_spell_ids(keys), on=keys.columns, how="anti", maintain_order="left")
    )
    events, counted = clean_events(table[kept["row"]], source)
    built = build_shard(shard.name, events, shard.items_with_ids(), (*shard.notes, *counted))
    return _keep_other_data(built, shard)


def add_items(shard: Shard, items: pl.DataFrame) -> Shard:
    """Adds described items without users to the unmet items of a shard.

    items: item, title, and features of the shard's; they replace what was known.
    """
    source = Path(f"shard {shard.name!r}")
    return with_unmet_items(shard, _join_items(items, shard.unmet, source), source)


LOG = {"sequence": pl.Int64, "user": pl.String, "item": pl.String, "time": pl.Int64, "rating": pl.Float64}


def merge_log_into_shard(
    before: Shard, store: EventStore, least_rating: float | None, listed: Collection[str] | None = None
) -> MergeResult[Shard]:
    """Merges the log into a shard, and returns the next shard, unwritten.

    The log stays: see `EventStore.delete_absorbed`. Erased users are removed first, so that a user who has come back
    keeps later events. Of several interactions of a user with an item the latest counts. A positive joins the
    training pairs; one of an item that is not among those `listed` waits in the log (None: any item joins the
    catalogue). A lower rating joins the met events, and withdraws a positive that is no later; it also stays in the
    log while there is room, for processes that answer from an earlier shard. Repeated before the log is emptied, it
    changes nothing. Items with a posted text join the catalogue, positive or not. Raises DataError if no user
    would be left.
    """
    least_rating = choose_least_rating(least_rating, before.rating)
    batch = store.begin_merge()
    latest = _choose_latest(batch)
    is_positive = pl.col("rating").is_null() | (pl.col("rating") >= least_rating)
    known = pl.lit(True) if listed is None else pl.col("item").is_in(pl.Series(list(listed), dtype=pl.String).implode())
    positive, waiting, low = (
        latest.filter(which) for which in (is_positive & known, is_positive & ~known, ~is_positive)
    )
    gone = _find_erased(before, batch.snapshot)
    forgotten = erase_users(before, gone) if gone else before
    posted = _add_described_items(
        _add_positives(forgotten, positive, batch.snapshot, store.path), batch.snapshot, listed
    )
    after = _add_met(posted, low, store.path)
    kept, dropped = _choose_kept(waiting, low, store.kept_capacity)
    if after.digest != before.digest:  # recorded before the shard is replaced, so that a crash leaves no file behind
        store.add_stale_shards(before.digest, after.digest)
    same = (after.lists_digest, after.events_digest) == (before.lists_digest, before.events_digest)
    after = before if same else replace(after, notes=before.notes)  # a refresh adds no notes
    return MergeResult(before, after, batch, kept, len(waiting), dropped, len(gone))


def _choose_latest(batch: AbsorbedBatch) -> pl.DataFrame:
    """Chooses the latest interaction of each user and item.

    Of equal times the one that came last.
    """
    rows = [(one.sequence, one.user, one.item, one.time, one.rating) for one in batch.interactions]
    table = pl.DataFrame(rows, schema=LOG, orient="row").sort("time", "sequence")
    return table.unique(["user", "item"], keep="last", maintain_order=True)


def _find_erased(shard: Shard, snapshot: LogSnapshot) -> list[str]:
    if not snapshot.erased:
        return []
    return [user for user in (*shard.user_ids, *shard.met_only_users) if snapshot.erases(user)]


def _add_positives(shard: Shard, positive: pl.DataFrame, snapshot: LogSnapshot, path: Path) -> Shard:
    if positive.is_empty():
        return shard
    items = _build_item_table(shard, snapshot.items)
    return append_events(shard, positive.drop("sequence"), path, items if len(items) else None)


def _add_described_items(shard: Shard, snapshot: LogSnapshot, listed: Collection[str] | None) -> Shard:
    """Adds posted items to a shard, if the silo describes its items by texts.

    Hidden ones are left out, and those that are not among the `listed` ones.
    """
    if shard.titles is None and shard.features is None:
        return shard
    allowed = None if listed is None else frozenset(listed)
    new = {
        item: facts
        for item, facts in snapshot.items.items()
        if not facts.hidden
        and (facts.title or facts.categories or facts.attributes)
        and (allowed is None or item in allowed)
        and shard.item_row(item) is None
    }
    return add_items(shard, _build_item_table(shard, new)) if new else shard


def _build_item_table(shard: Shard, posted: Mapping[str, ItemIn]) -> pl.DataFrame:
    """Builds rows of a shard's catalogue from posted metadata.

    Columns: item, title, and those of the shard's features that were posted. Categories fill a feature of this name.
    """
    known = {} if shard.features is None else dict(shard.features.schema)
    columns = {"item": list(posted), "title": [facts.title for facts in posted.values()]}
    for name, kind in known.items():
        columns[name] = [_read_item_value(facts, name, texts=kind == pl.String) for facts in posted.values()]
    return pl.DataFrame(columns, schema={"item": pl.String, "title": pl.String, **known})


def _read_item_value(facts: ItemIn, name: str, *, texts: bool) -> str | float | None:
    value = facts.attributes.get(name)
    if value is None and texts and facts.categories and name.lower() in CATEGORIES:
        return "|".join(facts.categories)
    if isinstance(value, bool):
        return str(value).lower() if texts else None
    if isinstance(value, str) is texts:
        return value
    return str(value) if texts and value is not None else None


def _add_met(shard: Shard, low: pl.DataFrame, path: Path) -> Shard:
    """Adds low ratings as met events, which withdraw positives that are no later.

    Positives stay where otherwise no user would be left: answers know of the ratings all the same.
    """
    if low.is_empty():
        return shard
    pairs = shard.events_with_ids()
    time = pl.col("time") if "time" in pairs.columns else pl.lit(None, dtype=pl.Int64)
    dated = pairs.select("user", "item", "split", known=time).join(low, on=["user", "item"])
    withdrawn = dated.filter(pl.col("known").is_null() | (pl.col("known") <= pl.col("time")))
    if (withdrawn["split"] == "train").sum() == shard.train.nnz:
        low = low.join(withdrawn, on=["user", "item"], how="anti")
    return append_events(shard, low.drop("sequence").with_columns(split=pl.lit(MET)), path) if len(low) else shard


def _choose_kept(waiting: pl.DataFrame, low: pl.DataFrame, room: int) -> tuple[list[int], int]:
    """Chooses the newest interactions that have room in the log.

    Returns their sequence numbers, and how many of the waiting ones have no room.
    """
    first, second = (table["sequence"].sort(descending=True).to_list() for table in (waiting, low))
    return [*first, *second][:room], max(0, len(first) - room)
