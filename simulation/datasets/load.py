"""A path -> a Dataset: finds the files, reads each in its format, cleans, and draws the splits that did not come."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from shared.errors import DataError
from simulation.datasets.content import fault, kind, text
from simulation.datasets.dataset import WHOLE, Dataset, assemble, ordered_splits
from simulation.datasets.lightgcn import read_lightgcn
from simulation.datasets.sources import locate
from simulation.datasets.tables import Table, parquet, separated, with_header

RATING = ("user", "item", "rating", "timestamp")
FIELDS_OF_U_ITEM = 24  # id, title, two dates, a link and 19 genre flags


def load(path: Path, seed: int) -> Dataset:
    """The data set at `path`, a file or a folder. A split that comes with it is kept; `seed` draws what is missing.

    Raises DataError naming the file, the line where there is one, what was expected and what came; never an id.
    """
    source = locate(path)
    pairs = {split: _interactions(file) for split, file in source.files.items()}
    if WHOLE in pairs and "split" in pairs[WHOLE].columns:
        parts = pairs[WHOLE].partition_by("split", as_dict=True, maintain_order=True)
        pairs = ordered_splits({str(split): part for (split,), part in parts.items()}, path)
    titles = None if source.titles is None else _titles(source.titles)
    dataset = assemble(source.name, pairs, seed=seed, titles=titles)
    if dataset.interactions.is_empty():
        raise DataError(f"{path}: expected at least one user with a training item, got none")
    return dataset


def _interactions(path: Path) -> pl.DataFrame:
    """(user, item) of one file, and split where a table has such a column."""
    if kind(path) == "txt":
        return read_lightgcn(path)
    table = _ratings(path) if kind(path) in ("dat", "data") else _table(path)
    columns = {"user": table.required("user"), "item": table.required("item")}
    if table.find("split") is not None:
        columns["split"] = _splits(table)
    return pl.DataFrame(columns)


def _ratings(path: Path) -> Table:
    """MovieLens' `user::item::rating::timestamp`, or the same fields between tabs or commas."""
    whole = text(path)
    first = whole.partition("\n")[0]
    separator = next((mark for mark in ("::", "\t", ",") if mark in first), None)
    if separator is None:
        raise fault(path, 1, "expected fields separated by '::', tabs or commas, got none of these")
    return separated(path, whole, separator, RATING)


def _table(path: Path) -> Table:
    form = kind(path)
    if form == "parquet":
        return parquet(path)
    return with_header(path, text(path), "\t" if form in ("inter", "item") else ",")


def _splits(table: Table) -> pl.Series:
    splits = table.required("split")
    other = ~splits.is_in(["train", "valid", "test"])
    if other.any():
        raise fault(table.path, table.line[other.arg_max() or 0], "expected train, valid or test in the field 'split'")
    return splits


def _titles(path: Path) -> pl.DataFrame:
    """(item, title), with null where there is none."""
    if kind(path) == "dat":
        table = separated(path, text(path, latin=True), "::", ("item", "title", "genres"))
    elif path.name.removesuffix(".gz") == "u.item":
        names = ("item", "title", *("other",) * (FIELDS_OF_U_ITEM - 2))
        table = separated(path, text(path, latin=True), "|", names)
    else:
        table = _table(path)
    items, titles = table.required("item"), table.find("title")
    if titles is None:
        return items.to_frame("item").with_columns(title=pl.lit(None, dtype=pl.String))
    return pl.DataFrame({"item": items, "title": titles.replace("", None)})
