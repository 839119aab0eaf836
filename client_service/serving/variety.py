"""The best items of somebody -> the same in another order: newer ones first, and unlike ones beside each other.

Shapes: N items of the catalogue, P items in the pool, q embedding width.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import rankdata

from client_service.models.ranker import Rows
from client_service.shard import Shard
from shared.method.parameters import Float32


def item_freshness(shard: Shard) -> Float32 | None:
    """(N,) in [0, 1]: the share of the items with a time that were first met no later than this one; 0 for an item
    without a time. None where no training or validation interaction has one."""
    if "time" not in shard.events.columns:
        return None
    known = shard.events.filter(pl.col("split").cast(pl.String) != "test", pl.col("time").is_not_null())
    if known.is_empty():
        return None
    first = known.group_by("item").agg(pl.col("time").min())
    found = np.zeros(len(shard.item_ids), dtype=np.float32)
    found[first["item"].to_numpy()] = rankdata(first["time"].to_numpy(), method="max") / len(first)
    return found


def blend_freshness(scores: Float32, fresh: Float32, weight: float) -> Float32:
    """(1 - weight) x the scores (P,), stretched to [0, 1], + weight x freshness (P,)."""
    return np.float32(1.0 - weight) * stretch(scores) + np.float32(weight) * fresh


def stretch(scores: Float32) -> Float32:
    """(P,) to [0, 1]; all 0 where they are the same."""
    low, high = scores.min(), scores.max()
    found: Float32 = (scores - low) / (high - low if high > low else np.float32(1.0))
    return found


def order_by_variety(values: Float32, directions: Float32, weight: float, count: int) -> Rows:
    """Places (count,) in the pool by maximal marginal relevance (Carbonell, Goldstein. SIGIR 1998).

    The next one is that with the highest (1 - weight) x value - weight x its largest cosine with those before. values
    (P,) in [0, 1]; directions (P, q) of length one. Of equal ones the first.
    """
    worth = (1.0 - weight) * values
    nearest, chosen = np.zeros(len(values), dtype=np.float32), np.empty(count, dtype=np.int64)
    open_places: NDArray[np.bool_] = np.ones(len(values), dtype=bool)
    for place in range(count):
        gain = np.where(open_places, worth - weight * nearest, -np.inf)
        best = chosen[place] = int(gain.argmax())
        open_places[best] = False
        likeness = directions @ directions[best]
        nearest = likeness if place == 0 else np.maximum(nearest, likeness)
    return chosen
