"""A data set as config.toml describes it -> a small Dataset: read whole, users drawn, thin users and items removed.

Splits that came with the data are put together and drawn anew, so that every set is divided by the same rule.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.harness.data import without_thin
from shared.errors import DataError
from simulation.datasets.dataset import WHOLE, Dataset, assemble_dataset
from simulation.datasets.load import load_dataset, read_events

KINDS = ("pairs", "fields", "sessions")


def read_source(source: dict[str, Any], folder: Path, seed: int) -> Dataset:
    """The data set in `folder`. kind: pairs, any format that `simulation` reads; fields, lines of user, item and a
    weight; sessions, lines of item ids, each line a user.

    Raises DataError for an unknown kind or a file that cannot be read.
    """
    kind = source.get("kind", "pairs")
    if kind not in KINDS:
        raise DataError(f"sets: {source['data']}: expected one of {', '.join(KINDS)}, got {kind!r}")
    paths = [folder / name for name in source.get("files", [])]
    if kind == "sessions":
        events = pl.concat([read_sessions(path, source.get("items", 1)) for path in paths])
        kept = events["user"].unique(maintain_order=True).tail(source.get("users", events["user"].n_unique()))
    else:
        events = _read_pairs(paths, folder, kind)
        users = events["user"].unique().sort()
        kept = users.sample(min(source.get("users", len(users)), len(users)), seed=seed)
    drawn = events.filter(pl.col("user").is_in(kept.implode())).with_columns(split=pl.lit("train"))
    return assemble_dataset(
        source["data"], {WHOLE: without_thin(drawn, source.get("fewest", 0)).drop("split")}, seed=seed, draws="table"
    )


def read_sessions(path: Path, fewest: int) -> pl.DataFrame:
    """(user, item) of the sessions with at least so many different items; a session's number is its user."""
    with gzip.open(path, "rt", encoding="ascii") as lines:
        sessions = [(f"{number:07d}", list(dict.fromkeys(line.split()))) for number, line in enumerate(lines)]
    kept = [(user, items) for user, items in sessions if len(items) >= fewest]
    return pl.DataFrame(kept, schema=["user", "item"], orient="row").explode("item")


def _read_pairs(paths: list[Path], folder: Path, kind: str) -> pl.DataFrame:
    if kind == "fields":
        names = ["user", "item", "weight"]
        tables = [
            pl.read_csv(p, separator="\t", has_header=False, new_columns=names, infer_schema=False) for p in paths
        ]
    else:
        tables = [read_events(path).table for path in paths] or [load_dataset(folder, 0).events]
    return pl.concat([table.select("user", "item") for table in tables]).unique(maintain_order=True)
