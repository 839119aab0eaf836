"""Users and baskets, a model at rest -> the best items of each, computed a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from scipy import sparse

from client_service.models.ranker import Rows, Side, join_sides
from client_service.serving.exclusions import Exclusions
from client_service.serving.history import basket_since
from client_service.serving.lists import BLOCK, LENGTH, ListedRows, ListKeeper
from client_service.serving.questions import Limits, Mask
from client_service.serving.recent import Asked, RecentLists
from client_service.serving.served import Served
from client_service.shard import Shard


class ListRanking:
    """Over one shard's catalogue. `keeper`: who may have a graph over the items. `recent`: the lists of users with
    later interactions, of which those are kept that follow from nothing that a single request asks for."""

    def __init__(self, shard: Shard, keeper: ListKeeper | None, exclusions: Exclusions, recent: RecentLists) -> None:
        self._shard, self._keeper, self._exclusions, self._recent = shard, keeper, exclusions, recent

    def rank_users(self, served: Served, asked: Sequence[Asked], limits: Limits) -> Iterator[ListedRows]:
        """The best items of each of these users."""
        by_row = self._rank_rows(served, [one for one in asked if one.by_row], limits)
        by_basket = self._rank_later(served, [one for one in asked if not one.by_row], limits)
        return (next(by_row if one.by_row else by_basket) for one in asked)

    def rank_baskets(self, served: Served, asked: Sequence[tuple[Rows, Limits]]) -> Iterator[ListedRows]:
        """The best items for each of these rows of items, as many as asked for."""
        step = max(1, BLOCK // len(self._shard.item_ids))
        for first in range(0, len(asked), step):
            block = asked[first : first + step]
            rows, most = [one for one, _ in block], max(limits.depth for _, limits in block)
            strangers = self.fold_in(served, rows)
            excluded = np.stack([self._exclusions.of_basket(*one) for one in block])
            items, scores = self._rank(served, strangers, excluded, most)
            yield from ((items[place, : one.depth], scores[place, : one.depth]) for place, (_, one) in enumerate(block))

    def fold_in(self, served: Served, baskets: Sequence[Rows]) -> Side:
        """Users who are in no graph, by the rows of their items."""
        codes = served.ranker.fusion.encoded(_baskets(baskets, len(self._shard.item_ids)))
        return join_sides([served.model.fold_in(one) for one in baskets], codes)

    def _rank_rows(self, served: Served, asked: Sequence[Asked], limits: Limits) -> Iterator[ListedRows]:
        step = max(1, BLOCK // len(self._shard.item_ids))
        for first in range(0, len(asked), step):
            block = asked[first : first + step]
            excluded = np.stack([self._exclusions.of_user(one.row, self._within(one, limits)) for one in block])
            users = served.ranker.users[np.array([one.row for one in block], dtype=np.int64)]
            yield from zip(*self._rank(served, users, excluded, limits.depth), strict=True)

    def _rank_later(self, served: Served, asked: Sequence[Asked], limits: Limits) -> Iterator[ListedRows]:
        """Of those with later interactions, by a basket of all that each likes."""
        plain = limits.exclude_seen and limits.forbidden is None
        wide = replace(limits, k=max(limits.k, LENGTH - limits.offset)) if plain else limits
        baskets = [(basket_since(self._shard, one.row, one.since), self._within(one, wide)) for one in asked]
        for one, (items, scores) in zip(asked, self.rank_baskets(served, baskets), strict=True):
            if plain:
                self._recent.keep(served.ranker, one, items, scores)
            yield items[: limits.depth], scores[: limits.depth]

    def _within(self, asked: Asked, limits: Limits) -> Limits:
        return self._exclusions.add_since(asked.row, asked.since, limits)

    def _rank(self, served: Served, users: Side, excluded: Mask, k: int) -> ListedRows:
        """As `Ranker.top_scored`, by the graph over the items where there is one and it finds enough."""
        nearest = None if self._keeper is None else self._keeper.nearest
        if nearest is not None and nearest.ranker is served.ranker:
            found = nearest.top_scored(users, excluded, k)
            if found is not None:
                return found
        return served.ranker.top_scored(users, excluded, k)


def _baskets(known: Sequence[Rows], items: int) -> sparse.csr_array:
    """0/1 rows (B, N)."""
    starts = np.cumsum([0, *map(len, known)])
    return sparse.csr_array(
        (np.ones(starts[-1], dtype=np.float32), np.concatenate(known), starts), shape=(len(known), items)
    )
