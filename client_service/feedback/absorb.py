"""A shard and the log of what has come since -> the next shard, and what of the log is to stay."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from client_service.feedback.store import FeedbackStore
from client_service.feedback.told import HandedOver, Told
from client_service.shard import Shard
from client_service.shard.changes import append_events, erase_users
from client_service.shard.events import MET
from client_service.shard.ratings import choose_least_rating

LOG = {"sequence": pl.Int64, "user": pl.String, "item": pl.String, "time": pl.Int64, "rating": pl.Float64}


@dataclass(frozen=True)
class Absorbed:
    """The shard before, and after: the same object where nothing has happened. handed: what there was to absorb.

    kept: sequence numbers of what stays in the log. waiting: likings among these, of items that the catalogue of the
    federation does not list. dropped: how many of these would have stayed if there was room. forgotten: how many
    users the shard has no more.
    """

    before: Shard
    after: Shard
    handed: HandedOver
    kept: list[int]
    waiting: int
    dropped: int
    forgotten: int


def absorb_feedback(
    before: Shard, store: FeedbackStore, least_rating: float | None, listed: Collection[str] | None = None
) -> Absorbed:
    """The next shard, which is not written. The log stays: see `FeedbackStore.forget_absorbed`.

    Erased users go first, so that one who has come back keeps what is later. Of several interactions of a user with an
    item the latest counts. A liking joins the training pairs, one of an item that is not among those `listed` waits
    in the log (None: any item joins the catalogue). A lower rating joins what was met, and takes a liking back that is
    no later; it also stays in the log while there is room, for processes that answer from an earlier shard. Done again
    before the log is forgotten, it changes nothing. DataError where nobody would be left.
    """
    least_rating = choose_least_rating(least_rating, before.rating)
    handed = store.hand_over()
    latest = _latest(handed)
    likes = pl.col("rating").is_null() | (pl.col("rating") >= least_rating)
    known = pl.lit(True) if listed is None else pl.col("item").is_in(pl.Series(list(listed), dtype=pl.String).implode())
    liked, waiting, low = (latest.filter(which) for which in (likes & known, likes & ~known, ~likes))
    gone = _erased(before, handed.told)
    forgotten = erase_users(before, gone) if gone else before
    after = _with_met(_with_liked(forgotten, liked, handed.told, store.path), low, store.path)
    kept, dropped = _keep(waiting, low, store.room_to_keep)
    if after.digest != before.digest:  # before the shard is another one: who forgets what either gave must find it
        store.note_stale(before.digest, after.digest)
    same = (after.lists_digest, after.events_digest) == (before.lists_digest, before.events_digest)
    after = before if same else replace(after, notes=before.notes)  # clean-ups of one refresh are no story
    return Absorbed(before, after, handed, kept, len(waiting), dropped, len(gone))


def _latest(handed: HandedOver) -> pl.DataFrame:
    """Of each user and item the interaction with the latest time, of equal times that which came last."""
    rows = [(one.sequence, one.user, one.item, one.time, one.rating) for one in handed.interactions]
    table = pl.DataFrame(rows, schema=LOG, orient="row").sort("time", "sequence")
    return table.unique(["user", "item"], keep="last", maintain_order=True)


def _erased(shard: Shard, told: Told) -> list[str]:
    if not told.erased:
        return []
    return [user for user in (*shard.user_ids, *shard.met_only_users) if told.erases(user)]


def _with_liked(shard: Shard, liked: pl.DataFrame, told: Told, where: Path) -> Shard:
    if liked.is_empty():
        return shard
    titles = {"item": list(told.items), "title": [facts.title for facts in told.items.values()]}
    items = pl.DataFrame(titles, schema={"item": pl.String, "title": pl.String})
    return append_events(shard, liked.drop("sequence"), where, items if len(items) else None)


def _with_met(shard: Shard, low: pl.DataFrame, where: Path) -> Shard:
    """The shard in which low ratings are met, and take back likings that are no later. Likings stay where otherwise
    nobody would be left: answers know of the ratings all the same."""
    if low.is_empty():
        return shard
    pairs = shard.events_with_ids()
    time = pl.col("time") if "time" in pairs.columns else pl.lit(None, dtype=pl.Int64)
    dated = pairs.select("user", "item", "split", known=time).join(low, on=["user", "item"])
    disliked = dated.filter(pl.col("known").is_null() | (pl.col("known") <= pl.col("time")))
    if (disliked["split"] == "train").sum() == shard.train.nnz:
        low = low.join(disliked, on=["user", "item"], how="anti")
    return append_events(shard, low.drop("sequence").with_columns(split=pl.lit(MET)), where) if len(low) else shard


def _keep(waiting: pl.DataFrame, low: pl.DataFrame, room: int) -> tuple[list[int], int]:
    """Sequence numbers of the newest that have room, and how many of those that wait have none."""
    first, second = (table["sequence"].sort(descending=True).to_list() for table in (waiting, low))
    return [*first, *second][:room], max(0, len(first) - room)
