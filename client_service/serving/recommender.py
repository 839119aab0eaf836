"""Recommendations from a frozen model: ids, titles, scores, and flags of fallbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.model import FIRST, CompiledModel, open_model
from client_service.compiled.publication import Publication
from client_service.compiled.shard import CompiledShard, Float32, Rows, open_shard
from client_service.event_log.overlay import Overlay
from client_service.serving.item_answers import Answers, Catalogue, Float64, Query, Ranked, best_rows
from client_service.serving.messages import SCORE, Fallback, ItemOut, RecommendationsOut, SimilarOut
from client_service.serving.model_server import ModelServer
from client_service.serving.new_items import (
    NewItem,
    NewItems,
    rate_new_item,
    reserved_places,
)
from client_service.serving.ranking import (
    NO_NAMES,
    NO_ROWS,
    Basket,
    Exclusions,
    ListedItems,
    ListedRows,
    ListKey,
    ListRequest,
    ListStart,
    Mask,
    NewItemQuery,
    PlacedItem,
    UserFacts,
    changes_basket,
    extend_list,
    history_rows,
    rank_basket,
    recent_basket,
    start_list,
)
from shared.errors import NotFoundError

QUICK = 400  # most items of a basket, and of a list, that are looked up and written in an event loop
ListReader = Callable[[int], tuple[NDArray[np.int32], Float32] | None]
LONGEST_FILL = 120.0  # seconds for which the model before answers users whose lists are not filled
EMPTY_START = ListStart(NO_ROWS, np.zeros(0, dtype=np.float32), whole=False)


class ModelPublisher(Protocol):
    """Compiles assigned models, and computes their lists in the background until closed."""

    def serve_model(self, served: Any) -> CompiledModel | None: ...
    @property
    def is_busy(self) -> bool: ...
    def close(self) -> None: ...


class Recommender(ModelServer):
    """Answers from one model at a time.

    Another model replaces it in one assignment: a request sees the old or the new. overlay: changes since the shard was
    written. model: None before there is one. publisher: compiles and publishes a model that is assigned to `served`;
    None: an assigned model answers as it is.
    """

    score_meaning = SCORE
    overlay: Overlay

    def __init__(
        self,
        shard: CompiledShard,
        overlay: Overlay | None = None,
        model: CompiledModel | None = None,
        *,
        publisher: ModelPublisher | None = None,
    ) -> None:
        super().__init__()
        self._shard, self.overlay, self.model, self._publisher = shard, overlay or Overlay(shard), model, publisher
        self._answers, self.catalogue = Answers(shard, self.overlay), Catalogue(shard, self.overlay)
        self._exclusions = Exclusions(shard, self.overlay)
        self._new = NewItems(shard, self.overlay, self._answers)
        self._popularity = shard.popularity
        self._fallback: tuple[Recommender, float] | None = None  # and until when, by time.monotonic

    @property
    def served(self) -> CompiledModel | None:
        """Model that answers, or None before there is one."""
        return self.model

    @served.setter
    def served(self, served: Any) -> None:
        self.model = served if self._publisher is None else self._publisher.serve_model(served)

    def with_model(self, serving: Path, published: Publication) -> Recommender:
        """Makes a recommender with another published model of the same shard.

        Raises DataError for a damaged folder, or one of another shard.
        """
        model = None if published.model is None else open_model(serving / published.model, self._shard)
        return Recommender(self._shard, self.overlay, model)

    def set_fallback(self, before: ModelServer) -> None:
        """Lets the recommender before this one answer known users whose lists are not filled yet.

        Ranking for each of them would take a hundred times as long as a look-up, for as long as the lists are filled. A
        recommender whose shard has an erased user is dropped at once: what is kept of him ends with a refresh.
        """
        if not isinstance(before, Recommender):
            return
        before.overlay.follow()
        older, before._fallback = before._fallback, None
        if self.model is None or self.lists_share == 1.0 or before.overlay.has_erased:
            return
        self._fallback = (before, time.monotonic() + LONGEST_FILL) if before.lists_share > 0.0 else older

    def drop_fallback(self) -> None:
        """Drops the fallback once all lists are filled or LONGEST_FILL is over."""
        if self._fallback is not None and (self.lists_share == 1.0 or time.monotonic() > self._fallback[1]):
            self._fallback = None

    @property
    def is_busy(self) -> bool:
        """Whether lists are computed in the background."""
        return self._publisher is not None and self._publisher.is_busy

    def close(self) -> None:
        """Ends the computation of lists in the background."""
        if self._publisher is not None:
            self._publisher.close()

    @property
    def known_users(self) -> int:
        """Number of users who get a list of their own."""
        self.overlay.follow()
        return self.overlay.known_users

    @property
    def shown_items(self) -> int:
        """Number of items that can be recommended."""
        return self.catalogue.count_shown()

    @property
    def lists_share(self) -> float:
        """Share of the known users whose lists are computed."""
        model = self.model
        return 0.0 if model is None else model.lists_ready / len(self._shard.user_ids)

    def for_user(self, user: str, limits: ListRequest) -> RecommendationsOut:
        """Recommends items to a user.

        Popular items, flagged, for an unknown user or without a model.
        """
        return self.answer_by_lookup(user, limits) or self.recommend_users((user,), limits)[0]

    def answer_by_lookup(self, user: str, limits: ListRequest) -> RecommendationsOut | None:
        """Answers as `for_user` by a look-up, or returns None if a list must be computed.

        A computation belongs in a thread, not in an event loop.
        """
        return self._look_up(self.model, self._read_user(user), limits)

    def look_up_list(self, user: str, k: int, new: int | None = None) -> ListedItems | None:
        """Looks up a user's computed list of k items, and the new items in it.

        None if no computed list is long enough.
        """
        model, asked, limits = self.model, self._read_user(user), ListRequest(k, new=new)
        if model is None:
            return None
        if (found := self._find_list(model, asked, limits)) is None:
            fallback = self._find_fallback(model, asked, limits)
            return None if fallback is None else fallback.look_up_list(user, k, new)
        best, scores, placed = found[0].tolist(), found[1], tuple[PlacedItem, ...]()
        chosen = self._choose_new(model, self._asker_of(asked), limits) if self._has_new(model) else []
        if chosen:
            rows = {one.row for one in chosen}
            if not rows.isdisjoint(best):  # rare: a list holds a new item where its text is a part of the score
                kept = [place for place, row in enumerate(best) if row not in rows]
                best, scores = [best[place] for place in kept], scores[kept]
            places = _places(chosen, limits, len(best))
            best, scores = best[: k - len(places)], scores[: k - len(places)]
            placed = tuple(
                PlacedItem(place, one.item, rate_new_item(model, one), one.title)
                for place, one in zip(places, chosen, strict=True)
            )
        ids, titles = self._shard.item_ids, self.overlay.titles
        return ListedItems(model.version, best, model.relevance.apply(scores).tolist(), ids, titles, placed)

    def recommend_users(self, users: Sequence[str], limits: ListRequest) -> tuple[RecommendationsOut, ...]:
        """Answers users in this order, by a look-up where their lists are computed."""
        model, asked = self.model, [self._read_user(user) for user in users]
        return tuple(self._look_up(model, one, limits) or self._compute(model, one, limits) for one in asked)

    def for_basket(self, basket: Iterable[str], limits: ListRequest) -> RecommendationsOut:
        """Recommends items for a basket by fold-in, without a user of the graph."""
        return self.recommend_baskets([Basket(tuple(basket), limits)])[0]

    def answer_quick_basket(self, asked: Basket) -> RecommendationsOut | None:
        """Answers as `for_basket`, or returns None if that takes more than a millisecond.

        A longer computation belongs in a thread, not in an event loop.
        """
        model = self.model
        if model is None or asked.limits.costly or max(len(asked.items), asked.limits.depth) > QUICK:
            return None
        self.overlay.follow()
        rows, unknown = self._exclusions.rows(asked.items)
        if not len(rows) or not model.is_quick(rows):
            return None
        return self._answer_basket(model, asked.items, rows, unknown, asked.limits)

    def recommend_baskets(self, asked: Sequence[Basket]) -> tuple[RecommendationsOut, ...]:
        """Answers several baskets in this order."""
        self.overlay.follow()
        model = self.model
        return tuple(
            self._answer_basket(model, one.items, *self._exclusions.rows(one.items), one.limits) for one in asked
        )

    def similar(self, item: str, k: int) -> SimilarOut:
        """Lists items by the cosine of their pooled embeddings.

        Those like a new item are listed by the cosine of their texts' features. NotFoundError for an item outside the
        catalogue that is no new one.
        """
        self.overlay.follow()
        row, model = self._shard.item_row(item), self.model
        cold = None if model is None else model.cold
        features = None if cold is None else self._new.find_features(cold, item)
        if row is None and features is None:
            raise NotFoundError("expected an item of this silo's catalogue, got an unknown one")
        if model is None:
            return SimilarOut(item=item, items=())
        if cold is not None and features is not None:
            scores = cold.cosines(features)
        else:
            scores = model.directions @ model.directions[row]
        if row is not None:
            scores[row] = -np.inf
        if self.overlay.hidden is not None:
            scores[self.overlay.hidden] = -np.inf
        reason: Literal["new"] | None = None if features is None else "new"
        items = self._answers.write(*best_rows(scores, k))
        return SimilarOut(item=item, model=model.version, reason=reason, items=items)

    def history(self, user: str, most: int) -> tuple[tuple[ItemOut, ...], int]:
        """Returns the latest `most` items behind a user's list, and the number of all.

        The later ones come first. Their scores mean nothing.
        """
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
        new: int | None = None,
        only_new: bool = False,
    ) -> ListRequest:
        """Reads a request's options, and turns its filters and lists into one mask.

        Raises ProtocolError for an invalid filter, for a page beyond the longest list, and for freshness where the
        shard has no times.
        """
        self.overlay.follow()
        forbidden = self._exclusions.forbid(allow, exclude, filters)
        allowed, excluded = self._exclusions.rules_for_unlisted(allow, exclude, filters)
        limits = ListRequest(
            k, exclude_seen, forbidden, offset, mmr, freshness, explain, raw, new, only_new, allowed, excluded
        )
        limits.require_reachable()
        if freshness > 0.0:
            self._answers.require_freshness()
        return limits

    def _read_user(self, user: str) -> ListKey:
        """Reads all that is known of a user, once a request.

        Meanwhile the user may be erased, or have new events.
        """
        self.overlay.follow()
        row, latest = self.overlay.user_row(user), self.overlay.latest_events(user)
        by_row = row is not None and (latest is None or not changes_basket(self._shard, row, latest))
        met = NO_ROWS if row is not None else self.overlay.met_rows(user)
        return ListKey(user, row, latest, by_row, self.overlay.hidden, met)

    def _asker_of(self, asked: ListKey) -> NewItemQuery:
        """Describes a user for the choice of new items."""
        latest, listed = asked.latest, asked.row if asked.by_row else None
        if latest is None:
            return NewItemQuery(asked.hidden, partial(self._read_facts, asked), listed)
        return NewItemQuery(asked.hidden, partial(self._read_facts, asked), listed, frozenset(latest.seen.tolist()))

    def _read_facts(self, asked: ListKey) -> UserFacts:
        met, latest = (self._exclusions.known_items(asked),), asked.latest
        basket, names = recent_basket(self._shard, asked.row, latest), self.overlay.met_outside(asked.user)
        return UserFacts(basket, met if latest is None else (*met, latest.seen), names)

    def _has_new(self, model: CompiledModel) -> bool:
        """Tells whether the silo has any new item."""
        cold = model.cold
        if cold is None:
            return False
        return len(cold.rows) > 0 or (self.overlay.has_item_changes and self._new.find_posted(cold) is not None)

    def _choose_new(self, model: CompiledModel, asker: NewItemQuery, limits: ListRequest) -> list[NewItem]:
        """Chooses the new items for the reserved places of a list."""
        return self._new.choose(model, asker, limits, len(reserved_places(limits.new_places, limits.k)))

    def _only_new(self, model: CompiledModel, asker: NewItemQuery, limits: ListRequest) -> tuple[ItemOut, ...]:
        """Lists new items alone."""
        chosen = self._new.rank(model, asker, limits, limits.offset + limits.k)
        return tuple(self._new.write(model, asker, chosen[limits.offset :], limits))

    def _look_up(self, model: CompiledModel | None, asked: ListKey, limits: ListRequest) -> RecommendationsOut | None:
        if limits.only_new and model is not None:
            return None
        if model is None or not (asked.by_row or len(recent_basket(self._shard, asked.row, asked.latest))):
            reason: Fallback = "no model yet" if model is None else "unknown user"
            excluded = self._exclusions.mask_for_user(asked, limits)
            return self._popular(model, reason, excluded, limits, self._asker_of(asked), user=asked.user)
        found = self._find_list(model, asked, limits)
        if found is None and (fallback := self._find_fallback(model, asked, limits)) is not None:
            return fallback._answer_from_list(asked.user, limits)
        return None if found is None else self._answer(model, asked, *found, limits)

    def _answer_from_list(self, user: str, limits: ListRequest) -> RecommendationsOut | None:
        """Answers from a computed list that is long enough, or returns None."""
        model, asked = self.model, self._read_user(user)
        found = None if model is None else self._find_list(model, asked, limits)
        return None if model is None or found is None else self._answer(model, asked, *found, limits)

    def _find_fallback(self, model: CompiledModel, asked: ListKey, limits: ListRequest) -> Recommender | None:
        """Returns the fallback, if it answers a user whose list is not filled yet.

        A request with a mask of items does not go there: the mask is of another shard.
        """
        fallback = self._fallback
        if fallback is None or not asked.by_row or asked.row is None or not limits.exclude_seen:
            return None
        return fallback[0] if limits.forbidden is None and model.list_of(asked.row) is None else None

    def _find_list(self, model: CompiledModel, asked: ListKey, limits: ListRequest) -> ListedRows | None:
        """Returns the best items of a computed list that is long enough, or None."""
        reads = (model.first_of, model.list_of) if limits.depth <= FIRST else (model.list_of,)
        for read in reads:
            if (begun := self._begin_list(read, asked, limits)) is None:
                return None
            if (found := begun.first(limits.depth)) is not None:
                return found
        return None

    def _begin_list(self, read: ListReader, asked: ListKey, limits: ListRequest) -> ListStart | None:
        """Returns the computed beginning of a user's list, or None.

        read: looks up the list, or its first items, by the user's row.
        """
        if not (limits.exclude_seen and asked.by_row) or asked.row is None or (known := read(asked.row)) is None:
            return None
        forbidden = limits.forbidden
        if asked.hidden is not None:
            forbidden = asked.hidden if forbidden is None else forbidden | asked.hidden
        if asked.latest is not None:
            forbidden = np.zeros_like(self._popularity, dtype=bool) if forbidden is None else forbidden.copy()
            forbidden[asked.latest.seen] = True
        return start_list(*known, forbidden)

    def _compute(self, model: CompiledModel | None, asked: ListKey, limits: ListRequest) -> RecommendationsOut:
        """Ranks by the positive items of a user whose list is not computed far enough."""
        assert model is not None, "without a model, `_look_up` answers with popular items"
        basket = recent_basket(self._shard, asked.row, asked.latest)
        if limits.only_new:
            reason: Fallback | None = None if len(basket) else "unknown user"
            items = self._only_new(model, self._asker_of(asked), limits)
            return RecommendationsOut(user=asked.user, model=model.version, fallback=reason, items=items)
        excluded = self._exclusions.mask_for_user(asked, limits)
        if not asked.by_row:
            ranked = _ranked_basket(model, *rank_basket(model, basket, excluded, limits.depth))
            return self._write(model, asked.user, basket, ranked, limits, self._asker_of(asked))
        begun = self._begin_list(model.list_of, asked, limits) or EMPTY_START
        return self._answer(model, asked, *extend_list(model, begun, basket, excluded, limits.depth), limits)

    def _answer_basket(
        self, model: CompiledModel | None, basket: Sequence[str], rows: Rows, unknown: int, limits: ListRequest
    ) -> RecommendationsOut:
        """Ranks items for a basket; popular ones without a model or known items.

        rows: of the basket's known items. unknown: how many others there are.
        """
        excluded = self._exclusions.mask_for_basket(rows, limits)
        asker = NewItemQuery(
            self.overlay.hidden, lambda: UserFacts(rows, (rows,), frozenset(basket) if unknown else NO_NAMES)
        )
        if model is not None and limits.only_new:
            fallback: Fallback | None = None if len(rows) else "no known item in the basket"
            items = self._only_new(model, asker, limits)
            found = RecommendationsOut(model=model.version, fallback=fallback, items=items)
        elif model is None or not len(rows):
            reason: Fallback = "no model yet" if model is None else "no known item in the basket"
            found = self._popular(model, reason, excluded, limits, asker)
        else:
            ranked = _ranked_basket(model, *rank_basket(model, rows, excluded, limits.depth))
            found = self._write(model, None, rows, ranked, limits, asker)
        return found.model_copy(update={"unknown_items": unknown}) if unknown else found

    def _answer(
        self, model: CompiledModel, asked: ListKey, items: NDArray[np.integer], scores: Float32, limits: ListRequest
    ) -> RecommendationsOut:
        """Writes an answer whose scores are on the scale of the computed lists."""
        ranked = Ranked(items, scores, model, model.relevance.apply)
        basket = recent_basket(self._shard, asked.row, asked.latest) if limits.explain else NO_ROWS
        return self._write(model, asked.user, basket, ranked, limits, self._asker_of(asked))

    def _write(
        self,
        model: CompiledModel,
        user: str | None,
        basket: Rows,
        ranked: Ranked,
        limits: ListRequest,
        asker: NewItemQuery,
    ) -> RecommendationsOut:
        lists = self._write_page(model, ranked, limits, asker, Query(model, basket))
        return RecommendationsOut(user=user, model=model.version, items=lists)

    def _write_page(
        self,
        model: CompiledModel | None,
        ranked: Ranked,
        limits: ListRequest,
        asker: NewItemQuery,
        query: Query | None = None,
    ) -> tuple[ItemOut, ...]:
        """Writes the asked part of a list, with new items at the reserved places."""
        chosen = self._choose_new(model, asker, limits) if model is not None and self._has_new(model) else []
        if model is None or not chosen:
            return self._answers.write_page(ranked, limits, query)
        rows, scores = _leave_out(ranked.rows, ranked.scores, chosen)
        places = _places(chosen, limits, int(np.count_nonzero(rows >= 0)))
        before = sum(place < limits.offset for place in places)
        inside = [at for at, place in enumerate(places) if limits.offset <= place < limits.offset + limits.k]
        part = replace(limits, offset=limits.offset - before, k=limits.k - len(inside))
        items = list(self._answers.write_page(ranked._replace(rows=rows, scores=scores), part, query))
        for at, item in zip(inside, self._new.write(model, asker, [chosen[at] for at in inside], limits), strict=True):
            items.insert(places[at] - limits.offset, item)
        return tuple(items)

    def _share(self, counts: Float32) -> Float64:
        """Turns counts of users into shares of the shard's users."""
        found: Float64 = np.maximum(counts, 0.0).astype(np.float64) / len(self._shard.user_ids)
        return found

    def _popular(
        self,
        model: CompiledModel | None,
        reason: Fallback,
        excluded: Mask,
        limits: ListRequest,
        asker: NewItemQuery,
        *,
        user: str | None = None,
    ) -> RecommendationsOut:
        if limits.only_new:  # without a model: nothing scores new items
            return RecommendationsOut(user=user, fallback=reason, items=())
        scores = self._popularity.copy()
        scores[excluded] = -np.inf
        ranked = Ranked(*best_rows(scores, limits.depth), model, self._share)
        lists = self._write_page(model, ranked, limits, asker)
        return RecommendationsOut(user=user, fallback=reason, items=lists)


