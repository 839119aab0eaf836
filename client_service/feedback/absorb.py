"""A shard and the log of what has come since -> the next shard, and a log without what that shard holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from client_service.feedback.store import FeedbackStore, LoggedInteraction, Told, mark_of
from client_service.shard import Shard, change_shard
from client_service.shard.changes import append_events, erase_users


@dataclass(frozen=True)
class Absorbed:
    """The shard before and after, and what of the log it has now: to be forgotten there once nobody needs it."""

    before: Shard
    after: Shard
    upto: int
    erased: frozenset[bytes]


def absorb_feedback(folder: Path, store: FeedbackStore, least_rating: float) -> Absorbed:
    """Rewrite the shard in `folder`, whole or not at all. The log stays: see `forget_absorbed`.

    Erased users go first, so that one who has come back keeps what is later. Interactions with a lower rating are not
    absorbed: they are seen, and no liking. Done again before the log is forgotten, it changes nothing. DataError as
    from `change_shard`.
    """
    interactions, told = store.interactions(), store.read_told()
    liked = [one for one in interactions if one.rating is None or one.rating >= least_rating]

    def absorb(shard: Shard) -> Shard:
        after = _absorbed(shard, liked, told, store.path)
        if after.digest != shard.digest:
            store.note_stale(shard.digest)  # before the shard is another one: who forgets this must find it
        return after

    before, after = change_shard(folder, absorb)
    upto = interactions[-1].sequence if interactions else 0
    return Absorbed(before, after, upto, told.erased)


def forget_absorbed(store: FeedbackStore, absorbed: Absorbed, least_rating: float) -> None:
    """Take out of the log what the shard holds now, or holds no more; what has come meanwhile stays."""
    store.forget_absorbed(absorbed.upto, least_rating, absorbed.erased)


def _absorbed(shard: Shard, liked: Sequence[LoggedInteraction], told: Told, where: Path) -> Shard:
    gone = [user for user in shard.user_ids if mark_of(user, told.key) in told.erased] if told.erased else []
    after = erase_users(shard, gone) if gone else shard
    if not liked:
        return after
    rows = [(one.user, one.item, one.time, one.rating) for one in liked]
    schema = {"user": pl.String, "item": pl.String, "time": pl.Int64, "rating": pl.Float64}
    table = pl.DataFrame(rows, schema=schema, orient="row")
    titles = {"item": list(told.items), "title": [facts.title for facts in told.items.values()]}
    items = pl.DataFrame(titles, schema={"item": pl.String, "title": pl.String})
    return append_events(after, table, where, items if len(items) else None)
