"""What a request forbids, what is hidden and what a user has met -> the items (N,) that stay out of a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from scipy import sparse

from client_service.feedback.overlay import Overlay
from client_service.feedback.since import Since
from client_service.models.ranker import Rows
from client_service.serving.filters import parse_filters
from client_service.serving.questions import Limits, Mask
from client_service.shard import Shard


class Exclusions:
    """Masks over one shard's catalogue."""

    def __init__(self, shard: Shard, overlay: Overlay) -> None:
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

    def forbidden(self, limits: Limits) -> Mask:
        """Those of the request, and those that are hidden."""
        forbidden, hidden = limits.forbidden, self._overlay.hidden
        if forbidden is None:
            return np.zeros(len(self._shard.item_ids), dtype=bool) if hidden is None else hidden.copy()
        return forbidden.copy() if hidden is None else forbidden | hidden

    def of_basket(self, rows: Rows, limits: Limits) -> Mask:
        """Forbidden items, and those of a basket."""
        excluded = self.forbidden(limits)
        if limits.exclude_seen:
            excluded[rows] = True
        return excluded

    def of_user(self, row: int | None, limits: Limits) -> Mask:
        """Forbidden items, and those of the user's training and validation interactions."""
        excluded = self.forbidden(limits)
        if limits.exclude_seen:
            for matrix in (self._shard.train, self._shard.valid):
                excluded[items_of_row(matrix, row)] = True
        return excluded

    def add_since(self, row: int | None, since: Since | None, limits: Limits) -> Limits:
        """With what has been seen since, and the validation items, which no basket holds, among the forbidden items."""
        if since is None or not limits.exclude_seen:
            return limits
        forbidden = self.forbidden(limits)
        forbidden[since.seen] = True
        forbidden[items_of_row(self._shard.valid, row)] = True
        return replace(limits, forbidden=forbidden)


def items_of_row(matrix: sparse.csr_array, row: int | None) -> Rows:
    """The items of a user in a matrix, ascending; none of somebody who is in no row."""
    if row is None:
        return np.zeros(0, dtype=np.int64)
    return matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].astype(np.int64)
