"""Splits of each user's interactions into train, validation and test, by seed or by time.

The order of the input does not matter. With `Draws` "pair" a draw follows from the seed, the user's id and the item's
id alone, so that the split of one user does not depend on other users: `basis.epsilon` assumes that adding or removing
a user changes only that user's own values.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_service.data.events import SPLIT_TYPE, SPLITS, sort_pairs
from shared.errors import DataError
from shared.words import counted_lines

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]
SplitKind = Literal["random", "time", "leave-one-out", "global-time"]
Draws = Literal["pair", "table"]
"""pair: each (user, item) has a draw of its own. table: one stream of draws over all rows, in which a new user changes
the draws of all later ones; only for the published tables, which were made so, never for a real silo's data."""

HELD_OUT = 10  # one interaction in ten for each of valid and test
FEWEST = 3  # a user with fewer interactions has none to spare
FNV_START, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a, 64 bits


def split_by_user(events: pl.DataFrame, seed: int, kind: SplitKind = "random", draws: Draws = "pair") -> pl.DataFrame:
    """Splits each user's events 8:1:1, with at least one in each split.

    Users with fewer than 3 interactions are for training only. kind: random draws; time takes each user's last
    interactions for test and those before them for validation, equal times as drawn; leave-one-out holds out one for
    each, by time for a user all of whose interactions have one; global-time divides all users' interactions at the same
    two dates, see `choose_dates`, and may leave a user without training items. Pairs must be distinct; rows come back
    sorted by user and item.
    """
    if kind == "global-time":
        table = sort_pairs(events)
        return _with_split(table, np.searchsorted(choose_dates(table), table["time"].to_numpy(), side="right"))
    table, place, size = _place_by_user(events, seed, draws, by_time=kind != "random")
    most = 1 if kind == "leave-one-out" else np.maximum(_rounded_tenth(size), 1)
    held_out = np.where(size >= FEWEST, most, 0)
    codes = np.where(place < held_out, 2, np.where(place < 2 * held_out, 1, 0))
    return _with_split(table, codes)


def split_validation(events: pl.DataFrame, seed: int, draws: Draws = "pair") -> pl.DataFrame:
    """Moves a tenth of each user's training items, rounded, to validation.

    Every user keeps at least one training item. Pairs must be distinct; rows come back sorted by user and item.
    """
    table, place, size = _place_by_user(events, seed, draws, by_time=False)
    return _with_split(table, np.where(place < np.minimum(_rounded_tenth(size), size - 1), 1, 0))


