"""Ranked rows of the catalogue -> what a request is answered: ids, titles and scores of the items that it asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_service.feedback.overlay import Overlay
from client_service.models.ranker import Rows, Side
from client_service.models.reasons import contributions
from client_service.serving.messages import MOST_REASONS, ItemOut, ReasonOut
from client_service.serving.questions import Limits
from client_service.serving.served import Served
from client_service.serving.variety import blend_freshness, item_freshness, order_by_variety, stretch
from client_service.shard import Shard
from shared.errors import ProtocolError
from shared.method.graph import Float64
from shared.method.parameters import Float32

LEAST = 1e-6  # contribution that is no rounding


class Asker(NamedTuple):
    """Whoever is answered, as the served model sees him: one row, and the rows of the items that it is of."""

    served: Served
    side: Side
    basket: Rows


class Ranked(NamedTuple):
    """The best of the catalogue for somebody: rows, -1 where there are no more, and their scores, by `served` or by
    popularity; scale: from scores to relevance in [0, 1]."""

    rows: NDArray[np.integer]
    scores: Float32
    served: Served | None
    scale: Callable[[Float32], Float64]


class Answers:
    """Words for the rows of one shard's catalogue."""

    def __init__(self, shard: Shard, overlay: Overlay) -> None:
        self._shard, self._overlay = shard, overlay

    def write_page(
        self, ranked: Ranked, limits: Limits, asker: Callable[[], Asker] | None = None
    ) -> tuple[ItemOut, ...]:
        """Of the best rows, as many as `limits.depth`, those that were asked for; `asker`: whom to give reasons."""
        rows, scores = self._rearrange(ranked, limits) if limits.rearranged else ranked[:2]
        page = slice(limits.offset, limits.offset + limits.k)
        items = self.write(rows[page], scores[page] if limits.raw else ranked.scale(scores[page]))
        if not limits.explain or asker is None or not items:
            return items
        return self._give_reasons(items, rows[page][: len(items)].astype(np.int64), asker())

    def write(self, rows: NDArray[np.integer], scores: Float32 | Float64) -> tuple[ItemOut, ...]:
        """Each row but -1, which come last."""
        ids, titles = self._shard.item_ids, self._overlay.titles
        return tuple(
            ItemOut(item=ids[row], score=score, title=None if titles is None else titles[row])
            for row, score in zip(rows.tolist(), scores.tolist(), strict=True)
            if row >= 0
        )

    def require_times(self) -> Float32:
        """How new each item is. ProtocolError where the shard has no times."""
        if self._freshness is None:
            raise ProtocolError("freshness: expected a silo whose interactions have times, this one's have none")
        return self._freshness

    @cached_property
    def _freshness(self) -> Float32 | None:
        return item_freshness(self._shard)

    def _rearrange(self, ranked: Ranked, limits: Limits) -> tuple[NDArray[np.integer], Float32]:
        """The pool, as far as it was asked for, by freshness and variety. Without a model all items are as unlike."""
        found, served = ranked.rows >= 0, ranked.served
        rows, scores = ranked.rows[found], ranked.scores[found]
        if len(rows) == 0:
            return rows, scores
        values = stretch(scores)
        if limits.freshness > 0.0:
            values = blend_freshness(scores, self.require_times()[rows], limits.freshness)
        count = min(limits.offset + limits.k, len(rows))
        if limits.mmr > 0.0 and served is not None:
            order = order_by_variety(values, served.directions[rows], limits.mmr, count)
        else:
            order = np.argsort(-values, kind="stable")[:count]
        return rows[order], scores[order]

    def _give_reasons(self, items: tuple[ItemOut, ...], rows: Rows, asker: Asker) -> tuple[ItemOut, ...]:
        found = contributions(asker.served.ranker, asker.side, asker.basket, rows)
        if found is None:
            return items
        explained, hidden = found.sum(axis=0).tolist(), self._overlay.hidden
        found[asker.basket[:, None] == rows] = 0.0  # an item is no reason for itself
        if hidden is not None:
            found[hidden[asker.basket]] = 0.0
        places = np.argsort(-found, axis=0, kind="stable")[:MOST_REASONS].T
        return tuple(
            item.model_copy(update={"explained": whole, "because": self._reasons(asker.basket[best], found[best, at])})
            for at, (item, whole, best) in enumerate(zip(items, explained, places, strict=True))
        )

    def _reasons(self, rows: Rows, values: Float32) -> tuple[ReasonOut, ...]:
        ids, titles = self._shard.item_ids, self._overlay.titles
        return tuple(
            ReasonOut(item=ids[row], title=None if titles is None else titles[row], contribution=value)
            for row, value in zip(rows.tolist(), values.tolist(), strict=True)
            if value > LEAST
        )


def best_rows(scores: Float32, k: int) -> tuple[Rows, Float32]:
    """The k rows with the highest scores, of equal ones the first by id; -1 for a row whose score is -inf."""
    size = min(k, len(scores))
    least = -np.partition(-scores, size - 1)[size - 1]
    chosen = np.flatnonzero(scores >= least)  # ascending, as the ids are
    order = chosen[np.argsort(-scores[chosen], kind="stable")][:size]
    return np.where(np.isneginf(scores[order]), -1, order), scores[order]
