"""What a request forbids, what is hidden and what a user has met -> the items (N,) that stay out of a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from scipy import sparse

from client_service.feedback.overlay import Overlay
from client_service.models.ranker import Rows
from client_service.serving.filters import parse_filters
from client_service.serving.questions import Limits, Mask
from client_service.serving.recent import Asked
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

    def known_items(self, asked: Asked) -> Rows:
        """Rows of all items that the shard says a user has met: liked, in whichever split, or not."""
        return asked.met if asked.row is None else items_of_row(self._shard.known_pairs, asked.row)

    def of_user(self, asked: Asked, limits: Limits) -> Mask:
        """Forbidden items, and those that the user has met."""
        excluded = self.forbidden(limits)
        if limits.exclude_seen:
            excluded[self.known_items(asked)] = True
            if asked.since is not None:
                excluded[asked.since.seen] = True
        return excluded

    def forbid_met(self, asked: Asked, limits: Limits) -> Limits:
        """With what the user has met among the forbidden items: his basket holds the training items alone."""
        if not limits.exclude_seen or (asked.since is None and not len(self.known_items(asked))):
            return limits
        return replace(limits, forbidden=self.of_user(asked, limits))


def items_of_row(matrix: sparse.csr_array, row: int | None) -> Rows:
    """The items of a user in a matrix, ascending; none of somebody who is in no row."""
    if row is None:
        return np.zeros(0, dtype=np.int64)
    return matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].astype(np.int64)
