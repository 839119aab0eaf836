"""A user's interactions -> train, valid and test, drawn by seed so that the order of the input does not matter."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_service.shard.events import SPLIT_TYPE, SPLITS, sort_pairs

Int64 = NDArray[np.int64]

HELD_OUT = 10  # one interaction in ten for each of valid and test
FEWEST = 3  # a user with fewer interactions has none to spare


def split_by_user(events: pl.DataFrame, seed: int) -> pl.DataFrame:
    """The events with another `split`: 8:1:1 for each user, at least one of each; under 3 interactions, train only.

    Pairs must be distinct; rows come back sorted by user and item.
    """
    table, place, size = _shuffle_by_user(events, seed)
    held_out = np.where(size >= FEWEST, np.maximum(_rounded_tenth(size), 1), 0)
    codes = np.where(place < held_out, 2, np.where(place < 2 * held_out, 1, 0))
    return _with_split(table, codes)


def split_validation(events: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Training events with another `split`: a tenth of each user's items, rounded, becomes validation.

    Every user keeps at least one training item. Pairs must be distinct; rows come back sorted by user and item.
    """
    table, place, size = _shuffle_by_user(events, seed)
    return _with_split(table, np.where(place < np.minimum(_rounded_tenth(size), size - 1), 1, 0))


def _rounded_tenth(size: Int64) -> Int64:
    return (size + HELD_OUT // 2) // HELD_OUT


def _shuffle_by_user(events: pl.DataFrame, seed: int) -> tuple[pl.DataFrame, Int64, Int64]:
    """The events sorted, with each row's random place (from 0) among its user's rows and the number of those rows."""
    table = sort_pairs(events)
    users = table["user"].rle_id().to_numpy().astype(np.int64)
    sizes = np.bincount(users)
    order = np.lexsort((np.random.default_rng(seed).random(len(users)), users))
    place = np.empty(len(users), dtype=np.int64)
    place[order] = np.arange(len(users)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return table, place, sizes[users]


def _with_split(table: pl.DataFrame, codes: Int64) -> pl.DataFrame:
    """codes (E,): 0 train, 1 valid, 2 test."""
    return table.with_columns(split=pl.Series(SPLITS, dtype=SPLIT_TYPE).gather(codes))
