"""Scores a silo's cold items: items with a text that no user has in training.

The score of an item is the product of the basket's profile, a sum over its items, and phi(t) V of the item's features
t. phi(t) holds the features, a constant, and the similarity to some anchors. A model of items with titles or attributes
has these arrays:

- content-features.npy, (N, d): features of each item, and a column of ones.
- cold-left.npy, (N, r): what each item adds to the profile of a basket that has it.
- cold-anchors.npy, (m, d): features of the anchors; cold-map.npy, (d + 1 + m, r): V.
- cold-mask.npy, (N,): marks the cold items; cold-rows.npy, (C,): those that have a text; cold-table.npy, (C, r): their
  phi(t) V.
- cold-mean.npy, (r,): the usual user's profile.
- cold-center.npy, (r,), and cold-spread.npy, (r, r): mean and covariance of phi(t) V of the items that somebody has.
- unmet-features.npy, (U, d): features of the items without interactions, whose rows are N to N + U - 1. They are cold.
- encoder-*.npy: the state of the encoder that makes features of texts, where it has one.

Shapes: N items, C cold items, n items of a basket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from client_service.compiled.arrays import Arrays
from shared.method.parameters import Float32

LISTED: Final = 20  # cold items of a known user's list, so that some are left after the filters of a request
LEAST_DEVIATIONS: Final = 0.5  # by which a listed new item's score is above the user's mean score of sold items
STATE: Final = "encoder-"  # begins the names of the arrays of an encoder's state
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class AnchorMap:
    """Map phi from item features to features, a constant, and the similarity to each anchor.

    (n, d) -> (n, p). anchors: (m, d). reach: h, in squared distance. Needs numpy alone.
    """

    anchors: Float32
    reach: float

    def apply(self, features: Float32) -> Float32:
        """Computes phi of each row of features (n, d), (n, d + 1 + m)."""
        similarity = self.similarity(features)
        return np.concatenate([features, np.ones((len(features), 1), np.float32), similarity], axis=1, dtype=np.float32)

    def similarity(self, features: Float32) -> Float32:
        """Computes the similarity of each row to each anchor, (n, m).

        It is 1 + exp(-|t - a|^2 / (2 h)).
        """
        squares = squared_distances(features, self.anchors)
        found: Float32 = 1.0 + np.exp(squares / np.float32(-2.0 * self.reach))
        return found


def squared_distances(first: Float32, second: Float32) -> Float32:
    """Computes the squared distance |a - b|^2 of each pair of rows.

    first: (n, d). second: (m, d). Returns (n, m).
    """
    ours, theirs = (np.einsum("nd,nd->n", one, one) for one in (first, second))
    found: Float32 = np.maximum(ours[:, None] + theirs[None, :] - 2.0 * (first @ second.T), 0.0)
    return found


class ColdHead(BaseModel):
    """Description of the arrays by which cold items are scored.

    items: number of cold items that have a text. encoder: name of the encoder that made the items' features. reach: of
    the similarity to anchors, in squared distance. text: `text_digest` of the shard.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    items: int
    encoder: str
    reach: float
    text: str = ""


class ColdItems:
    """The cold items of a silo, and what scores them.

    left: what each item adds to a profile, (N, r). rows: cold items with a text, (C,), ascending. is_cold: mask (N,),
    which includes those without a text. mean: the usual user's profile, (r,), used for an empty basket.
    """

    def __init__(self, arrays: Arrays, head: ColdHead, items: int) -> None:
        """Takes the arrays of a compiled model. ValueError for others."""
        self.head, self.encoder = head, head.encoder
        self.left, self._features = arrays["cold-left"], arrays["content-features"]
        self.rows: Rows = arrays["cold-rows"]
        self.mean: Float32 = arrays["cold-mean"]
        self._table: Float32 = arrays["cold-table"]
        self._unmet: Float32 | None = arrays.get("unmet-features")
        self._center, self._spread = arrays.get("cold-center"), arrays.get("cold-spread")
        self._map, self._anchors = arrays["cold-map"], AnchorMap(arrays["cold-anchors"], head.reach)
        self.encoder_state = {
            name.removeprefix(STATE): array for name, array in arrays.items() if name.startswith(STATE)
        }
        width = len(self.mean)
        if self.left.shape != (items, width) or len(self._features) != items or self._map.shape[1] != width:
            raise ValueError(f"factors of {items:,} items, got arrays of other shapes")
        if self._table.shape != (len(self.rows), width):
            raise ValueError(f"factors of {len(self.rows):,} cold items, got another shape")
        self.is_cold: NDArray[np.bool_] = arrays["cold-mask"]
        if len(self.is_cold) != items:
            raise ValueError(f"a mask of {items:,} items, got one of {len(self.is_cold):,}")

    def has(self, row: int) -> bool:
        """Tells whether an item is a cold one that has a text."""
        place = int(np.searchsorted(self.rows, row))
        return place < len(self.rows) and int(self.rows[place]) == row

    def profile(self, basket: Rows) -> Float32:
        """Sums the profile vectors of a basket's items, (r,)."""
        if not len(basket):
            return self.mean
        found: Float32 = np.add.reduce(self.left[basket], axis=0)
        return found

    def least_score(self, profile: Float32) -> float:
        """Computes the smallest score of a new item that enters a list.

        It lies above the mean score of items with users, for the same profile. -inf in compiled models of earlier
        versions.
        """
        if self._center is None or self._spread is None:
            return -math.inf
        variance = float(profile @ (self._spread @ profile))
        return float(self._center @ profile) + LEAST_DEVIATIONS * math.sqrt(max(variance, 0.0))

    def features_of(self, rows: NDArray[np.integer]) -> Float32:
        """Reads the features of some items, (n, d)."""
        if self._unmet is None:
            found: Float32 = self._features[rows, :-1]
            return found
        outside = rows >= len(self._features)
        found = np.asarray(self._features[np.where(outside, 0, rows), :-1])
        found[outside] = self._unmet[rows[outside] - len(self._features)]
        return found

    def map(self, texts: Float32) -> Float32:
        """Computes phi(t) V of features (n, d), (n, r)."""
        found: Float32 = self._anchors.apply(texts) @ self._map
        return found

    def scores(self, profile: Float32) -> Float32:
        """Scores all cold items for a profile, (C,)."""
        found: Float32 = self._table @ profile
        return found

    def contributions(self, basket: Rows, texts: Float32) -> Float32:
        """Computes how much each basket item adds to the scores of items with these features.

        texts: (c, d). Returns (n, c).
        """
        found: Float32 = self.left[basket] @ self.map(texts).T
        return found

    def cosines(self, text: Float32) -> Float32:
        """Computes the cosine of features (d,) with those of all items.

        Returns (N,), 0 for an item without features.
        """
        length = max(float(np.linalg.norm(text)), 1e-12)
        found: Float32 = self._features @ np.append(text / np.float32(length), np.float32(0.0))  # rows have length one
        return found
