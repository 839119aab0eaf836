"""Ratings -> which interactions count as a liking, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import polars as pl

from client_service.shard.events import MET
from shared.errors import DataError
from simulation.datasets.dataset import WHOLE

USUAL, STARS = 4.0, 5.0  # of five stars, four and more are a liking as a rule
SCALES = (5.0, 10.0)  # a best rating that is one of these is taken for a scale's; others may be counts

Tables = Mapping[str, pl.DataFrame]
LeastRating = float | Literal["usual"] | None
"""Below it an interaction is no liking. usual: by the scale of the ratings, 4 of 5. None: each counts, as in published
tables, which are about interactions."""


def choose_likings(tables: Tables, min_rating: LeastRating, path: Path) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """The tables with lower ratings moved to the key `met`, and a note; all as they are, with a note, without a least
    rating. An interaction without a rating counts. DataError, which names `path`, for a least rating where there are no
    ratings."""
    ratings = _known_ratings(tables)
    if min_rating == "usual":
        min_rating = _usual_least(ratings)
    if min_rating is None:
        return dict(tables), _describe_ratings(ratings)
    if ratings.is_empty():
        raise DataError(f"{path}: expected ratings for a least rating of {min_rating:g}, got none")
    low = (pl.col("rating") < min_rating).fill_null(False)
    found, met = dict(tables), [tables[MET]] if MET in tables else []
    for split, table in tables.items():
        if split != MET and "rating" in table.columns:
            found[split] = table.filter(~low)
            met.append(table.filter(low))
    if met:
        found[MET] = pl.concat(met, how="diagonal")
    below = int((ratings < min_rating).sum())
    words = f"{below:,} of {len(ratings):,} rated interactions, below {min_rating:g}, are no likings (--min-rating)"
    return found, [f"{words}: nothing is learnt from them, and no list repeats them"] if below else [words]


def join_splits(tables: Tables) -> pl.DataFrame:
    """One table of all tables with their keys as splits; what is under `WHOLE` keeps its split, or is for training."""
    named = []
    for split, table in tables.items():
        if split != WHOLE:
            table = table.with_columns(split=pl.lit(split))
        elif "split" not in table.columns:
            table = table.with_columns(split=pl.lit("train"))
        named.append(table)
    return pl.concat(named, how="diagonal_relaxed")


def _usual_least(ratings: pl.Series) -> float | None:
    """None where the ratings are no scale's, or all the same."""
    best = ratings.max()
    return USUAL / STARS * float(best) if best in SCALES and ratings.n_unique() > 1 else None  # type: ignore[arg-type]


def _known_ratings(tables: Tables) -> pl.Series:
    found = [
        table["rating"].drop_nulls() for split, table in tables.items() if split != MET and "rating" in table.columns
    ]
    return pl.concat(found) if found else pl.Series("rating", [], dtype=pl.Float64)


def _describe_ratings(ratings: pl.Series) -> list[str]:
    """Nothing of ratings that are all the same: they say that there was an interaction."""
    if ratings.n_unique() < 2:
        return []
    values = ratings.to_numpy()
    words = f"ratings from {values.min():g} to {values.max():g}, and each counts as a liking"
    if values.max() != STARS:
        return [f"{words}; --min-rating leaves lower ones out"]
    return [f"{words}; --min-rating {USUAL:g} would leave {int((values < USUAL).sum()):,} of {len(values):,} out"]
