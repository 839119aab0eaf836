"""A user's interactions -> train, valid and test, drawn by seed or by time, whatever the order of the input."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_service.shard.events import SPLIT_TYPE, SPLITS, sort_pairs
from shared.errors import DataError
from shared.words import counted_lines

Int64 = NDArray[np.int64]
SplitKind = Literal["random", "time", "leave-one-out"]

HELD_OUT = 10  # one interaction in ten for each of valid and test
FEWEST = 3  # a user with fewer interactions has none to spare


def split_by_user(events: pl.DataFrame, seed: int, kind: SplitKind = "random") -> pl.DataFrame:
    """The events with another `split`: 8:1:1 for each user, at least one of each; under 3 interactions, train only.

    kind: random draws; time takes each user's last interactions for test and those before them for validation, equal
    times as drawn; leave-one-out holds out one for each, by time where every interaction has one. Pairs must be
    distinct; rows come back sorted by user and item.
    """
    table, place, size = _place_by_user(events, seed, by_time=_goes_by_time(events, kind))
    most = 1 if kind == "leave-one-out" else np.maximum(_rounded_tenth(size), 1)
    held_out = np.where(size >= FEWEST, most, 0)
    codes = np.where(place < held_out, 2, np.where(place < 2 * held_out, 1, 0))
    return _with_split(table, codes)


def split_validation(events: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Training events with another `split`: a tenth of each user's items, rounded, becomes validation.

    Every user keeps at least one training item. Pairs must be distinct; rows come back sorted by user and item.
    """
    table, place, size = _place_by_user(events, seed)
    return _with_split(table, np.where(place < np.minimum(_rounded_tenth(size), size - 1), 1, 0))


def _rounded_tenth(size: Int64) -> Int64:
    return (size + HELD_OUT // 2) // HELD_OUT


def require_times(events: pl.DataFrame, kind: SplitKind, where: Path | str) -> None:
    """DataError for a split by time of interactions some of which have none."""
    if kind == "time" and not _has_times(events):
        missing = events["time"].null_count() if "time" in events.columns else len(events)
        raise DataError(f"{where}: expected a time of each interaction for --split time, {missing:,} have none")


def describe_split(events: pl.DataFrame, seed: int, kind: SplitKind) -> list[str]:
    """What is to be said of a split that was made here."""
    if kind == "random":
        return [f"split drawn by user 8:1:1 with seed {seed}"]
    if kind == "time":
        return ["split by time, user by user 8:1:1: the last are for test, those before them for validation"]
    chosen = "the last by time" if _has_times(events) else f"one drawn with seed {seed}, as not all have times,"
    notes = [f"split leaves one out: {chosen} of each user is for test, another for validation"]
    few = int((events.group_by("user").len()["len"] < FEWEST).sum())
    return [*notes, *counted_lines([(few, "user", f"with fewer than {FEWEST} interactions, all for training")])]


def _goes_by_time(events: pl.DataFrame, kind: SplitKind) -> bool:
    return kind == "time" or (kind == "leave-one-out" and _has_times(events))


def _has_times(events: pl.DataFrame) -> bool:
    return "time" in events.columns and events["time"].null_count() == 0


def _place_by_user(events: pl.DataFrame, seed: int, *, by_time: bool = False) -> tuple[pl.DataFrame, Int64, Int64]:
    """The events sorted, with each row's place (from 0) among its user's rows and the number of those rows.

    The place is drawn; by_time: the latest is at 0, and equal times are as drawn.
    """
    table = sort_pairs(events)
    users = table["user"].rle_id().to_numpy().astype(np.int64)
    sizes = np.bincount(users)
    drawn = np.random.default_rng(seed).random(len(users))
    keys = (drawn, -table["time"].to_numpy(), users) if by_time else (drawn, users)
    order = np.lexsort(keys)
    place = np.empty(len(users), dtype=np.int64)
    place[order] = np.arange(len(users)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return table, place, sizes[users]


def _with_split(table: pl.DataFrame, codes: Int64) -> pl.DataFrame:
    """codes (E,): 0 train, 1 valid, 2 test."""
    return table.with_columns(split=pl.Series(SPLITS, dtype=SPLIT_TYPE).gather(codes))
