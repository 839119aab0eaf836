"""Model at rest and a request -> recommendations with ids, titles and a flag where they are not personal."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.learning.local import LocalTraining
from client_service.models.model import Model
from client_service.models.ranker import Ranker, Rows, Side
from client_service.schemas import Fallback, ItemOut, RecommendationsOut
from client_service.shard import Shard
from shared.errors import NotFoundError
from shared.method.graph import degrees
from shared.method.parameters import Float32

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Served:
    """A model that nothing changes any more, with the version that its answers carry."""

    version: str
    model: Model
    ranker: Ranker

    @cached_property
    def directions(self) -> Float32:
        """Item embeddings of length one, (N, q), for items like an item."""
        rows = self.ranker.items.embedding
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        return (rows / np.where(length > 0, length, 1.0)).astype(np.float32)


def freeze(version: str, training: LocalTraining) -> Served:
    """A copy of the parameters; the constant buffers and the fusion, which are large, are shared with the original."""
    model = training.model
    constant = {id(buffer): buffer for buffer in model.buffers()}
    frozen = copy.deepcopy(model, memo=constant).requires_grad_(False)
    return Served(version, frozen, frozen.freeze().fused(training.fusion, training.codes))


@dataclass(frozen=True)
class Limits:
    """What a request asks for: how many, whether to leave out seen items, and a mask (N,) of forbidden items."""

    k: int
    exclude_seen: bool = True
    forbidden: Mask | None = None


class Recommender:
    """Answers from one `Served` at a time. Putting in another is one assignment: a request sees the old or the new."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.served: Served | None = None
        _, by_item = degrees(shard.train)
        self._popularity = by_item.astype(np.float32)

    def for_user(self, user: str, limits: Limits) -> RecommendationsOut:
        """The user's list; popular items, flagged, for somebody unknown or while there is no model."""
        served, row = self.served, self._shard.user_row(user)
        if served is None:
            return self._popular("no model yet", row, limits, user=user)
        if row is None:
            return self._popular("unknown user", None, limits, user=user)
        items, scores = self._rank(
            served, served.ranker.users[np.array([row])], self._excluded_items(row, limits), limits.k
        )
        return RecommendationsOut(user=user, model=served.version, items=self._items(items, scores))

    def for_basket(self, basket: Iterable[str], limits: Limits) -> RecommendationsOut:
        """A list for somebody who is in no graph, from the items given (fold-in)."""
        rows, unknown = self.rows(basket)
        served = self.served
        if served is None or len(rows) == 0:
            reason: Fallback = "no model yet" if served is None else "no known item in the basket"
            return self._popular(reason, None, limits).model_copy(update={"unknown_items": unknown})
        excluded = self._forbidden_items(limits)
        if limits.exclude_seen:
            excluded[rows] = True
        codes = served.ranker.fusion.encoded(_basket(rows, len(self._popularity)))
        stranger = replace(served.model.fold_in(rows), codes=codes)
        items, scores = self._rank(served, stranger, excluded, limits.k)
        found = self._items(items, scores)
        return RecommendationsOut(model=served.version, unknown_items=unknown, items=found)

    def similar(self, item: str, k: int) -> tuple[str | None, tuple[ItemOut, ...]]:
        """Items by the cosine of their pooled embeddings. NotFoundError for an item outside the catalogue."""
        row, served = self._shard.item_row(item), self.served
        if row is None:
            raise NotFoundError("expected an item of this silo's catalogue, got an unknown one")
        if served is None:
            return None, ()
        scores = served.directions @ served.directions[row]
        scores[row] = -np.inf
        return served.version, self._items(*_best(scores, k))

    def rows(self, items: Iterable[str]) -> tuple[Rows, int]:
        """Rows of the known items, each once, and how many are unknown."""
        found = [self._shard.item_row(item) for item in items]
        known = np.unique(np.array([row for row in found if row is not None], dtype=np.int64))
        return known, sum(row is None for row in found)

    def limits(self, k: int, exclude_seen: bool, allow: Iterable[str] | None, exclude: Iterable[str]) -> Limits:
        """Allow and exclude lists as one mask."""
        forbidden = np.zeros(len(self._popularity), dtype=bool)
        if allow is not None:
            forbidden[:] = True
            forbidden[self.rows(allow)[0]] = False
        forbidden[self.rows(exclude)[0]] = True
        return Limits(k, exclude_seen, forbidden if forbidden.any() else None)

    def _rank(self, served: Served, user: Side, excluded: Mask, k: int) -> tuple[Rows, Float32]:
        items, scores = served.ranker.top_scored(user, excluded[None], k)
        return items[0], scores[0]

    def _popular(
        self, reason: Fallback, row: int | None, limits: Limits, *, user: str | None = None
    ) -> RecommendationsOut:
        scores = self._popularity.copy()
        scores[self._forbidden_items(limits) if row is None else self._excluded_items(row, limits)] = -np.inf
        return RecommendationsOut(user=user, fallback=reason, items=self._items(*_best(scores, limits.k)))

    def _forbidden_items(self, limits: Limits) -> Mask:
        return np.zeros(len(self._popularity), dtype=bool) if limits.forbidden is None else limits.forbidden.copy()

    def _excluded_items(self, row: int, limits: Limits) -> Mask:
        """Forbidden items, and those of the user's training and validation interactions."""
        excluded = self._forbidden_items(limits)
        if limits.exclude_seen:
            for matrix in (self._shard.train, self._shard.valid):
                excluded[matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]] = True
        return excluded

    def _items(self, rows: Rows, scores: Float32) -> tuple[ItemOut, ...]:
        ids, titles = self._shard.item_ids, self._shard.titles
        pairs = [(int(row), float(score)) for row, score in zip(rows, scores, strict=True) if row >= 0]
        return tuple(
            ItemOut(item=ids[row], score=score, title=None if titles is None else titles[row]) for row, score in pairs
        )


def _basket(rows: Rows, items: int) -> sparse.csr_array:
    """A 0/1 row (1, N)."""
    return sparse.csr_array((np.ones(len(rows), dtype=np.float32), (np.zeros_like(rows), rows)), shape=(1, items))


def _best(scores: Float32, k: int) -> tuple[Rows, Float32]:
    """The k rows with the highest scores, of equal ones the first by id; -1 for a row whose score is -inf."""
    size = min(k, len(scores))
    least = -np.partition(-scores, size - 1)[size - 1]
    chosen = np.flatnonzero(scores >= least)  # ascending, as the ids are
    order = chosen[np.argsort(-scores[chosen], kind="stable")][:size]
    return np.where(np.isneginf(scores[order]), -1, order), scores[order]
