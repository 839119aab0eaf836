"""Ranks items for users and baskets: which items may be answered, recent lists, blocks of users by a frozen model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.compiled.shard import CompiledShard
from client_service.event_log.overlay import LatestEvents, Overlay
from client_service.model_store.model_files import Served
from client_service.models.ranker import Ranker, Rows, Side, join_sides
from client_service.serving.precomputed_lists import BLOCK, LENGTH, BegunList, ListBuilder, ListedRows, begin_list
from client_service.serving.requests import ListRequest, Mask, parse_filters
from shared.method.parameters import Float32

MOST_RECENT = 20_000  # users, 1.6 kB each


class ListKey(NamedTuple):
    """A user as he is known at one moment: his row in the shard, and what has come since; None for neither.

    by_row: does his list follow from his row? Else it follows from the basket of all that he likes. hidden: the items
    (N,) that nobody is to see. met: rows of the items that the shard says he has met, of a user without a row.
    """

    user: str
    row: int | None
    latest: LatestEvents | None
    by_row: bool
    hidden: Mask | None
    met: Rows

    def agrees_with(self, other: ListKey) -> bool:
        """Is the same known? By identity: it is the same object until more has come."""
        return self.row == other.row and self.latest is other.latest and self.hidden is other.hidden


class _Recent(NamedTuple):
    asked: ListKey
    items: NDArray[np.integer]
    scores: Float32


class RecentLists:
    """At most `most` of them: the one that was not asked for longest goes first. Any thread may ask."""

    def __init__(self, most: int = MOST_RECENT) -> None:
        self._most, self._lock = most, threading.Lock()
        self._lists: OrderedDict[str, _Recent] = OrderedDict()
        # Of the model that they all are of, and what was hidden then: nothing earlier stays in memory.
        self._ranker: Ranker | None = None
        self._hidden: Mask | None = None

    def begin(self, ranker: Ranker, asked: ListKey, forbidden: Mask | None) -> BegunList | None:
        """This user's list without forbidden items (N,); None where it is not there."""
        with self._lock:
            found = self._lists.get(asked.user)
            if found is None or self._ranker is not ranker or not found.asked.agrees_with(asked):
                return None
            self._lists.move_to_end(asked.user)
        return begin_list(found.items, found.scores, forbidden)

    def keep(self, ranker: Ranker, asked: ListKey, items: NDArray[np.integer], scores: Float32) -> None:
        """The best items of this user, -1 where there are no more, without those that he has met."""
        with self._lock:
            if self._ranker is not ranker or self._hidden is not asked.hidden:
                self._lists.clear()
                self._ranker, self._hidden = ranker, asked.hidden
            self._lists[asked.user] = _Recent(asked, items, scores)
            self._lists.move_to_end(asked.user)
            while len(self._lists) > self._most:
                self._lists.popitem(last=False)