def _rounded_tenth(size: Int64) -> Int64:
    return (size + HELD_OUT // 2) // HELD_OUT


def require_times(events: pl.DataFrame, kind: SplitKind, where: Path | str) -> None:
    """Raises DataError for a split by time where interactions lack times."""
    if kind not in ("time", "global-time"):
        return
    if not _has_times(events):
        missing = events["time"].null_count() if "time" in events.columns else len(events)
        raise DataError(f"{where}: expected a time of each interaction for --split {kind}, {missing:,} have none")
    if kind == "global-time" and (found := events["time"].n_unique()) < len(SPLITS):
        raise DataError(f"{where}: expected three different times or more for --split {kind}, got {found}")


def choose_dates(events: pl.DataFrame) -> Int64:
    """Chooses the dates from which interactions are for validation and for test.

    (2,), in seconds since 1970. About a tenth of the interactions is for each; equal times fall on one side, and none
    of the three parts is empty.
    """
    times, counts = np.unique(events["time"].to_numpy(), return_counts=True)
    later = np.cumsum(counts[::-1])[::-1]  # at each time or after it
    share = len(events) / HELD_OUT
    test = 2 + int(np.argmin(np.abs(later[2:] - share)))
    valid = 1 + int(np.argmin(np.abs(later[1:test] - 2 * share)))
    return times[[valid, test]].astype(np.int64)


def describe_split(events: pl.DataFrame, seed: int, kind: SplitKind) -> list[str]:
    """Describes a split that was made here."""
    if kind == "random":
        return [f"interactions of each user are split 8:1:1 at random (seed {seed})"]
    if kind == "time":
        return ["split by time, user by user 8:1:1: the last are for test, those before them for validation"]
    if kind == "global-time":
        valid, test = (datetime.fromtimestamp(date, UTC).strftime("%Y-%m-%d %H:%M:%S") for date in choose_dates(events))
        return [f"split at the same dates for all users: validation since {valid}, test since {test} (UTC)"]
    notes = [f"split leaves one out: {_chosen_last(events, seed)} of each user is for test, another for validation"]
    few = int((events.group_by("user").len()["len"] < FEWEST).sum())
    return [*notes, *counted_lines([(few, "user", f"with fewer than {FEWEST} interactions, all for training")])]


def _chosen_last(events: pl.DataFrame, seed: int) -> str:
    if _has_times(events):
        return "the last by time"
    if "time" not in events.columns or events["time"].is_null().all():
        return f"one drawn with seed {seed}"
    return f"the last by time, or one drawn with seed {seed} where not all have times,"


def _has_times(events: pl.DataFrame) -> bool:
    return "time" in events.columns and events["time"].null_count() == 0


def _place_by_user(
    events: pl.DataFrame, seed: int, draws: Draws, *, by_time: bool
) -> tuple[pl.DataFrame, Int64, Int64]:
    """Sorts events, and returns each row's place among its user's rows and their number.

    The place, from 0, is drawn; by_time: of a user all of whose rows have a time the latest is at 0, and equal times
    are drawn.
    """
    table = sort_pairs(events)
    users = table["user"].rle_id().to_numpy().astype(np.int64)
    sizes = np.bincount(users)
    drawn = np.random.default_rng(seed).random(len(users)) if draws == "table" else draw_pairs(table, seed)
    keys = (drawn, -_times(table, users), users) if by_time and "time" in table.columns else (drawn, users)
    order = np.lexsort(keys)
    place = np.empty(len(users), dtype=np.int64)
    place[order] = np.arange(len(users)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return table, place, sizes[users]


def _times(table: pl.DataFrame, users: Int64) -> Int64:
    """Returns the times, (E,); 0 for all rows of a user who lacks a time."""
    missing = np.bincount(users, weights=table["time"].is_null().to_numpy()) > 0
    return np.where(missing[users], 0, table["time"].fill_null(0).to_numpy())


def draw_pairs(table: pl.DataFrame, seed: int) -> NDArray[np.float64]:
    """Draws a number in [0, 1) for each row, (E,), on every platform the same.

    It follows from seed, user and item alone. FNV-1a of the UTF-8 bytes of each id, mixed by SplitMix64 (Steele, Lea,
    Flood, OOPSLA 2014).
    """
    key = _mix(np.array([seed % 2**64], dtype=np.uint64))
    of_user, of_item = _hash_ids(table["user"]), _hash_ids(table["item"])
    drawn = (_mix(_mix(of_user + key) ^ of_item) >> np.uint64(11)).astype(np.float64)
    return np.ldexp(drawn, -53)


def _hash_ids(ids: pl.Series) -> UInt64:
    """Computes the 64-bit FNV-1a hash of each id's bytes, (E,).

    It goes over one byte of all ids at a time.
    """
    known = ids.unique()
    lengths = known.str.len_bytes().to_numpy().astype(np.int64)
    content = np.frombuffer("".join(known.to_list()).encode(), dtype=np.uint8)
    starts = np.cumsum(lengths) - lengths
    order = np.argsort(-lengths, kind="stable")
    longer = np.searchsorted(-lengths[order], -np.arange(lengths.max(initial=0)), side="left")  # than each place
    found = np.full(len(known), FNV_START, dtype=np.uint64)
    for place, count in enumerate(longer):
        rows = order[:count]
        found[rows] = (found[rows] ^ content[starts[rows] + place]) * FNV_PRIME
    places = pl.DataFrame({"id": ids}).join(
        pl.DataFrame({"id": known, "hash": found}), on="id", how="left", maintain_order="left"
    )
    return places["hash"].to_numpy()


def _mix(values: UInt64) -> UInt64:
    """Computes SplitMix64's output for each state."""
    state = values + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _with_split(table: pl.DataFrame, codes: Int64) -> pl.DataFrame:
    """Sets the split of each row; codes (E,): 0 train, 1 valid, 2 test."""
    return table.with_columns(split=pl.Series(SPLITS, dtype=SPLIT_TYPE).gather(codes))
