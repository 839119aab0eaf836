"""Writes ranked items as answers, and searches the catalogue by title."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.model import CompiledModel
from client_service.compiled.shard import CompiledShard, Float32, Rows
from client_service.compiled.texts import FoldedTexts, fold
from client_service.event_log.messages import ItemIn
from client_service.event_log.overlay import ChangedTitles, Overlay, Titles
from client_service.serving.messages import (
    MOST_REASONS,
    CatalogueItemOut,
    ItemOut,
    ItemsOut,
    NearItemOut,
    ReasonOut,
)
from client_service.serving.ranking import ListRequest
from client_service.text.search import Found, TitleSearch, search_arrays
from shared.errors import NotFoundError, ProtocolError


def blend_freshness(scores: Float32, fresh: Float32, weight: float) -> Float32:
    """Blends scores (P,) with freshness (P,).

    (1 - weight) x the scores, scaled to [0, 1], + weight x freshness.
    """
    return np.float32(1.0 - weight) * stretch(scores) + np.float32(weight) * fresh


def stretch(scores: Float32) -> Float32:
    """Scales scores (P,) to [0, 1]; equal scores become 0."""
    low, high = scores.min(), scores.max()
    found: Float32 = (scores - low) / (high - low if high > low else np.float32(1.0))
    return found


def order_by_variety(values: Float32, directions: Float32, weight: float, count: int) -> Rows:
    """Chooses places (count,) in the pool by maximal marginal relevance, in order.

    Carbonell, Goldstein. SIGIR 1998. The next item has the highest (1 - weight) x value - weight x its largest cosine
    with the items before; at a tie the first. values: (P,), in [0, 1]. directions: (P, q), of length one.
    """
    weighted = (1.0 - weight) * values
    nearest, chosen = np.zeros(len(values), dtype=np.float32), np.empty(count, dtype=np.int64)
    open_places: NDArray[np.bool_] = np.ones(len(values), dtype=bool)
    for place in range(count):
        gain = np.where(open_places, weighted - weight * nearest, -np.inf)
        best = chosen[place] = int(gain.argmax())
        open_places[best] = False
        likeness = directions @ directions[best]
        nearest = likeness if place == 0 else np.maximum(nearest, likeness)
    return chosen


Float64 = NDArray[np.float64]
LEAST = 1e-6  # contributions below it may be rounding alone


class Query(NamedTuple):
    """Model, and the rows of the positive items of the person it answers."""

    model: CompiledModel
    basket: Rows


class Ranked(NamedTuple):
    """The best items for one person, as rows with scores.

    rows: -1 if there are no more. scores: by `model`, or by popularity where it is None. scale: turns scores into
    relevance in [0, 1].
    """

    rows: NDArray[np.integer]
    scores: Float32
    model: CompiledModel | None
    scale: Callable[[Float32], Float64]


class Answers:
    """Writer of answers with ids, titles and reasons from rows of one shard's catalogue."""

    def __init__(self, shard: CompiledShard, overlay: Overlay) -> None:
        self._shard, self._overlay = shard, overlay

    def write_page(self, ranked: Ranked, limits: ListRequest, asker: Query | None = None) -> tuple[ItemOut, ...]:
        """Writes the requested page of the best rows, at most `limits.depth` of them.

        asker: the user or basket that reasons refer to.
        """
        rows, scores = self._rearrange(ranked, limits) if limits.rearranged else ranked[:2]
        page = slice(limits.offset, limits.offset + limits.k)
        items = self.write(rows[page], scores[page] if limits.raw else ranked.scale(scores[page]))
        if not limits.explain or asker is None or not items:
            return items
        return self._give_reasons(items, rows[page][: len(items)].astype(np.int64), asker)

    def write(self, rows: NDArray[np.integer], scores: Float32 | Float64) -> tuple[ItemOut, ...]:
        """Writes all rows but -1, which come last."""
        ids, titles = self._shard.item_ids, self._overlay.titles
        return tuple(
            ItemOut(item=ids[row], score=score, title=None if titles is None else titles[row])
            for row, score in zip(rows.tolist(), scores.tolist(), strict=True)
            if row >= 0
        )

    def require_freshness(self) -> Float32:
        """Returns how new each item is; raises ProtocolError for a shard without times."""
        if self._shard.freshness is None:
            raise ProtocolError("freshness: expected interactions with times, this silo's have none")
        return self._shard.freshness

    def _rearrange(self, ranked: Ranked, limits: ListRequest) -> tuple[NDArray[np.integer], Float32]:
        """Orders the best items anew by freshness and variety, as far as the request reaches.

        Without a model all items are equally unlike.
        """
        found, model = ranked.rows >= 0, ranked.model
        rows, scores = ranked.rows[found], ranked.scores[found]
        if len(rows) == 0:
            return rows, scores
        values = stretch(scores)
        if limits.freshness > 0.0:
            values = blend_freshness(scores, self.require_freshness()[rows], limits.freshness)
        count = min(limits.offset + limits.k, len(rows))
        if limits.mmr > 0.0 and model is not None:
            order = order_by_variety(values, model.directions[rows], limits.mmr, count)
        else:
            order = np.argsort(-values, kind="stable")[:count]
        return rows[order], scores[order]

    def _give_reasons(self, items: tuple[ItemOut, ...], rows: Rows, asker: Query) -> tuple[ItemOut, ...]:
        found = asker.model.contributions(asker.basket, rows)
        if not found.any():  # a model that is no sum over items
            return items
        explained = found.sum(axis=0)
        found[asker.basket[:, None] == rows] = 0.0  # an item is no reason for itself
        return self.add_reasons(items, found, asker.basket, explained)

    def add_reasons(
        self, items: Sequence[ItemOut], found: Float32, basket: Rows, explained: Float32 | None = None
    ) -> tuple[ItemOut, ...]:
        """Adds to each item the items of a basket (n,) that count most for it.

        found: what each of the basket's items adds to the items' scores, (n, c), overwritten. explained: the sums of
        all, (c,); None: of `found`.
        """
        sums, hidden = (found.sum(axis=0) if explained is None else explained).tolist(), self._overlay.hidden
        if hidden is not None:
            found[hidden[basket]] = 0.0
        places = np.argsort(-found, axis=0, kind="stable")[:MOST_REASONS].T
        return tuple(
            item.model_copy(update={"explained": whole, "because": self._reasons(basket[best], found[best, at])})
            for at, (item, whole, best) in enumerate(zip(items, sums, places, strict=True))
        )

    def _reasons(self, rows: Rows, values: Float32) -> tuple[ReasonOut, ...]:
        ids, titles = self._shard.item_ids, self._overlay.titles
        return tuple(
            ReasonOut(item=ids[row], title=None if titles is None else titles[row], contribution=value)
            for row, value in zip(rows.tolist(), values.tolist(), strict=True)
            if value > LEAST
        )


