"""Meaning of ratings: which interactions are positive."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from client_service.data.events import MET
from client_service.data.ratings import ABOVE_ZERO, RATING_SCALES, RatingScale
from shared.errors import DataError
from shared.words import count_noun
from simulation.datasets.dataset import WHOLE

STARS = 5.0  # the best of the commonest scale
NOT_RATED = 99.0  # stands for a missing rating in some tables of ratings from -10 to 10
FEWEST_TO_JUDGE = 20  # ratings, from which on their frequencies say whether they are counts

Tables = Mapping[str, pl.DataFrame]
LeastRating = float | Literal["usual", "stars", "ten", "hundred", "binary", "signed", "counts", "any"] | None
"""Smallest positive rating, or the kind of scale, which gives it: `RATING_SCALES`. usual: inferred, see
`infer_rating_meaning`. None: each rating above 0 is positive, as in published tables, which are about interactions."""


class Positives(NamedTuple):
    """Positive interactions by split, and others under the key `met`.

    meaning: of the ratings, None without any.
    """

    tables: dict[str, pl.DataFrame]
    notes: list[str]
    meaning: RatingScale | None


def choose_positives(
    tables: Tables,
    min_rating: LeastRating,
    path: Path,
    *,
    column: str = "rating",
    known: RatingScale | None = None,
    earlier: pl.Series | None = None,
) -> Positives:
    """Selects the positive interactions by `min_rating` or by the shard's known meaning.

    column: source of the ratings: rating, label or count. known: meaning that the shard has kept. earlier: ratings that
    the shard has. An interaction without a rating is positive; one that the column `positive` denies is not. Raises
    DataError, which names `path`, for a least rating where there are no ratings, and for many ratings outside the
    shard's scale.
    """
    tables, notes = _drop_unrated(tables)
    ratings = _known_ratings(tables)
    own = column == "rating"
    if isinstance(min_rating, float | int):
        if ratings.is_empty():
            raise DataError(f"{path}: expected ratings for a least rating of {min_rating:g}, got none")
        meaning: RatingScale | None = RatingScale(kind="given", least=min_rating)
    elif min_rating not in ("usual", None):
        meaning = RATING_SCALES[min_rating]
    elif known is not None and own:
        meaning = known
        notes += _check_scale(ratings, known, path)
    elif min_rating is None:
        meaning = None if ratings.is_empty() else RATING_SCALES["any"]
    else:
        before = [earlier.drop_nulls()] if earlier is not None and own else []
        meaning = infer_rating_meaning(pl.concat([ratings, *before]), column)
    notes += _describe_ratings(ratings, meaning, tables)
    found = _divide(tables, meaning)
    if known is not None and not own:  # on another scale than the shard's
        found = {split: table.drop("rating", strict=False) for split, table in found.items()}
    return Positives(found, notes, meaning if known is None else known)


def infer_rating_meaning(ratings: pl.Series, column: str = "rating") -> RatingScale | None:
    """Infers the most likely meaning of ratings; None without ratings.

    0 and 1; some below 0: positive above 0; counts: each is positive; up to 5, 10 or 100: positive from 4, 8 or 80 on.
    On any other scale each rating above 0 is positive.
    """
    if ratings.is_empty():
        return None
    values = ratings.to_numpy()
    low, high = float(values.min()), float(values.max())
    if column == "count":
        return RATING_SCALES["counts"]
    if np.isin(values, (0, 1)).all():
        return RATING_SCALES["binary"]
    if low < 0:
        return RATING_SCALES["signed"]
    if low == high:  # it says that there was an interaction
        kind = next(
            (kind for kind in ("stars", "ten", "hundred") if high <= (RATING_SCALES[kind].highest or 0)), "counts"
        )
        usual = RATING_SCALES[kind]
        return usual.model_copy(update={"least": min(usual.least, high)})
    if _look_like_counts(values):
        return RATING_SCALES["counts"]
    if 3 < high <= STARS:
        return RATING_SCALES["stars"]
    if 8 < high <= 10:
        return RATING_SCALES["ten"]
    if high == 100 and np.median(values) >= 30:
        return RATING_SCALES["hundred"]
    return RATING_SCALES["counts" if high > 10 else "any"]


def _look_like_counts(values: np.ndarray) -> bool:
    """Tells whether values look like counts.

    Counts are whole numbers of which 1 is by far the most frequent, and each further one is rarer than that before it;
    the largest may stand for all larger ones, but be no more frequent than 2.
    """
    if len(values) < FEWEST_TO_JUDGE or values.min() < 0 or (values != np.floor(values)).any() or values.max() > 1000:
        return False
    counts = np.bincount(values.astype(np.int64))[1:]
    chance = np.maximum(3 * np.sqrt(counts[:-1] + 1), 0.03 * counts[0])
    falling = np.diff(counts) <= chance
    capped = bool(falling[:-1].all()) and len(counts) > 3 and counts[-1] <= counts[1]
    return bool(counts[0] >= 1.5 * counts[1:].max(initial=0) and (falling.all() or capped))


def join_splits(tables: Tables) -> pl.DataFrame:
    """Joins tables into one, with their keys as splits.

    Rows under `WHOLE` keep their split, or are for training.
    """
    named = []
    for split, table in tables.items():
        if split != WHOLE:
            table = table.with_columns(split=pl.lit(split))
        elif "split" not in table.columns:
            table = table.with_columns(split=pl.lit("train"))
        named.append(table)
    return pl.concat(named, how="diagonal_relaxed")


def _divide(tables: Tables, meaning: RatingScale | None) -> dict[str, pl.DataFrame]:
    """Moves interactions that are not positive to the key `met`.

    Rows keep their order in a column `order`.
    """
    found, met = dict(tables), [tables[MET]] if MET in tables else []
    for split, table in tables.items():
        verdicts = [meaning.is_positive(pl.col("rating"))] if meaning is not None and "rating" in table.columns else []
        verdicts += [pl.col("positive").fill_null(True)] if "positive" in table.columns else []
        if split == MET or not verdicts:
            continue
        positive = table.select(pl.all_horizontal(verdicts)).to_series()
        ordered = table.with_row_index("order").cast({"order": pl.Int64}) if split == WHOLE else table
        found[split] = ordered.filter(positive).drop("positive", strict=False)
        met.append(ordered.filter(~positive).drop("positive", strict=False))
    if met:
        found[MET] = pl.concat(met, how="diagonal")
    return found


def _drop_unrated(tables: Tables) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """Drops rows with a rating of 99, which means not rated.

    It is so on a scale from -10 to 10.
    """
    ratings = _known_ratings(tables)
    rated = ratings.filter(ratings != NOT_RATED)
    if len(rated) in (0, len(ratings)) or not -10 <= float(rated.min()) < 0 or float(rated.max()) > 10:  # type: ignore[arg-type]
        return dict(tables), []
    unrated = (pl.col("rating") == NOT_RATED).fill_null(False)
    kept = {split: table.filter(~unrated) if "rating" in table.columns else table for split, table in tables.items()}
    return kept, [f"{count_noun(len(ratings) - len(rated), 'row')} with a rating of 99, which says not rated, left out"]


def _check_scale(ratings: pl.Series, known: RatingScale, path: Path) -> list[str]:
    if not (count := known.count_outside(ratings)):
        return []
    scale = f"from {known.lowest:g} to {known.highest:g}, as the shard's ratings are,"
    if count > max(1, len(ratings) // 10):
        values = ratings.to_numpy()
        got = f"got from {values.min():g} to {values.max():g}, {count:,} of {len(ratings):,} outside"
        words = f"expected ratings {scale} {got}"
        raise DataError(f"{path}: {words}; --min-rating sets the smallest positive rating")
    return [f"{count_noun(count, 'rating')} outside the scale {scale} count as its nearest end"]


def _known_ratings(tables: Tables) -> pl.Series:
    found = [
        table["rating"].drop_nulls() for split, table in tables.items() if split != MET and "rating" in table.columns
    ]
    return pl.concat(found) if found else pl.Series("rating", [], dtype=pl.Float64)


def _describe_ratings(ratings: pl.Series, meaning: RatingScale | None, tables: Tables) -> list[str]:
    """Describes which ratings are positive.

    Ratings that are all the same and all positive need no note.
    """
    if ratings.is_empty() or meaning is None:
        return []
    values = ratings.to_numpy()
    low, high = values.min(), values.max()
    below = int((values < meaning.least).sum())
    unrated = sum(len(table) for split, table in tables.items() if split != MET) - len(ratings)
    without = [f"{count_noun(unrated, 'interaction')} without a rating, among rated ones, count as positive"]
    notes = without if unrated else []
    if low == high and not below:
        return notes
    if meaning.kind in ("any", "counts", "signed") and not below:
        words = f"ratings from {low:g} to {high:g}, each counts as positive"
        if high != STARS:
            return [f"{words}; --min-rating leaves lower ones out", *notes]
        stars = RATING_SCALES["stars"].least
        return [
            f"{words}; --min-rating {stars:g} would leave {int((values < stars).sum()):,} of {len(values):,} out",
            *notes,
        ]
    limit = "not above 0" if meaning.least == ABOVE_ZERO else f"below {meaning.least:g}"
    words = f"{below:,} of {len(ratings):,} rated interactions, {limit}, are not positive (--min-rating)"
    return [f"{words}: not trained on, and not recommended again" if below else words, *notes]
