"""Chooses new items for a user.

New items are cold items that have a text, of the catalogue or posted by an application since. They are scored by
content alone, and have reserved places in a list.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from client_service.compiled.cold_items import ColdItems
from client_service.compiled.model import CompiledModel
from client_service.compiled.shard import CompiledShard, Float32, Mask, Rows
from client_service.event_log.item_metadata import MatchingItems
from client_service.event_log.messages import ItemIn
from client_service.event_log.overlay import Overlay
from client_service.serving.item_answers import Answers, order_by_variety, stretch
from client_service.serving.messages import ItemOut
from client_service.serving.ranking import POOL, ListRequest, NewItemQuery
from client_service.text.feature_file import TextEncoder, make_encoder
from client_service.text.projection import Values

PLACE, OTHER_PLACE = 10, 5  # of one new item in a list, and of the other where there are two
AT_ONCE, MORE = 64, 256  # posted items that a request encodes at most; that a thread encodes at a time
LEAST_LENGTH: Final = 5  # of a list with a place for a new item


@lru_cache
def reserved_places(count: int, k: int) -> tuple[int, ...]:
    """Finds the places of new items in lists of k items, from 0 on, ascending.

    They depend on the length of a page alone, so that the pages of one length repeat and omit nothing.
    """
    if count == 0 or k < LEAST_LENGTH:
        return ()
    if count == 1:
        return (min(PLACE, k) - 1,)
    return (OTHER_PLACE - 1, PLACE - 1) if k >= PLACE else (k - 2, k - 1)


class NewItem(NamedTuple):
    """A new item and its score by content.

    row: beyond the last catalogue row for an item without interactions, -1 outside the catalogue. text: features (d,)
    of a posted item; None: those of the compiled catalogue.
    """

    item: str
    title: str | None
    score: float
    row: int
    text: Float32 | None = None


class PostedItems(NamedTuple):
    """Items whose text applications posted, and that have no training interaction.

    rows: (E,), see `NewItem`. texts: features (E, d). factors: by which they are scored, (E, r). replaced: rows of
    the catalogue whose compiled features they override.
    """

    ids: tuple[str, ...]
    titles: tuple[str | None, ...]
    rows: Rows
    texts: Float32
    factors: Float32
    replaced: frozenset[int]


class NewItems:
    """New items of one shard, and items that applications posted since."""

    def __init__(self, shard: CompiledShard, overlay: Overlay, answers: Answers) -> None:
        self._shard, self._overlay, self._answers = shard, overlay, answers
        self._lock, self._encoding = threading.Lock(), threading.Thread()
        self._last_posts: dict[str, ItemIn] = {}  # of new items, and of items posted since the last request
        self._waiting: dict[str, ItemIn] = {}
        self._encoded: dict[str, _Encoded] = {}
        self._posted: tuple[ColdItems | None, PostedItems | None] = (None, None)

    def find_posted(self, cold: ColdItems) -> PostedItems | None:
        """Collects the posted items with features by the model's encoder; None without any.

        Of many that are posted together the last ones are available at once; a thread encodes the others.
        """
        newly = self._overlay.take_item_changes()
        if newly or self._posted[0] is not cold or self._lock.locked():
            with self._lock:
                self._add_posted(newly, cold)
        return self._posted[1]

    def choose(self, model: CompiledModel, asker: NewItemQuery, limits: ListRequest, count: int) -> list[NewItem]:
        """Chooses the best new items that are likely enough for this user.

        Without such items a place is left to the other items. A request that names its allowed items skips the
        threshold.
        """
        found = self.rank(model, asker, limits, count)
        if not found or limits.allowed is not None or (cold := model.cold) is None:
            return found
        least = cold.least_score(cold.profile(asker.facts.basket))
        return [one for one in found if one.score >= least]

    def rank(self, model: CompiledModel, asker: NewItemQuery, limits: ListRequest, count: int) -> list[NewItem]:
        """Ranks the best new items, from a computed list if that is long enough."""
        if (cold := model.cold) is None or count == 0:
            return []
        posted = self.find_posted(cold)
        if asker.listed is not None and limits.exclude_seen and not limits.mmr:
            found = self._look_up(model, asker, limits, count, posted)
            if found is not None:
                return found if posted is None else self._merge(cold, asker, limits, count, posted, found)
        if limits.mmr:
            pool = self._compute(cold, asker, limits, max(POOL, count), posted)
            return _vary(cold, pool, limits.mmr, count)
        return self._compute(cold, asker, limits, count, posted)

    def write(
        self, model: CompiledModel, asker: NewItemQuery, items: Sequence[NewItem], limits: ListRequest
    ) -> list[ItemOut]:
        """Writes new items as a list has them, with reasons if the request wants them."""
        scores = [one.score if limits.raw else rate_new_item(model, one) for one in items]
        found = [
            ItemOut(item=one.item, score=score, title=one.title, reason="new")
            for one, score in zip(items, scores, strict=True)
        ]
        if not limits.explain or not items or not len(asker.facts.basket) or (cold := model.cold) is None:
            return found
        counted = cold.contributions(asker.facts.basket, features_of(cold, items))
        return list(self._answers.add_reasons(found, counted, asker.facts.basket))

    def find_features(self, cold: ColdItems, item: str) -> Float32 | None:
        """Looks up the features of a new item, (d,).

        Returns None for an item that is not new, or that has no text.
        """
        self.find_posted(cold)
        if (posted := self._encoded.get(item)) is not None:
            return posted.text
        row = self._shard.find_item(item)
        return cold.features_of(np.array([row]))[0] if row is not None and cold.has(row) else None

    def _look_up(
        self, model: CompiledModel, asker: NewItemQuery, limits: ListRequest, count: int, posted: PostedItems | None
    ) -> list[NewItem] | None:
        """Takes the first allowed items of a user's computed list.

        Returns None if it does not reach so far.
        """
        assert asker.listed is not None
        if (listed := model.cold_list_of(asker.listed)) is None:
            return None
        found: list[NewItem] = []
        replaced = frozenset() if posted is None else posted.replaced
        rows = listed[0].tolist()
        for place, row in enumerate(rows):
            if row < 0:
                break
            if row in asker.seen or row in replaced or not self._is_allowed(row, asker, limits):
                continue
            found.append(self._describe(row, float(listed[1][place])))
            if len(found) == count:
                break
        return None if len(found) < count and rows[-1] >= 0 else found

    def _merge(
        self,
        cold: ColdItems,
        asker: NewItemQuery,
        limits: ListRequest,
        count: int,
        posted: PostedItems,
        found: list[NewItem],
    ) -> list[NewItem]:
        more = self._allowed_posted(cold.profile(asker.facts.basket), asker, limits, count, posted)
        return sorted([*found, *more], key=lambda one: -one.score)[:count]

    def _compute(
        self, cold: ColdItems, asker: NewItemQuery, limits: ListRequest, count: int, posted: PostedItems | None
    ) -> list[NewItem]:
        profile, size = cold.profile(asker.facts.basket), len(self._shard.item_ids)
        barred = np.zeros(size, dtype=bool) if limits.forbidden is None else limits.forbidden.copy()
        if asker.hidden is not None:
            barred |= asker.hidden
        if limits.exclude_seen:
            for rows in asker.facts.met:
                barred[rows] = True
        scores = cold.scores(profile)
        met = int(np.searchsorted(cold.rows, size))  # so many have a row; of the others each is looked at by its id
        scores[:met][barred[cold.rows[:met]]] = -np.inf
        for row in () if posted is None else posted.replaced:
            if cold.has(row):
                scores[np.searchsorted(cold.rows, row)] = -np.inf
        if (allowed := self._allowed_unmet(limits)) is not None:
            scores[met:][~allowed[cold.rows[met:] - size]] = -np.inf
        found = self._choose(cold, scores, asker, limits, count)
        if posted is None:
            return found
        more = self._allowed_posted(profile, asker, limits, count, posted)
        return sorted([*found, *more], key=lambda one: -one.score)[:count]

    def _allowed_unmet(self, limits: ListRequest) -> Mask | None:
        """Marks the unmet items that a request allows, (U,); None for all."""
        unmet, allowed = self._shard.unmet, limits.allowed
        if unmet is None or allowed is None:
            return None
        if isinstance(allowed, MatchingItems):
            return allowed.unmet
        found = np.zeros(unmet.count, dtype=bool)
        found[[row - unmet.first for item in allowed if (row := unmet.row(item)) is not None]] = True
        return found

    def _choose(
        self, cold: ColdItems, scores: Float32, asker: NewItemQuery, limits: ListRequest, count: int
    ) -> list[NewItem]:
        """Chooses the allowed items with the best scores.

        Looks at ever more candidates until there are enough.
        """
        looked_at, size = count, len(self._shard.item_ids)
        while True:
            best = _best_places(scores, looked_at)
            rows, found = cold.rows[best].tolist(), list[NewItem]()
            for row, score in zip(rows, scores[best].tolist(), strict=True):
                if row < size or self._is_allowed(row, asker, limits):
                    found.append(self._describe(row, score))
            if len(found) >= count or len(best) < looked_at:
                return found[:count]
            looked_at *= 4

    def _is_allowed(self, row: int, asker: NewItemQuery, limits: ListRequest) -> bool:
        """Tells whether the request and the silo allow an item in an answer."""
        if row < len(self._shard.item_ids):
            hidden, forbidden = asker.hidden, limits.forbidden
            return not ((hidden is not None and hidden[row]) or (forbidden is not None and forbidden[row]))
        item = self._shard.item_id(row)
        if self._overlay.is_hidden_outside(item) or not limits.allows_outside(item):
            return False
        return not (limits.exclude_seen and item in asker.facts.names)

    def _describe(self, row: int, score: float) -> NewItem:
        if (unmet := self._shard.unmet) is not None and row >= unmet.first:
            return NewItem(unmet.id_of(row), unmet.title_of(row), score, row)
        titles = self._overlay.titles
        return NewItem(self._shard.item_ids[row], None if titles is None else titles[row], score, row)

    def _allowed_posted(
        self, profile: Float32, asker: NewItemQuery, limits: ListRequest, count: int, posted: PostedItems
    ) -> list[NewItem]:
        scores, found = posted.factors @ profile, list[NewItem]()
        met = (
            frozenset(row for rows in asker.facts.met for row in rows.tolist()) if limits.exclude_seen else frozenset()
        )
        for place in np.argsort(-scores, kind="stable").tolist():
            item, row = posted.ids[place], int(posted.rows[place])
            if (limits.exclude_seen and item in asker.facts.names) or row in met:
                continue
            inside = 0 <= row < len(self._shard.item_ids)
            if not (self._is_allowed(row, asker, limits) if inside else limits.allows_outside(item)):
                continue
            found.append(NewItem(item, posted.titles[place], float(scores[place]), row, posted.texts[place]))
            if len(found) == count:
                break
        return found

    def _add_posted(self, newly: Mapping[str, ItemIn], cold: ColdItems) -> None:
        """Takes newly posted items: encodes the last ones, and starts a thread for the others."""
        if self._posted[0] is not cold:
            self._encoded, self._waiting, self._posted = {}, dict(self._last_posts), (cold, None)
        for item, said in newly.items():
            row = self._shard.item_row(item)  # unmet ones are cold
            gone = said.hidden or (row is not None and not cold.is_cold[row])
            for kept in (self._last_posts, self._waiting, self._encoded):
                kept.pop(item, None)
            if not gone:
                self._last_posts[item] = self._waiting[item] = said
        last = list(self._waiting)[-AT_ONCE:]
        self._put({item: self._waiting.pop(item) for item in last}, cold)
        if self._waiting and not self._encoding.is_alive():
            self._encoding = threading.Thread(target=self._encode_waiting, args=(cold,), name="new-items", daemon=True)
            self._encoding.start()

    def _encode_waiting(self, cold: ColdItems) -> None:
        """Encodes the waiting items in portions, while requests are answered."""
        while True:
            with self._lock:
                some = dict(islice(self._waiting.items(), MORE))
                if not some or self._posted[0] is not cold:
                    return
            found = self._encode(some, cold)
            with self._lock:
                if self._posted[0] is not cold:
                    return
                same = [item for item, said in some.items() if self._waiting.get(item) is said]
                for item in same:
                    del self._waiting[item]
                self._encoded.update({item: found[item] for item in same if item in found})
                self._posted = cold, _collect(self._encoded)

    def _put(self, posted: Mapping[str, ItemIn], cold: ColdItems) -> None:
        self._encoded.update(self._encode(posted, cold))
        self._posted = cold, _collect(self._encoded)

    def _encode(self, posted: Mapping[str, ItemIn], cold: ColdItems) -> dict[str, _Encoded]:
        """Encodes the posted items whose text the model's encoder can read."""
        encoder = make_encoder(cold.encoder, cold.encoder_state)
        known = {item: facts for item in posted if (facts := self._overlay.facts.describe(item)) is not None}
        if encoder is None or not known:
            return {}
        texts = encode_facts(encoder, list(known.values()))
        factors, rows = cold.map(texts), [self._shard.find_item(item) for item in known]
        found = dict[str, _Encoded]()
        for (item, facts), row, text, factor in zip(known.items(), rows, texts, factors, strict=True):
            if text.any():
                found[item] = _Encoded(facts.title, -1 if row is None else row, text, factor)
        return found


