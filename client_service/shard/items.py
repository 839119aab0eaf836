"""A table of items as it came -> the catalogue: each item once, sorted, with its title and its features."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from client_service.shard.events import id_column
from shared.errors import DataError


def item_table(events: pl.DataFrame, items: pl.DataFrame | None, path: Path) -> tuple[pl.DataFrame, list[str]]:
    """(item, title, features), sorted by item, and a note of the columns that were left out.

    Without `items` the items that occur in the events. A feature is a column of numbers, Booleans or strings. Raises
    DataError for a repeated item or a title that is no string.
    """
    if items is None:
        return events.select(pl.col("item").unique().sort(), title=pl.lit(None, dtype=pl.String)), []
    column = id_column(items, "item", path)
    if repeated := len(column) - column.n_unique():
        raise DataError(f"{path}: expected each item once, {repeated} rows repeat another")
    titles = items["title"] if "title" in items.columns else pl.Series([None] * len(items), dtype=pl.String)
    if titles.dtype not in (pl.String, pl.Null):
        raise DataError(f"{path}: expected strings in column 'title', got {titles.dtype}")
    others = [other for other in items.get_columns() if other.name not in ("item", "title")]
    features = [feature for other in others if (feature := _feature(other)) is not None]
    catalogue = pl.DataFrame([column.alias("item"), titles.cast(pl.String).alias("title"), *features]).sort("item")
    left_out = len(others) - len(features)
    return catalogue, [f"{left_out} columns of the items left out: neither numbers nor strings"] if left_out else []


def _feature(column: pl.Series) -> pl.Series | None:
    """Float64 or String, None for a column of another kind."""
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        return column.cast(pl.Float64)
    return column.cast(pl.String) if column.dtype in (pl.String, pl.Categorical, pl.Enum) else None
