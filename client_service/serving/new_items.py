"""Chooses new items for a user: cold items that have a text, of the catalogue or told by an application since.

They are scored by content alone, and have reserved places in a list.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.cold_items import ColdItems
from client_service.compiled.model import CompiledModel
from client_service.compiled.shard import CompiledShard, Float32, Rows
from client_service.event_log.messages import ItemIn
from client_service.event_log.overlay import Overlay
from client_service.serving.item_answers import Answers, order_by_variety, stretch
from client_service.serving.messages import ItemOut
from client_service.serving.ranking import POOL, ListRequest, Mask
from client_service.text.feature_file import TextEncoder, make_encoder
from client_service.text.projection import Values

PLACE, OTHER_PLACE = 10, 5  # of one new item in a list, and of the other where there are two
LEAST_LENGTH: Final = 5  # of a list with a place for a new item
NO_ROWS: Rows = np.zeros(0, dtype=np.int64)
NO_NAMES: Final = frozenset[str]()
NOTHING_SEEN: Final = frozenset[int]()


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

    row: -1 outside the catalogue. text: features (d,) of a told item; None: those of the compiled catalogue.
    """

    item: str
    title: str | None
    score: float
    row: int
    text: Float32 | None = None


class ToldItems(NamedTuple):
    """Items of which applications have told a text, and which nobody has in training.

    rows: (E,), -1 outside the catalogue. texts: features (E, d). factors: by which they are scored, (E, r). replaced:
    rows of the catalogue whose compiled features they take the place of.
    """

    ids: tuple[str, ...]
    titles: tuple[str | None, ...]
    rows: Rows
    texts: Float32
    factors: Float32
    replaced: frozenset[int]


class Known(NamedTuple):
    """What is known of somebody.

    basket: rows of the items liked; empty for somebody unknown. met, names: rows and ids of what is left out as met.
    """

    basket: Rows
    met: tuple[Rows, ...]
    names: frozenset[str]


class Asker:
    """Whom new items are chosen for.

    hidden: mask (N,). read: finds what is known of the asker, when it is needed. listed: the row of the user whose
    computed list of cold items holds; None: compute one. seen: rows that the list does not leave out.
    """

    def __init__(
        self,
        hidden: Mask | None,
        read: Callable[[], Known],
        listed: int | None = None,
        seen: frozenset[int] = NOTHING_SEEN,
    ) -> None:
        self.hidden, self._read, self.listed, self.seen = hidden, read, listed, seen

    @cached_property
    def facts(self) -> Known:
        return self._read()