class _Encoded(NamedTuple):
    """Posted item with its features.

    row: in the catalogue, or -1. Features (d,), and the factors by which it is scored (r,).
    """

    title: str | None
    row: int
    text: Float32
    factors: Float32


def _collect(encoded: Mapping[str, _Encoded]) -> PostedItems | None:
    if not encoded:
        return None
    titles, rows, texts, factors = zip(*encoded.values(), strict=True)
    return PostedItems(
        tuple(encoded),
        titles,
        np.array(rows, dtype=np.int64),
        np.stack(texts),
        np.stack(factors),
        frozenset(row for row in rows if row >= 0),
    )


def _best_places(scores: Float32, count: int) -> Rows:
    """Finds the places of the best finite scores, best first, of equal ones the first."""
    if count < len(scores):
        least = scores[np.argpartition(-scores, count - 1)[count - 1]]
        places = np.flatnonzero(scores >= least)
    else:
        places = np.arange(len(scores))
    found: Rows = places[np.argsort(-scores[places], kind="stable")][:count]
    return found[scores[found] > -np.inf]


def rate_new_item(model: CompiledModel, item: NewItem) -> float:
    """Computes the relevance of a new item, as `Relevance` does for many."""
    logit = item.score * model.cold_relevance.slope + model.cold_relevance.intercept
    small = math.exp(-abs(logit))
    return (1.0 if logit >= 0.0 else small) / (1.0 + small)