def best_rows(scores: Float32, k: int) -> tuple[Rows, Float32]:
    """Returns the k rows with the highest scores, at a tie the first by id.

    -1 stands for a row whose score is -inf.
    """
    size = min(k, len(scores))
    least = -np.partition(-scores, size - 1)[size - 1]
    chosen = np.flatnonzero(scores >= least)  # ascending, as the ids are
    order = chosen[np.argsort(-scores[chosen], kind="stable")][:size]
    return np.where(np.isneginf(scores[order]), -1, order), scores[order]


NO_ROWS: Rows = np.zeros(0, dtype=np.int64)
MOST_NEAR = 100  # items that resemble a query, on all pages
MOST_CHANGED = 512  # titles posted by applications that are searched with typing errors, the last ones


class Catalogue:
    """Descriptions of one shard's items, with what applications posted since."""

    def __init__(self, shard: CompiledShard, overlay: Overlay) -> None:
        self._shard, self._overlay = shard, overlay
        self._changed: tuple[Titles, Rows, FoldedTexts] = None, NO_ROWS, FoldedTexts.from_texts(())
        self._near: tuple[Titles, Rows, TitleSearch | None] = None, NO_ROWS, None

    def search(self, words: str, offset: int, k: int) -> ItemsOut:
        """Searches for items whose titles contain all words; without words lists all items.

        Text is compared as `fold` does. Items of the catalogue come first, then those that applications posted beside
        it, then items that resemble the words.
        """
        self._overlay.follow()
        wanted = fold(words).split()
        rows = self._find_rows(wanted)
        posted = self._overlay.facts.search_outside_titles(wanted) if wanted else []
        rows = np.concatenate([rows, self._find_unmet(wanted)])
        total = len(rows) + len(posted)
        found = [self._shard.item_id(row) for row in rows[offset : offset + k].tolist()]
        found += posted[max(0, offset - len(rows)) : max(0, offset + k - len(rows))]
        first, last = offset - total, offset + k - total
        near = self._find_near(words, rows)[max(0, first) : last] if words.strip() and last > 0 else []
        return ItemsOut(
            total=total,
            items=tuple(self.read(item) for item in found),
            near=tuple(NearItemOut(**dict(self.read(self._shard.item_id(row))), found_by=way) for row, way in near)
            or None,
        )

    def read(self, item: str) -> CatalogueItemOut:
        """Describes an item; raises NotFoundError for one that neither shard nor applications know."""
        self._overlay.follow()
        facts = self._overlay.facts.describe(item)
        if facts is None:
            raise NotFoundError("expected an item of this silo's catalogue, got an unknown one")
        return _describe(item, facts, in_catalogue=self._shard.find_item(item) is not None)

    def count_shown(self) -> int:
        """Counts the items that can be recommended."""
        self._overlay.follow()
        hidden = self._overlay.hidden
        return len(self._shard.item_ids) - (0 if hidden is None else int(hidden.sum()))

    def _find_rows(self, words: Sequence[str]) -> Rows:
        hidden, found = self._overlay.hidden, np.ones(len(self._shard.item_ids), dtype=bool)
        if hidden is not None:
            found &= ~hidden
        for word in sorted(set(words), key=len, reverse=True):  # long words are rare, and end the search soonest
            found &= self._holding(word)
            if not found.any():
                break
        return np.flatnonzero(found)

    def _find_unmet(self, words: Sequence[str]) -> Rows:
        """Finds the unmet items that are shown and whose titles contain all words."""
        if (unmet := self._shard.unmet) is None:
            return NO_ROWS
        rows = unmet.find_containing(words)
        if not self._overlay.has_item_changes:
            return rows
        return np.array(
            [row for row in rows.tolist() if not self._overlay.is_hidden_outside(unmet.id_of(row))], np.int64
        )

    def _find_near(self, words: str, exact: Rows) -> Found:
        """Finds items that resemble the words, besides the exact matches.

        exact: items that lack none of the words. A changed title takes the shard's place.
        """
        shown: NDArray[np.bool_] = np.ones(len(self._shard.item_ids), dtype=bool)
        shown[exact[exact < len(shown)]] = False
        if self._overlay.hidden is not None:
            shown &= ~self._overlay.hidden
        changed, titles = self._search_changed()
        posted = [] if titles is None else [(int(changed[row]), way) for row, way in titles.find(words, shown[changed])]
        shown[changed] = False
        found = [] if self._search is None else self._search.find(words, shown)
        found += self._find_near_unmet(words, exact)
        return sorted([*posted, *found], key=lambda one: one[1] == "meaning")[:MOST_NEAR]

    def _find_near_unmet(self, words: str, exact: Rows) -> Found:
        """Finds unmet items that resemble the words, besides the exact matches."""
        unmet = self._shard.unmet
        if unmet is None or self._unmet_search is None:
            return []
        shown = np.ones(unmet.count, dtype=bool)
        shown[exact[exact >= unmet.first] - unmet.first] = False
        rows = [(unmet.first + place, way) for place, way in self._unmet_search.find(words, shown)]
        return [one for one in rows if not self._overlay.is_hidden_outside(unmet.id_of(one[0]))]

    @cached_property
    def _unmet_search(self) -> TitleSearch | None:
        return None if self._shard.unmet is None else TitleSearch(self._shard.unmet.search_arrays)

    @cached_property
    def _search(self) -> TitleSearch | None:
        return TitleSearch(self._shard.search_arrays) if self._shard.search_arrays else None

    def _search_changed(self) -> tuple[Rows, TitleSearch | None]:
        """Returns the rows whose titles have changed last, and an index of these titles."""
        titles = self._overlay.titles
        if not isinstance(titles, ChangedTitles):
            return NO_ROWS, None
        if self._near[0] is not titles:
            last = list(titles.changed.items())[-MOST_CHANGED:]
            index = TitleSearch(search_arrays([title for _, title in last], {})) if last else None
            self._near = titles, np.array([row for row, _ in last], dtype=np.int64), index
        return self._near[1:]

    def _holding(self, word: str) -> NDArray[np.bool_]:
        """Marks the items (N,) whose titles hold a folded word."""
        found, titles = self._shard.titles_holding(word), self._overlay.titles
        if isinstance(titles, ChangedTitles):
            if self._changed[0] is not titles:
                rows = np.fromiter(titles.changed, dtype=np.int64)
                self._changed = titles, rows, FoldedTexts.from_texts(list(titles.changed.values()))
            found[self._changed[1]] = self._changed[2].find_containing(word)
        return found


def _describe(item: str, facts: ItemIn, *, in_catalogue: bool) -> CatalogueItemOut:
    return CatalogueItemOut(
        item=item,
        title=facts.title,
        categories=facts.categories,
        attributes=facts.attributes,
        hidden=facts.hidden,
        in_catalogue=in_catalogue,
    )