class NewItems:
    """The new items of one shard, with what has been told since."""

    def __init__(self, shard: CompiledShard, overlay: Overlay, answers: Answers) -> None:
        self._shard, self._overlay, self._answers = shard, overlay, answers
        self._lock = threading.Lock()
        self._facts: dict[str, ItemIn] = {}
        self._features: dict[str, Float32] = {}
        self._told: tuple[ColdItems | None, ToldItems | None] = (None, None)

    def find_told(self, cold: ColdItems) -> ToldItems | None:
        """Collects the told items with features, which the encoder of the model makes; None without any."""
        newly = self._overlay.take_newly_told()
        if newly or self._told[0] is not cold:
            with self._lock:
                self._take_up(newly, cold)
        return self._told[1]

    def are_there(self, model: CompiledModel | None) -> bool:
        """Tells whether the silo has a new item for anybody."""
        cold = None if model is None else model.cold
        return cold is not None and (len(cold.rows) > 0 or self.find_told(cold) is not None)

    def rank(self, model: CompiledModel, asker: Asker, limits: ListRequest, count: int) -> list[NewItem]:
        """Chooses the best new items, best first; of a computed list where it reaches so far."""
        if (cold := model.cold) is None or count == 0:
            return []
        told = self.find_told(cold)
        if asker.listed is not None and limits.exclude_seen and not limits.mmr:
            found = self._look_up(model, asker, limits, count, told)
            if found is not None:
                return found if told is None else self._merge(cold, asker, limits, count, told, found)
        if limits.mmr:
            pool = self._compute(cold, asker, limits, max(POOL, count), told)
            return _vary(cold, pool, limits.mmr, count)
        return self._compute(cold, asker, limits, count, told)

    def write(self, model: CompiledModel, asker: Asker, items: Sequence[NewItem], limits: ListRequest) -> list[ItemOut]:
        """Writes new items as a list has them, with reasons if the request wants them."""
        scores = np.array([one.score for one in items], dtype=np.float32)
        scale = scores if limits.raw else model.cold_relevance.of(scores)
        found = [
            ItemOut(item=one.item, score=score, title=one.title, reason="new")
            for one, score in zip(items, scale.tolist(), strict=True)
        ]
        if not limits.explain or not items or not len(asker.facts.basket) or (cold := model.cold) is None:
            return found
        counted = cold.contributions(asker.facts.basket, texts_of(cold, items))
        return list(self._answers.add_reasons(found, counted, asker.facts.basket))

    def find_features(self, cold: ColdItems, item: str) -> Float32 | None:
        """Looks up the features of a new item, (d,); None for an item that is not new, or that has no text."""
        told = self.find_told(cold)
        if told is not None and item in told.ids:
            found: Float32 = told.texts[told.ids.index(item)]
            return found
        row = self._shard.item_row(item)
        return cold.texts_of(np.array([row]))[0] if row is not None and cold.has(row) else None

    def _look_up(
        self, model: CompiledModel, asker: Asker, limits: ListRequest, count: int, told: ToldItems | None
    ) -> list[NewItem] | None:
        """Takes the first allowed items of a user's computed list; None where it does not reach so far."""
        assert asker.listed is not None
        if (listed := model.cold_list_of(asker.listed)) is None:
            return None
        found: list[NewItem] = []
        titles, forbidden, replaced = (
            self._overlay.titles,
            limits.forbidden,
            frozenset() if told is None else told.replaced,
        )
        rows = listed[0].tolist()
        for place, row in enumerate(rows):
            if row < 0:
                break
            if row in asker.seen or row in replaced:
                continue
            if (asker.hidden is not None and asker.hidden[row]) or (forbidden is not None and forbidden[row]):
                continue
            title = None if titles is None else titles[row]
            found.append(NewItem(self._shard.item_ids[row], title, float(listed[1][place]), row))
            if len(found) == count:
                break
        return None if len(found) < count and rows[-1] >= 0 else found

    def _merge(
        self,
        cold: ColdItems,
        asker: Asker,
        limits: ListRequest,
        count: int,
        told: ToldItems,
        found: list[NewItem],
    ) -> list[NewItem]:
        more = self._allowed_told(cold.profile(asker.facts.basket), asker, limits, count, told)
        return sorted([*found, *more], key=lambda one: -one.score)[:count]

    def _compute(
        self, cold: ColdItems, asker: Asker, limits: ListRequest, count: int, told: ToldItems | None
    ) -> list[NewItem]:
        profile, titles, ids = cold.profile(asker.facts.basket), self._overlay.titles, self._shard.item_ids
        barred = np.zeros(len(ids), dtype=bool) if limits.forbidden is None else limits.forbidden.copy()
        if asker.hidden is not None:
            barred |= asker.hidden
        if limits.exclude_seen:
            for rows in asker.facts.met:
                barred[rows] = True
        if told is not None:
            barred[list(told.replaced)] = True
        scores = np.where(barred[cold.rows], -np.inf, cold.scores(profile))
        best = np.argsort(-scores, kind="stable")[:count]
        best = best[scores[best] > -np.inf]
        found = [
            NewItem(ids[row], None if titles is None else titles[row], score, row)
            for row, score in zip(cold.rows[best].tolist(), scores[best].tolist(), strict=True)
        ]
        if told is None:
            return found
        more = self._allowed_told(profile, asker, limits, count, told)
        return sorted([*found, *more], key=lambda one: -one.score)[:count]

    def _allowed_told(
        self, profile: Float32, asker: Asker, limits: ListRequest, count: int, told: ToldItems
    ) -> list[NewItem]:
        scores, found = told.factors @ profile, list[NewItem]()
        met = (
            frozenset(row for rows in asker.facts.met for row in rows.tolist()) if limits.exclude_seen else frozenset()
        )
        for place in np.argsort(-scores, kind="stable").tolist():
            item, row = told.ids[place], int(told.rows[place])
            if (limits.exclude_seen and item in asker.facts.names) or row in met:
                continue
            if row >= 0:
                if (asker.hidden is not None and asker.hidden[row]) or (
                    limits.forbidden is not None and limits.forbidden[row]
                ):
                    continue
            elif not limits.allows_outside(item):
                continue
            found.append(NewItem(item, told.titles[place], float(scores[place]), row, told.texts[place]))
            if len(found) == count:
                break
        return found

    def _take_up(self, newly: Mapping[str, ItemIn], cold: ColdItems) -> None:
        """Encodes what was newly told, and puts it beside what is known."""
        if self._told[0] is not cold:
            newly = {**self._facts, **newly}
            self._features.clear()
        encoder = make_encoder(cold.encoder, cold.encoder_state)
        for item, said in newly.items():
            self._facts.pop(item, None)
            self._features.pop(item, None)
            row = self._shard.item_row(item)
            if said.hidden or (row is not None and not cold.is_cold[row]):
                continue
            self._facts[item] = said
            facts = self._overlay.facts.of(item)
            if encoder is not None and facts is not None and (encoded := encode_facts(encoder, facts)).any():
                self._features[item] = encoded
        self._told = cold, self._collect(cold)

    def _collect(self, cold: ColdItems) -> ToldItems | None:
        if not self._features:
            return None
        ids = tuple(self._features)
        rows = [self._shard.item_row(item) for item in ids]
        facts = self._overlay.facts
        titles = tuple(None if (one := facts.of(item)) is None else one.title for item in ids)
        return ToldItems(
            ids,
            titles,
            np.array([-1 if row is None else row for row in rows], dtype=np.int64),
            (texts := np.stack([self._features[item] for item in ids])),
            cold.map(texts),
            frozenset(row for row in rows if row is not None),
        )


