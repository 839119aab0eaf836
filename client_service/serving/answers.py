"""Ranked rows of the catalogue -> what a request is answered: ids, titles and scores of the items that it asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_service.feedback.overlay import Overlay
from client_service.models.ranker import Rows
from client_service.serving.messages import ItemOut
from client_service.serving.questions import Limits
from client_service.shard import Shard
from shared.method.parameters import Float32


class Answers:
    """Words for the rows of one shard's catalogue."""

    def __init__(self, shard: Shard, overlay: Overlay) -> None:
        self._shard, self._overlay = shard, overlay

    def write_page(self, rows: NDArray[np.integer], scores: Float32, limits: Limits) -> tuple[ItemOut, ...]:
        """Of the best rows, as many as `limits.depth`, those that were asked for."""
        page = slice(limits.offset, limits.offset + limits.k)
        return self.write(rows[page], scores[page])

    def write(self, rows: NDArray[np.integer], scores: Float32) -> tuple[ItemOut, ...]:
        """Each row but -1."""
        ids, titles = self._shard.item_ids, self._overlay.titles
        return tuple(
            ItemOut(item=ids[row], score=score, title=None if titles is None else titles[row])
            for row, score in zip(rows.tolist(), scores.tolist(), strict=True)
            if row >= 0
        )


def best_rows(scores: Float32, k: int) -> tuple[Rows, Float32]:
    """The k rows with the highest scores, of equal ones the first by id; -1 for a row whose score is -inf."""
    size = min(k, len(scores))
    least = -np.partition(-scores, size - 1)[size - 1]
    chosen = np.flatnonzero(scores >= least)  # ascending, as the ids are
    order = chosen[np.argsort(-scores[chosen], kind="stable")][:size]
    return np.where(np.isneginf(scores[order]), -1, order), scores[order]