class Exclusions:
    """Masks over one shard's catalogue."""

    def __init__(self, shard: CompiledShard, overlay: Overlay) -> None:
        self._shard, self._overlay = shard, overlay

    def rows(self, items: Iterable[str]) -> tuple[Rows, int]:
        """Rows of the known items, each once, and how many are unknown."""
        found = [self._shard.item_row(item) for item in items]
        known = np.unique(np.array([row for row in found if row is not None], dtype=np.int64))
        return known, sum(row is None for row in found)

    def forbid(self, allow: Iterable[str] | None, exclude: Sequence[str], filters: Sequence[str]) -> Mask | None:
        """What a request's lists and filters forbid. ProtocolError for a filter of another form."""
        if allow is None and not exclude and not filters:
            return None
        forbidden = np.zeros(len(self._shard.item_ids), dtype=bool)
        if filters:
            forbidden |= ~self._overlay.facts.mask(parse_filters(filters))
        if allow is not None:
            others = np.ones_like(forbidden)
            others[self.rows(allow)[0]] = False
            forbidden |= others
        forbidden[self.rows(exclude)[0]] = True
        return forbidden if forbidden.any() else None

    def forbidden(self, limits: ListRequest) -> Mask:
        """Those of the request, and those that are hidden."""
        forbidden, hidden = limits.forbidden, self._overlay.hidden
        if forbidden is None:
            return np.zeros(len(self._shard.item_ids), dtype=bool) if hidden is None else hidden.copy()
        return forbidden.copy() if hidden is None else forbidden | hidden

    def of_basket(self, rows: Rows, limits: ListRequest) -> Mask:
        """Forbidden items, and those of a basket."""
        excluded = self.forbidden(limits)
        if limits.exclude_seen:
            excluded[rows] = True
        return excluded

    def known_items(self, asked: ListKey) -> Rows:
        """Rows of all items that the shard says a user has met: liked, in whichever split, or not."""
        return asked.met if asked.row is None else self._shard.known_pairs.row(asked.row)

    def of_user(self, asked: ListKey, limits: ListRequest) -> Mask:
        """Forbidden items, and those that the user has met."""
        excluded = self.forbidden(limits)
        if limits.exclude_seen:
            excluded[self.known_items(asked)] = True
            if asked.latest is not None:
                excluded[asked.latest.seen] = True
        return excluded

    def forbid_met(self, asked: ListKey, limits: ListRequest) -> ListRequest:
        """With what the user has met among the forbidden items: his basket holds the training items alone."""
        if not limits.exclude_seen or (asked.latest is None and not len(self.known_items(asked))):
            return limits
        return replace(limits, forbidden=self.of_user(asked, limits))


def history_rows(shard: CompiledShard, overlay: Overlay, user: str) -> Rows:
    """Rows of the items liked since the shard was written, then of the training items; none of somebody unknown.

    Validation and test items are left out: they judge the list.
    """
    row, latest = overlay.user_row(user), overlay.of(user)
    liked = np.zeros(0, dtype=np.int64) if latest is None else latest.liked
    return np.concatenate([liked, np.setdiff1d(recent_basket(shard, row, latest), liked)])


def recent_basket(shard: CompiledShard, row: int | None, latest: LatestEvents | None) -> Rows:
    """Rows of all items that a user likes, ascending: those of his row, and what has come since, of which the latest
    counts."""
    trained: Rows = np.zeros(0, dtype=np.int64) if row is None else shard.train.row(row)
    return trained if latest is None else np.union1d(np.setdiff1d(trained, latest.disliked), latest.liked)


def changes_basket(shard: CompiledShard, row: int, latest: LatestEvents) -> bool:
    """Does the user like other items than those of his row? What he has seen alone changes nothing of that."""
    return len(latest.liked) > 0 or bool(np.isin(latest.disliked, shard.train.row(row)).any())


Begun = tuple[ListKey, BegunList | None]
"""A user, and what is at hand of the list that is asked for."""


