"""One silo's data: its events, and the matrices and digests that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.digests import content_digest, table_digest
from client_service.data.events import (
    DETAILS,
    MET,
    SPLIT_TYPE,
    SPLITS,
    drop_empty_columns,
    id_column,
    row_numbers,
    sort_pairs,
)
from client_service.data.id_columns import index_ids
from client_service.data.ids import find_row
from client_service.data.ratings import RatingScale
from client_service.data.shard_head import combine_digests
from shared.errors import DataError
from shared.method.graph import interaction_matrix
from shared.words import count_noun, counted_lines


@dataclass(frozen=True, eq=False)
class Shard:
    """Data of one silo: M users with training events, and N items; ids sorted.

    events: the positives, one row for each (user, item) pair, sorted by split, user and item: `user` and `item` (row
    numbers, Int32), `split`, and `time` (seconds since 1970 UTC, Int64) and `rating` (Float64) where any is known.
    titles: (N,), None if unknown. features: N rows, a column (Float64 or String) for each feature of the items.
    places: (N,), each item's row in a catalogue that the whole federation shares, None if there is no such
    catalogue. catalogue: its digest. matched_ids: (N,), the federation's name of each item, None if the silo has
    matched none of them.
    met_events: the events that are not positive, None without any: `user` and `item` (ids, String: also users
    without a positive, and items outside the catalogue), `time` and `rating` where any is known, sorted by
    user and item. No pair of it is among the positives. Models learn nothing of it; lists leave it out.
    unmet: items of the silo's catalogue without users, which have no row, None without any: `item`, `title` and the
    columns of `features`, sorted by item. No model is fitted to them: their text recommends them.
    split_digest: digest of the shard that this one is `with_all_data` of, else "".
    rating: scale of the ratings, None if unknown. feature_file: file of the item vectors that the silo has
    computed, None without; see `client_service.text.item_features`. feature_digest: sha256 of that file.
    """

    name: str
    user_ids: tuple[str, ...]
    item_ids: tuple[str, ...]
    events: pl.DataFrame
    titles: tuple[str | None, ...] | None = None
    features: pl.DataFrame | None = None
    notes: tuple[str, ...] = ()
    places: NDArray[np.int64] | None = None
    catalogue: str = ""
    matched_ids: tuple[str, ...] | None = None
    met_events: pl.DataFrame | None = None
    unmet: pl.DataFrame | None = None
    split_digest: str = ""
    rating: RatingScale | None = None
    feature_file: Path | None = None
    feature_digest: str = ""

    @property
    def shared_ids(self) -> tuple[str, ...]:
        """Name of each item in the federation, (N,); "" for an item without one."""
        return self.item_ids if self.matched_ids is None else self.matched_ids

    @cached_property
    def train(self) -> sparse.csr_array:
        """Training pairs, (M, N): 0/1, float64, sorted indices."""
        return self._matrix("train")

    @cached_property
    def valid(self) -> sparse.csr_array:
        """Validation pairs, (M, N), disjoint from the training pairs."""
        return self._matrix("valid")

    @cached_property
    def test(self) -> sparse.csr_array:
        """Test pairs, (M, N), disjoint from training and validation pairs."""
        return self._matrix("test")

    @cached_property
    def met(self) -> sparse.csr_array:
        """Met pairs, which are not positive, (M, N), of users and items with a row."""
        rows, columns = self._met_coordinates
        inside = (rows >= 0) & (columns >= 0)
        return interaction_matrix(rows[inside], columns[inside], (len(self.user_ids), len(self.item_ids)))

    @cached_property
    def known_pairs(self) -> sparse.csr_array:
        """All pairs, positive or met, (M, N), which lists leave out."""
        return sparse.csr_array(self.train + self.valid + self.test + self.met)

    def met_items(self, user_id: str) -> NDArray[np.int64]:
        """Returns rows of the items in a user's met events, ascending.

        Users without a positive are known too.
        """
        row = self.user_row(user_id)
        if row is None:
            return self._met_by_others.get(user_id, np.zeros(0, dtype=np.int64))
        return self.met.indices[self.met.indptr[row] : self.met.indptr[row + 1]].astype(np.int64)

    @cached_property
    def met_only_users(self) -> frozenset[str]:
        """Ids of users with met events alone, who have no row."""
        if self.met_events is None:
            return frozenset()
        users = self.met_events["user"].unique()
        return frozenset(users.filter(~users.is_in(self.user_ids)))

    @cached_property
    def met_digest(self) -> str | None:
        """sha256 over the met events; None without any."""
        return None if self.met_events is None else table_digest("", [self.met_events])

    @cached_property
    def unmet_digest(self) -> str | None:
        """sha256 over the unmet items and their features; None without any."""
        return None if self.unmet is None else table_digest("", [self.unmet])

    @cached_property
    def lists_digest(self) -> str:
        """Digest of the positives, the met events and the unmet items.

        It is `digest` without the latter two. It keys precomputed lists and the event log.
        """
        return combine_digests(self.kept_digest, self.met_digest, self.unmet_digest)

    @cached_property
    def digest(self) -> str:
        """sha256 over users, items, titles and the three matrices.

        It keys caches, checkpoints, saved models and accounts, and is a part of the seed of random generators. Times
        and ratings, on which nothing under this key depends, are left out, so that shards that earlier versions wrote
        without them keep their digest and their draws. `events_digest` covers them. Met events are left out too:
        `lists_digest` covers them; and attributes and the file of features, which `text_digest` covers.
        """
        return content_digest((self.user_ids, self.item_ids, self.titles), (self.train, self.valid, self.test))

    @cached_property
    def text_digest(self) -> str:
        """sha256 over the items' attributes and the file of features.

        "" where there is neither. `digest` covers the titles.
        """
        if self.features is None and self.feature_file is None:
            return ""
        return table_digest(self.feature_digest, [] if self.features is None else [self.features])

    @property
    def kept_digest(self) -> str:
        """Digest of the shard on the disk, which keys saved models."""
        return self.split_digest or self.digest

    @cached_property
    def with_all_data(self) -> Shard:
        """Shard with validation and test pairs among the training pairs.

        A silo may answer from it.
        """
        events = self.events.with_columns(split=pl.lit("train", dtype=SPLIT_TYPE)).sort("user", "item")
        return replace(self, events=events, split_digest=self.digest)

    @cached_property
    def events_digest(self) -> str | None:
        """sha256 over `digest`, times, ratings and features; None without any of these."""
        details = self.events.select(name for name in DETAILS if name in self.events.columns)
        if details.width == 0 and self.features is None:
            return None
        return table_digest(self.digest, [details] if self.features is None else [details, self.features])

    def user_row(self, user_id: str) -> int | None:
        """Returns the user's row in the matrices; None for an unknown user."""
        return find_row(self._user_rows, user_id)

    def item_row(self, item_id: str) -> int | None:
        """Returns the item's column in the matrices; None for an unknown item."""
        return find_row(self._item_rows, item_id)

    def events_with_ids(self) -> pl.DataFrame:
        """Returns the positives with ids of users and items instead of row numbers."""
        users, items = pl.Series(self.user_ids, dtype=pl.String), pl.Series(self.item_ids, dtype=pl.String)
        return self.events.with_columns(user=users.gather(self.events["user"]), item=items.gather(self.events["item"]))

    def all_events_with_ids(self) -> pl.DataFrame:
        """Returns positives and met events with ids, as the file has them."""
        positives = self.events_with_ids()
        if self.met_events is None:
            return positives
        return pl.concat([positives, self.met_events.with_columns(split=pl.lit(MET, dtype=SPLIT_TYPE))], how="diagonal")

    def items_with_ids(self) -> pl.DataFrame:
        """Returns the catalogue: item, title, and the features."""
        titles = self.titles or (None,) * len(self.item_ids)
        items = pl.DataFrame({"item": self.item_ids, "title": titles}, schema={"item": pl.String, "title": pl.String})
        return items if self.features is None else items.hstack(self.features)

    def _matrix(self, split: str) -> sparse.csr_array:
        pairs = self.events.filter(pl.col("split") == split)
        rows, columns = (pairs[name].cast(pl.Int64).to_numpy() for name in ("user", "item"))
        return interaction_matrix(rows, columns, (len(self.user_ids), len(self.item_ids)))

    @cached_property
    def _met_coordinates(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Row and column of each met event, -1 if it has none."""
        if self.met_events is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        users, items = (pl.Series(ids, dtype=pl.String) for ids in (self.user_ids, self.item_ids))
        return row_numbers(self.met_events["user"], users), row_numbers(self.met_events["item"], items)

    @cached_property
    def _met_by_others(self) -> dict[str, NDArray[np.int64]]:
        if self.met_events is None:
            return {}
        rows, columns = self._met_coordinates
        table = self.met_events.select("user", column=columns).filter((rows < 0) & (columns >= 0))
        grouped = table.group_by("user").agg(pl.col("column").sort())
        return {user: np.array(places, dtype=np.int64) for user, places in grouped.iter_rows()}

    @cached_property
    def _user_rows(self) -> dict[str, int]:
        return index_ids(self.user_ids)

    @cached_property
    def _item_rows(self) -> dict[str, int]:
        return index_ids(self.item_ids)


def build_shard(
    name: str,
    events: pl.DataFrame,
    items: pl.DataFrame | None,
    notes: Sequence[str] = (),
    path: Path = Path("items"),
    *,
    exact: bool = True,
) -> Shard:
    """Builds a shard from clean events and a catalogue.

    events: user, item, split, time, rating. items: item, title, features; without it the catalogue has the positive
    items. `path`: of the items. not exact: their ids are normalised. Raises DataError if an item of the events is
    missing.
    """
    met = events.filter(pl.col("split") == MET)
    events = events.filter(pl.col("split") != MET) if len(met) else events
    catalogue, left_out = build_catalogue(events, items, path, exact=exact)
    users = events["user"].unique().sort()
    rows = {"user": row_numbers(events["user"], users), "item": row_numbers(events["item"], catalogue["item"])}
    if missing := int((rows["item"] < 0).sum()):
        raise DataError(
            f"{path}: expected every item of the interactions, got others in {count_noun(missing, 'interaction')}"
        )
    numbers = [pl.Series(column, values, dtype=pl.Int32) for column, values in rows.items()]
    table = drop_empty_columns(events).with_columns(numbers).sort("split", "user", "item")
    titles = catalogue["title"].to_list() if catalogue["title"].null_count() < len(catalogue) else None
    features = catalogue.drop("item", "title")
    return Shard(
        name,
        tuple(users),
        tuple(catalogue["item"]),
        table.select("user", "item", "split", *(name for name in DETAILS if name in table.columns)),
        None if titles is None else tuple(titles),
        features if features.width else None,
        (*notes, *left_out),
        met_events=_select_met(met),
    )


def with_unmet_items(shard: Shard, items: pl.DataFrame | None, path: Path = Path("items")) -> Shard:
    """Returns the shard with other unmet items: the table's described items without a row.

    items: item, title, features. Columns that the items of the shard do not have are left out: nothing is compared by
    them. Raises DataError for missing ids, and for ids or titles of another type.
    """
    if items is None or items.is_empty():
        return replace(shard, unmet=None)
    known = {} if shard.features is None else dict(shard.features.schema)
    features = [
        feature for name in known if name in items.columns and (feature := _read_feature(items[name])) is not None
    ]
    kept = [feature.cast(known[feature.name], strict=False) for feature in features]
    table = pl.DataFrame([id_column(items, "item", path).alias("item"), _read_titles(items, path), *kept])
    missing = [pl.lit(None, dtype=kind).alias(name) for name, kind in known.items() if name not in table.columns]
    table = table.with_columns(missing).select("item", "title", *known)
    rows = pl.Series(shard.item_ids, dtype=pl.String)
    is_described = pl.any_horizontal(pl.col(name).is_not_null() for name in ("title", *known))
    table = table.filter(is_described & ~pl.col("item").is_in(rows.implode())).unique("item", keep="first").sort("item")
    return replace(shard, unmet=None if table.is_empty() else table)


def _select_met(met: pl.DataFrame) -> pl.DataFrame | None:
    if met.is_empty():
        return None
    table = sort_pairs(drop_empty_columns(met))
    return table.select("user", "item", *(name for name in DETAILS if name in table.columns))


def build_catalogue(
    events: pl.DataFrame, items: pl.DataFrame | None, path: Path, *, exact: bool = True
) -> tuple[pl.DataFrame, list[str]]:
    """Builds the catalogue: item, title, features, sorted by item.

    Returns it with a note of the columns that were left out. Without `items` it has the items that occur in the
    events. A feature is a column of numbers, Booleans or strings. Raises DataError for a repeated item or a title
    that is no string.
    """
    if items is None:
        return events.select(pl.col("item").unique().sort(), title=pl.lit(None, dtype=pl.String)), []
    column = id_column(items, "item", path, exact=exact)
    if repeated := len(column) - column.n_unique():
        raise DataError(f"{path}: expected each item once, got {count_noun(repeated, 'row')} that repeat another")
    titles = _read_titles(items, path)
    others = [other for other in items.get_columns() if other.name not in ("item", "title")]
    features = [feature for other in others if (feature := _read_feature(other)) is not None]
    catalogue = pl.DataFrame([column.alias("item"), titles, *features]).sort("item")
    left_out = len(others) - len(features)
    return catalogue, counted_lines([(left_out, "column", "of the items left out: neither numbers nor strings")])


def _read_titles(items: pl.DataFrame, path: Path) -> pl.Series:
    """Reads the titles, null where missing; raises DataError for other types."""
    titles = items["title"] if "title" in items.columns else pl.Series("title", [None] * len(items), dtype=pl.String)
    if titles.dtype not in (pl.String, pl.Null):
        raise DataError(f"{path}: expected strings in column 'title', got {titles.dtype}")
    return titles.cast(pl.String)


def _read_feature(column: pl.Series) -> pl.Series | None:
    """Converts a feature to Float64 or String; None for another kind."""
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        return column.cast(pl.Float64)
    return column.cast(pl.String) if column.dtype in (pl.String, pl.Categorical, pl.Enum) else None


def build_shard_from_matrices(
    name: str,
    user_ids: Sequence[str],
    item_ids: Sequence[str],
    matrices: Sequence[sparse.csr_array],
    places: NDArray[np.int64] | None = None,
) -> Shard:
    """Builds a shard from its train, valid and test matrices, (M, N) 0/1.

    It has no times, ratings and titles.
    """
    tables = []
    for split, pairs in zip(SPLITS, matrices, strict=True):
        rows = np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr))
        columns = {"user": rows, "item": pairs.indices}
        tables.append(pl.DataFrame(columns).cast(pl.Int32).with_columns(split=pl.lit(split, dtype=SPLIT_TYPE)))
    return Shard(name, tuple(user_ids), tuple(item_ids), pl.concat(tables).sort("split", "user", "item"), places=places)
