"""Reads and cleans tables of interactions: columns are checked, each pair is kept once.

An event is one interaction: user, item, split, and where it is known its time (whole seconds since 1970, UTC) and its
rating. A split `train`, `valid` or `test` marks a positive event, of an item that the user wants; `met` marks any
other: a low rating, an item sent back. Models are not trained on it, and lists leave it out. Pairs
are cleaned here and nowhere else. No message contains an id.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_service.data.id_columns import find_unusable_ids, read_id_column
from client_service.data.times import TIMES, parse_times
from shared.errors import DataError
from shared.words import count_noun, counted_lines

SPLITS = ("train", "valid", "test")  # in order of precedence: a pair in two splits stays in the first
MET = "met"  # not positive: an item that is not recommended to its user again
SPLIT_TYPE = pl.Enum((*SPLITS, MET))
DETAILS = ("time", "rating")  # the columns that a table may have besides user, item and split


def read_events(table: pl.DataFrame, path: Path, *, exact: bool = False) -> pl.DataFrame:
    """Reads the columns user, item, split, and where present time and rating.

    user and item become strings, time Int64, rating Float64. exact: ids stay as a written shard has them. Raises
    DataError for a missing column or a value of another kind.
    """
    columns = {name: id_column(table, name, path, exact=exact) for name in ("user", "item")}
    columns["split"] = _read_splits(table, path)
    details = {"time": _read_times, "rating": _read_ratings}
    columns |= {name: read(table[name], path) for name, read in details.items() if name in table.columns}
    return pl.DataFrame(columns)


def drop_empty_columns(events: pl.DataFrame) -> pl.DataFrame:
    """Drops a time or rating column without values."""
    return events.drop([name for name in DETAILS if name in events.columns and events[name].is_null().all()])


def sort_pairs(events: pl.DataFrame) -> pl.DataFrame:
    """Sorts events by user, then item.

    Ids are sorted by their place among all, which takes a quarter of the time that text does.
    """
    return events.sort(*(ids.cast(pl.Enum(ids.unique().sort())) for ids in (events["user"], events["item"])))


def row_numbers(ids: pl.Series, listed: pl.Series) -> NDArray[np.int64]:
    """Finds the place of each id in `listed`, -1 if it is missing.

    listed: sorted and distinct.
    """
    codes = ids.cast(pl.Enum(listed), strict=False).to_physical()
    return codes.cast(pl.Int64).fill_null(-1).to_numpy()


def clean_events(events: pl.DataFrame, source: Path | str) -> tuple[pl.DataFrame, list[str]]:
    """Cleans events: each pair once, and positives only of users with a training item.

    Returns the cleaned events, and notes with the number of each change. Of several positives of a pair the one in
    the first split stays, there the earliest, and of several met events the latest: the order of rows does not count.
    Of a pair that is both positive and met the later event decides; where times do not tell, the one with the highest
    `order` (a column of whole numbers, where there is one), else the positive. The positives of a user without a
    training item become `met`. source: file or shard, for the message. Raises DataError when no training event is
    left.
    """
    pairs, counted = _unique_pairs(events)
    positive = pl.col("split") != MET
    trained = pairs.filter(pl.col("split") == "train")["user"].unique()
    if trained.is_empty():
        raise DataError(
            f"{source}: expected at least one training interaction, got none in {count_noun(len(events), 'row')}"
        )
    moved = positive & ~pl.col("user").is_in(trained.implode())
    untrained = pairs.filter(moved)
    if len(untrained):
        pairs = pairs.with_columns(split=pl.when(moved).then(pl.lit(MET, dtype=SPLIT_TYPE)).otherwise("split"))
    kept = f"without a training item dropped, with {count_noun(len(untrained), 'pair')} kept as met"
    return pairs, counted_lines([*counted, (untrained["user"].n_unique(), "user", kept)])


def _unique_pairs(events: pl.DataFrame) -> tuple[pl.DataFrame, list[tuple[int, str, str]]]:
    again = events.select(pl.struct("user", "item").is_duplicated()).to_series()
    several = _drop_contradicted(events.filter(again))
    events = events.drop("order", strict=False)
    details = [name for name in DETAILS if name in events.columns]
    order = [
        pl.col("split"),
        *(pl.when(pl.col("split") == MET).then(-pl.col(name)).otherwise(name) for name in details),
    ]
    first = several.sort(order, nulls_last=True).unique(["user", "item"], keep="first", maintain_order=True)
    across = several.select("user", "item", "split").n_unique() - len(first)
    counted = [
        (len(several) - len(first) - across, "duplicate pair", "dropped"),
        (across, "pair", "in more than one split kept in the first only"),
        (int(again.sum()) - len(several), "interaction", "dropped: a later one of the same user and item overrules it"),
    ]
    return pl.concat([events.filter(~again), first]), counted


def _drop_contradicted(events: pl.DataFrame) -> pl.DataFrame:
    """Drops positives that a later `met` event of the same pair contradicts, and the reverse.

    Where times do not tell which is later, the highest `order` (which is dropped) counts; without it the positive
    stays.
    """
    pair, met = ("user", "item"), pl.col("split") == MET
    time = pl.col("time") if "time" in events.columns else pl.lit(None, dtype=pl.Int64)
    order = pl.col("order").fill_null(0) if "order" in events.columns else pl.lit(0, dtype=pl.Int64)
    met_at, liked_at = (pl.when(kind).then(time).max().over(pair) for kind in (met, ~met))
    met_place, liked_place = (pl.when(kind).then(order).max().over(pair) for kind in (met, ~met))
    by_time = pl.when(met_at != liked_at).then(met_at > liked_at)
    taken_back = pl.coalesce(by_time, met_place > liked_place)
    both = met.any().over(pair) & (~met).any().over(pair)
    return events.filter(~both | (met == taken_back)).drop("order", strict=False)


def id_column(table: pl.DataFrame, name: str, path: Path, *, exact: bool = False) -> pl.Series:
    """Reads a column of ids as strings, normalised unless `exact`.

    Raises DataError for another kind of column.
    """
    if name not in table.columns:
        # Other columns are counted, not named: those of a user-item matrix saved as a table are item ids.
        raise DataError(f"{path}: expected a column {name!r}, got {count_noun(table.width, 'column')} of other names")
    column = table[name]
    try:
        ids = column if exact and column.dtype == pl.String else read_id_column(column)
    except ValueError as error:
        raise DataError(f"{path}: expected in column {name!r} {error}") from None
    if ids is None:
        raise DataError(f"{path}: expected strings or whole numbers in column {name!r}, got {column.dtype}")
    missing = ids.null_count() + int((ids == "").sum())
    if missing:
        raise DataError(f"{path}: expected a value in every row of column {name!r}, {missing} are missing")
    if (found := find_unusable_ids(ids)) is not None:
        raise DataError(f"{path}: expected in column {name!r} {found[1]}, in {count_noun(int(found[0].sum()), 'row')}")
    return ids


def _read_splits(table: pl.DataFrame, path: Path) -> pl.Series:
    splits = id_column(table, "split", path).cast(SPLIT_TYPE, strict=False)
    if unknown := splits.null_count():
        rows = count_noun(unknown, "row")
        raise DataError(f"{path}: expected train, valid, test or met in column 'split', got something else in {rows}")
    return splits


def _read_times(column: pl.Series, path: Path) -> pl.Series:
    seconds, wrong = parse_times(column)
    if count := int(wrong.sum()):
        rows = f"{count:,} of {count_noun(len(column), 'row')}"
        raise DataError(f"{path}: expected {TIMES} in column 'time', got something else in {rows}")
    return seconds


def _read_ratings(column: pl.Series, path: Path) -> pl.Series:
    if not (column.dtype.is_numeric() or column.dtype == pl.Null):
        raise DataError(f"{path}: expected numbers in column 'rating', got {column.dtype}")
    ratings = column.cast(pl.Float64)
    if wrong := int((~ratings.is_finite()).sum()):
        raise DataError(
            f"{path}: expected finite numbers in column 'rating', got something else in {count_noun(wrong, 'row')}"
        )
    return ratings