class ListRanking:
    """Over one shard's catalogue. `keeper`: who may have a graph over the items. `recent`: the lists of users with
    later interactions, of which those are kept that follow from nothing that a single request asks for."""

    def __init__(
        self, shard: CompiledShard, keeper: ListBuilder | None, exclusions: Exclusions, recent: RecentLists
    ) -> None:
        self._shard, self._keeper, self._exclusions, self._recent = shard, keeper, exclusions, recent

    def rank_users(self, served: Served, asked: Sequence[Begun], limits: ListRequest) -> Iterator[ListedRows]:
        """The best items of each of these users. A list that has begun elsewhere is gone on with as it is, so that no
        page of it repeats or passes over an item, whatever the last bits of its scores are here."""
        by_row = self._rank_rows(served, [one for one in asked if one[0].by_row], limits)
        by_basket = self._rank_later(served, [one for one in asked if not one[0].by_row], limits)
        return (next(by_row if one.by_row else by_basket) for one, _ in asked)

    def rank_baskets(
        self, served: Served, asked: Sequence[tuple[Rows, ListRequest]], begun: Sequence[BegunList | None] = ()
    ) -> Iterator[ListedRows]:
        """The best items for each of these rows of items, as many as asked for."""
        step = max(1, BLOCK // len(self._shard.item_ids))
        for first in range(0, len(asked), step):
            block = asked[first : first + step]
            rows, most = [one for one, _ in block], max(limits.depth for _, limits in block)
            strangers = self.fold_in(served, rows)
            excluded = np.stack([self._exclusions.of_basket(*one) for one in block])
            found = self._go_on(served, strangers, excluded, most, begun[first : first + step] or [None] * len(block))
            yield from (
                (items[: one.depth], scores[: one.depth])
                for (items, scores), (_, one) in zip(found, block, strict=True)
            )

    def fold_in(self, served: Served, baskets: Sequence[Rows]) -> Side:
        """Users who are in no graph, by the rows of their items."""
        codes = served.ranker.fusion.encoded(_baskets(baskets, len(self._shard.item_ids)))
        return join_sides([served.model.fold_in(one) for one in baskets], codes)

    def _rank_rows(self, served: Served, asked: Sequence[Begun], limits: ListRequest) -> Iterator[ListedRows]:
        step = max(1, BLOCK // len(self._shard.item_ids))
        for first in range(0, len(asked), step):
            block = asked[first : first + step]
            excluded = np.stack([self._exclusions.of_user(one, limits) for one, _ in block])
            users = served.ranker.users[np.array([one.row for one, _ in block], dtype=np.int64)]
            yield from self._go_on(served, users, excluded, limits.depth, [begun for _, begun in block])

    def _rank_later(self, served: Served, asked: Sequence[Begun], limits: ListRequest) -> Iterator[ListedRows]:
        """Of those with later interactions, by a basket of all that each likes."""
        plain = limits.exclude_seen and limits.forbidden is None
        wide = replace(limits, k=max(limits.k, LENGTH - limits.offset)) if plain else limits
        baskets = [
            (recent_basket(self._shard, one.row, one.latest), self._exclusions.forbid_met(one, wide))
            for one, _ in asked
        ]
        found = self.rank_baskets(served, baskets, [begun for _, begun in asked])
        for (one, _), (items, scores) in zip(asked, found, strict=True):
            if plain:
                self._recent.keep(served.ranker, one, items, scores)
            yield items[: limits.depth], scores[: limits.depth]

    def _go_on(
        self, served: Served, users: Side, excluded: Mask, k: int, begun: Sequence[BegunList | None]
    ) -> Iterator[ListedRows]:
        """The k best items of each user that are not excluded (B, N); those of a list that has begun come first."""
        known = 0 if None in begun else min((len(one.items) for one in begun if one is not None), default=0)
        for one, row in zip(begun, excluded, strict=True):
            if one is not None:
                row[one.items] = True
        items, scores = self._rank(served, users, excluded, k - known)
        for place, one in enumerate(begun):
            found = items[place], scores[place]
            listed, best = found if one is None else one.join(*found)
            yield listed[:k], best[:k]

    def _rank(self, served: Served, users: Side, excluded: Mask, k: int) -> ListedRows:
        """As `Ranker.top_scored`, by the graph over the items where there is one and it finds enough.

        The graph is always asked for as many: which items it finds depends on that. Those further down are ranked
        without it.
        """
        nearest = None if self._keeper is None else self._keeper.nearest
        if nearest is None or nearest.ranker is not served.ranker:
            return served.ranker.top_scored(users, excluded, k)
        found = nearest.top_scored(users, excluded, LENGTH)
        if found is None:
            return served.ranker.top_scored(users, excluded, k)
        if k <= LENGTH:
            return found[0][:, :k], found[1][:, :k]
        np.put_along_axis(excluded, found[0], True, axis=1)
        items, scores = served.ranker.top_scored(users, excluded, k - LENGTH)
        scores = np.minimum(scores, found[1][:, -1:])
        return np.concatenate([found[0], items], axis=1), np.concatenate([found[1], scores], axis=1)


def _baskets(known: Sequence[Rows], items: int) -> sparse.csr_array:
    """0/1 rows (B, N)."""
    starts = np.cumsum([0, *map(len, known)])
    return sparse.csr_array(
        (np.ones(starts[-1], dtype=np.float32), np.concatenate(known), starts), shape=(len(known), items)
    )