def features_of(cold: ColdItems, items: Sequence[NewItem]) -> Float32:
    """Collects the features of new items, (n, d)."""
    return np.stack([cold.features_of(np.array([one.row]))[0] if one.text is None else one.text for one in items])


def _vary(cold: ColdItems, pool: list[NewItem], weight: float, count: int) -> list[NewItem]:
    """Orders the best new items by variety, as lists are."""
    if not pool:
        return pool
    features = features_of(cold, pool)
    directions = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), np.float32(1e-12))
    values = stretch(np.array([one.score for one in pool], dtype=np.float32))
    order = order_by_variety(values, directions, weight, min(count, len(pool)))
    return [pool[place] for place in order.tolist()]


def encode_facts(encoder: TextEncoder, facts: Sequence[ItemIn]) -> Float32:
    """Encodes the metadata of items, (n, d); a row of zeros without metadata."""
    columns: dict[str, Values] = {"category": ["|".join(one.categories) for one in facts]}
    for key in dict.fromkeys(key for one in facts for key in one.attributes):
        values = [one.attributes.get(key) for one in facts]
        texts = [f"{key} {str(one).lower()}" if isinstance(one, bool) else one for one in values]
        named = [one if isinstance(one, str) else None for one in texts]
        numbers = [float("nan") if one is None or isinstance(one, str) else float(one) for one in texts]
        if any(one is not None for one in named):
            columns[f"{key} " if key in columns else key] = named
        if not np.isnan(numbers).all():
            columns[f"{key} " if key in columns else key] = np.array(numbers)
    found: Float32 = encoder.encode([one.title for one in facts], columns)
    return found
