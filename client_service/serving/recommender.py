"""Recommendations from a frozen model: ids, titles, scores, and flags of how each list was made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.shard import CompiledShard
from client_service.event_log.overlay import Overlay
from client_service.model_store.model_files import Served
from client_service.models.ranker import Rows
from client_service.serving.item_answers import Answers, Catalogue, Query, Ranked, best_rows
from client_service.serving.messages import SCORE, Fallback, ItemOut, RecommendationsOut
from client_service.serving.model_server import ModelServer
from client_service.serving.precomputed_lists import BegunList, ListBuilder, ListedRows, PrecomputedLists
from client_service.serving.ranking import (
    Exclusions,
    ListKey,
    ListRanking,
    RecentLists,
    changes_basket,
    history_rows,
    recent_basket,
)
from client_service.serving.requests import Basket, Listed, ListRequest, Mask
from shared.errors import NotFoundError
from shared.method.graph import Float64
from shared.method.parameters import Float32

NO_ROWS: Rows = np.zeros(0, dtype=np.int64)


class Recommender(ModelServer):
    """Answers from one `Served` at a time. Putting in another is one assignment: a request sees the old or the new.

    `keeper`: computes the lists of the known users before they are asked for; without one each is computed then.
    `overlay`: what has happened since the shard was written.
    """

    score_meaning = SCORE

    def __init__(self, shard: CompiledShard, keeper: ListBuilder | None = None, overlay: Overlay | None = None) -> None:
        super().__init__()
        self._shard, self._keeper, self.overlay = shard, keeper, overlay or Overlay(shard)
        self._answers, self.catalogue = Answers(shard, self.overlay), Catalogue(shard, self.overlay)
        self._exclusions = Exclusions(shard, self.overlay)
        self._recent = RecentLists()
        self._ranking = ListRanking(shard, keeper, self._exclusions, self._recent)
        self._served: Served | None = None
        self._popularity = shard.popularity

    @property
    def served(self) -> Served | None:
        """The model that answers; None before there is one."""
        return self._served

    @served.setter
    def served(self, served: Served | None) -> None:
        if served is not None:
            served.model.encoder.drop_training_state()
        self._served = served
        if self._keeper is not None and served is not None:
            self._keeper.begin(served.ranker)

    @property
    def known_users(self) -> int:
        """How many users get a list of their own."""
        self.overlay.follow()
        return self.overlay.known_users

    @property
    def shown_items(self) -> int:
        """How many items can be recommended."""
        return self.catalogue.count_shown()

    @property
    def lists_share(self) -> float:
        """Share of the known users whose lists are computed."""
        lists = self._lists()
        return 0.0 if lists is None else lists.ready / len(lists.items)

    def close(self) -> None:
        """End what goes on in the background."""
        if self._keeper is not None:
            self._keeper.close()

    def for_user(self, user: str, limits: ListRequest) -> RecommendationsOut:
        """The user's list; popular items, flagged, for somebody unknown or while there is no model."""
        return self.at_once(user, limits) or self.for_users((user,), limits)[0]

    def at_once(self, user: str, limits: ListRequest) -> RecommendationsOut | None:
        """The same where it is a look-up; None where it has to be computed, which nobody should do in an event loop."""
        return self._look_up(self._served, self._ask_for(user), limits)

    def listed_for(self, user: str, k: int) -> Listed | None:
        """The k best items of a user that he does not have; None where that is no look-up."""
        served = self._served
        if served is None or (found := self._find_list(served, self._ask_for(user), ListRequest(k))) is None:
            return None
        rows, scores = found[0].tolist(), served.relevance.of(found[1]).tolist()
        return Listed(served.version, rows, scores, self._shard.item_ids, self.overlay.titles)

    def for_users(self, users: Sequence[str], limits: ListRequest) -> tuple[RecommendationsOut, ...]:
        """Their lists in this order: looked up where they can be, all others computed together."""
        served, asked = self._served, [self._ask_for(user) for user in users]
        found = [self._look_up(served, one, limits) for one in asked]
        missing = [place for place, one in enumerate(found) if one is None]
        if missing:
            assert served is not None, "without a model, popular items are at hand"
            begun = [(asked[place], self._begin_list(served, asked[place], limits)) for place in missing]
            ranked = self._ranking.rank_users(served, begun, limits)
            for place, (items, scores) in zip(missing, ranked, strict=True):
                found[place] = self._answer(served, asked[place], items, scores, limits)
        return tuple(one for one in found if one is not None)

    def for_basket(self, basket: Iterable[str], limits: ListRequest) -> RecommendationsOut:
        """A list for somebody who is in no graph, from the items given (fold-in)."""
        return self.for_baskets([Basket(tuple(basket), limits)])[0]

    def for_baskets(self, asked: Sequence[Basket]) -> tuple[RecommendationsOut, ...]:
        """Lists for such people in this order, computed together."""
        self.overlay.follow()
        served, known = self._served, [self._exclusions.rows(basket.items) for basket in asked]
        found = [self._without_model(served, *one, basket.limits) for one, basket in zip(known, asked, strict=True)]
        missing = [place for place, one in enumerate(found) if one is None]
        if missing:
            assert served is not None, "without a model, popular items are at hand"
            ranked = self._ranking.rank_baskets(served, [(known[place][0], asked[place].limits) for place in missing])
            for place, (items, scores) in zip(missing, ranked, strict=True):
                asker = partial(self._asker_of_basket, served, known[place][0])
                lists = self._answers.write_page(_ranked(served, items, scores), asked[place].limits, asker)
                found[place] = RecommendationsOut(model=served.version, unknown_items=known[place][1], items=lists)
        return tuple(one for one in found if one is not None)

    def similar(self, item: str, k: int) -> tuple[str | None, tuple[ItemOut, ...]]:
        """Items by the cosine of their pooled embeddings. NotFoundError for an item outside the catalogue."""
        self.overlay.follow()
        row, served = self._shard.item_row(item), self.served
        if row is None:
            raise NotFoundError("expected an item of this silo's catalogue, got an unknown one")
        if served is None:
            return None, ()
        scores = served.directions @ served.directions[row]
        scores[row] = -np.inf
        if self.overlay.hidden is not None:
            scores[self.overlay.hidden] = -np.inf
        return served.version, self._answers.write(*best_rows(scores, k))

    def history(self, user: str, most: int) -> tuple[tuple[ItemOut, ...], int]:
        """The items that this user's list follows from, the later ones first, at most so many; and how many there are.
        A score of them means nothing."""
        self.overlay.follow()
        rows = history_rows(self._shard, self.overlay, user)
        return self._answers.write(rows[:most], np.zeros(min(most, len(rows)), dtype=np.float32)), len(rows)

    def limits(
        self,
        k: int,
        exclude_seen: bool = True,
        allow: Iterable[str] | None = None,
        exclude: Sequence[str] = (),
        filters: Sequence[str] = (),
        *,
        offset: int = 0,
        mmr: float = 0.0,
        freshness: float = 0.0,
        explain: bool = False,
        raw: bool = False,
    ) -> ListRequest:
        """Filters, allow and exclude lists as one mask. ProtocolError for a filter of another form, and for items
        further down than any list goes, and for freshness where the shard has no times."""
        self.overlay.follow()
        forbidden = self._exclusions.forbid(allow, exclude, filters)
        limits = ListRequest(k, exclude_seen, forbidden, offset, mmr, freshness, explain, raw)
        limits.require_reachable()
        if freshness > 0.0:
            self._answers.require_times()
        return limits

    def _ask_for(self, user: str) -> ListKey:
        """All that is known of a user, once a request: meanwhile he may be erased, or do something."""
        self.overlay.follow()
        row, latest = self.overlay.user_row(user), self.overlay.of(user)
        by_row = row is not None and (latest is None or not changes_basket(self._shard, row, latest))
        met = NO_ROWS if row is not None else self.overlay.met_rows(user)
        return ListKey(user, row, latest, by_row, self.overlay.hidden, met)

    def _look_up(self, served: Served | None, asked: ListKey, limits: ListRequest) -> RecommendationsOut | None:
        if served is None or not (asked.by_row or len(recent_basket(self._shard, asked.row, asked.latest))):
            reason: Fallback = "no model yet" if served is None else "unknown user"
            return self._popular(reason, self._exclusions.of_user(asked, limits), limits, user=asked.user)
        found = self._find_list(served, asked, limits)
        return None if found is None else self._answer(served, asked, *found, limits)

    def _find_list(self, served: Served, asked: ListKey, limits: ListRequest) -> ListedRows | None:
        """The best items of a user whose list is at hand and reaches so far."""
        begun = self._begin_list(served, asked, limits)
        return None if begun is None else begun.first(limits.depth)

    def _begin_list(self, served: Served, asked: ListKey, limits: ListRequest) -> BegunList | None:
        """What is at hand of a user's list."""
        if not limits.exclude_seen:
            return None
        forbidden = limits.forbidden
        if asked.hidden is not None:
            forbidden = asked.hidden if forbidden is None else forbidden | asked.hidden
        if not asked.by_row:
            return self._recent.begin(served.ranker, asked, forbidden)
        lists = self._lists()
        if asked.row is None or lists is None or lists.ranker is not served.ranker:
            return None
        if asked.latest is not None:
            forbidden = np.zeros_like(self._popularity, dtype=bool) if forbidden is None else forbidden.copy()
            forbidden[asked.latest.seen] = True
        return lists.begin(asked.row, forbidden)

    def _lists(self) -> PrecomputedLists | None:
        return None if self._keeper is None else self._keeper.lists

    def _without_model(
        self, served: Served | None, rows: Rows, unknown: int, limits: ListRequest
    ) -> RecommendationsOut | None:
        """Popular items for a basket that no model can tell anything of; None for any other one."""
        if served is not None and len(rows):
            return None
        reason: Fallback = "no model yet" if served is None else "no known item in the basket"
        found = self._popular(reason, self._exclusions.of_basket(rows, limits), limits)
        return found.model_copy(update={"unknown_items": unknown})

    def _answer(
        self, served: Served, asked: ListKey, items: NDArray[np.integer], scores: Float32, limits: ListRequest
    ) -> RecommendationsOut:
        lists = self._answers.write_page(_ranked(served, items, scores), limits, partial(self._asker, served, asked))
        return RecommendationsOut(user=asked.user, model=served.version, items=lists)

    def _share(self, counts: Float32) -> Float64:
        """Of the shard's users, who have an item that so many have."""
        found: Float64 = np.maximum(counts, 0.0).astype(np.float64) / len(self._shard.user_ids)
        return found

    def _asker(self, served: Served, asked: ListKey) -> Query:
        """A user as the model sees him: by his row, or with later interactions by a basket of all that he has."""
        basket = recent_basket(self._shard, asked.row, asked.latest)
        if not asked.by_row:
            return self._asker_of_basket(served, basket)
        return Query(served, served.ranker.users[np.array([asked.row])], basket)

    def _asker_of_basket(self, served: Served, basket: Rows) -> Query:
        return Query(served, self._ranking.fold_in(served, [basket]), basket)

    def _popular(
        self, reason: Fallback, excluded: Mask, limits: ListRequest, *, user: str | None = None
    ) -> RecommendationsOut:
        scores = self._popularity.copy()
        scores[excluded] = -np.inf
        lists = self._answers.write_page(Ranked(*best_rows(scores, limits.depth), self._served, self._share), limits)
        return RecommendationsOut(user=user, fallback=reason, items=lists)


def _ranked(served: Served, rows: NDArray[np.integer], scores: Float32) -> Ranked:
    return Ranked(rows, scores, served, served.relevance.of)
