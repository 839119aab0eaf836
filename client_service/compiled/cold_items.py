"""Scores a silo's cold items: items with a text that no user has in training.

A model of items with titles or attributes has these arrays. The score of an item is the product of the basket's
profile, a sum over its items, and the item's features.

- content-features.npy, (N, d): of each item; the last column is 1.
- content-left.npy, (N, d): what each item adds to the profile of a basket that has it.
- content-weights.npy, (d, d): T W of an item that came later, T its features and 1, is what it adds.
- cold-mask.npy, (N,): marks the cold items; cold-rows.npy, (C,): those that have a text; cold-table.npy, (C, d): their
  features.
- cold-mean.npy, (d,): the usual user's profile.

Shapes: N items, C cold items, d features and a constant, n items of a basket.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from client_service.compiled.arrays import Arrays
from shared.method.parameters import Float32

LISTED: Final = 20  # cold items of a known user's list: some are left when the met, hidden and forbidden ones are out
Rows = NDArray[np.int64]


class ColdHead(BaseModel):
    """Description of the arrays by which cold items are scored.

    items: number of cold items that have a text. encoder: name of the encoder that made the items' features.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    items: int
    encoder: str


class ColdItems:
    """The cold items of a silo, and what scores them.

    left: what each item adds to a profile, (N, d). rows: those with a text, (C,), ascending. is_cold: mask (N,), of
    those without a text too. mean: the usual user's profile, (d,), for who has no basket.
    """

    def __init__(self, arrays: Arrays, head: ColdHead, items: int) -> None:
        """Takes the arrays of a compiled model. ValueError for others."""
        self.head, self.encoder = head, head.encoder
        self.left, self._features = arrays["content-left"], arrays["content-features"]
        self.rows: Rows = arrays["cold-rows"]
        self.mean: Float32 = arrays["cold-mean"]
        width = len(self.mean)
        if self.left.shape != (items, width) or self._features.shape != (items, width):
            raise ValueError(f"features of {items:,} items, got others")
        self._table: Float32 = arrays["cold-table"]
        if self._table.shape != (len(self.rows), width):
            raise ValueError(f"features of {len(self.rows):,} cold items, got others")
        self.is_cold: NDArray[np.bool_] = arrays["cold-mask"]
        if len(self.is_cold) != items:
            raise ValueError(f"a mask of {items:,} items, got another")

    def has(self, row: int) -> bool:
        """Tells whether an item is a cold one that has a text."""
        place = int(np.searchsorted(self.rows, row))
        return place < len(self.rows) and int(self.rows[place]) == row

    def profile(self, basket: Rows) -> Float32:
        """Sums what a basket's items add, (d,)."""
        if not len(basket):
            return self.mean
        found: Float32 = np.add.reduce(self.left[basket], axis=0)
        return found

    def features_of(self, rows: NDArray[np.integer]) -> Float32:
        """Reads the features of some items, (n, d)."""
        found: Float32 = self._features[rows]
        return found

    def scores(self, profile: Float32) -> Float32:
        """Scores all cold items for a profile, (C,)."""
        found: Float32 = self._table @ profile
        return found

    def contributions(self, basket: Rows, features: Float32) -> Float32:
        """Computes what each item of a basket adds to the scores of items with these features, (n, c)."""
        found: Float32 = self.left[basket] @ features.T
        return found

    def likeness(self, features: Float32) -> Float32:
        """Computes the cosine of an item's features (d,) with those of all items, (N,); the constant does not count.

        An item without features has 0.
        """
        wanted = features[:-1] * np.float32(1.0 / max(float(np.linalg.norm(features[:-1])), 1e-12))
        found, step = np.empty(len(self._features), dtype=np.float32), 1 << 12
        for first in range(0, len(found), step):
            block = self._features[first : first + step, :-1]
            lengths = np.linalg.norm(block, axis=1)
            found[first : first + step] = (block @ wanted) / np.maximum(lengths, np.float32(1e-12))
        return found