def texts_of(cold: ColdItems, items: Sequence[NewItem]) -> Float32:
    """Collects the features of new items, (n, d)."""
    return np.stack([cold.texts_of(np.array([one.row]))[0] if one.text is None else one.text for one in items])


def _vary(cold: ColdItems, pool: list[NewItem], weight: float, count: int) -> list[NewItem]:
    """Orders the best new items by variety, as lists are."""
    if not pool:
        return pool
    features = texts_of(cold, pool)
    directions = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), np.float32(1e-12))
    values = stretch(np.array([one.score for one in pool], dtype=np.float32))
    order = order_by_variety(values, directions, weight, min(count, len(pool)))
    return [pool[place] for place in order.tolist()]


def encode_facts(encoder: TextEncoder, facts: ItemIn) -> NDArray[np.float32]:
    """Encodes what is known of one item, (d,); zeros where nothing is."""
    columns: dict[str, Values] = {"category": ["|".join(facts.categories)]}
    for key, value in facts.attributes.items():
        if isinstance(value, bool):
            columns[key] = [f"{key} {str(value).lower()}"]
        elif isinstance(value, str):
            columns[key] = [value]
        else:
            columns[key] = np.array([float(value)])
    if isinstance(category := facts.attributes.get("category"), str):  # an attribute of the same name
        columns["category"] = ["|".join([*facts.categories, category])]
    found: NDArray[np.float32] = encoder.encode([facts.title], columns)[0]
    return found