def _leave_out(
    rows: NDArray[np.integer], scores: Float32, chosen: Sequence[NewItem]
) -> tuple[NDArray[np.integer], Float32]:
    """Takes items that have reserved places out of a list."""
    kept = ~np.isin(rows, [one.row for one in chosen if one.row >= 0])
    return (rows, scores) if kept.all() else (rows[kept], scores[kept])


def _places(chosen: Sequence[NewItem], limits: ListRequest, others: int) -> list[int]:
    """Finds the places of new items in a list.

    They are the reserved ones, or behind its end where it is shorter.
    """
    reserved = reserved_places(limits.new_places, limits.k)
    return [min(place, others + at) for at, place in enumerate(reserved[: len(chosen)])]


def _ranked_basket(model: CompiledModel, rows: NDArray[np.integer], scores: Float32) -> Ranked:
    return Ranked(rows, scores, model, model.basket_relevance.apply)


def open_recommender(serving: Path, published: Publication, least_rating: float | None) -> Recommender:
    """Opens the recommender from the published folders.

    Raises DataError for a damaged folder, or one that is not of the published shard.
    """
    shard = open_shard(serving / published.shard)
    model = None if published.model is None else open_model(serving / published.model, shard)
    return Recommender(shard, Overlay(shard, least_rating=least_rating), model)
