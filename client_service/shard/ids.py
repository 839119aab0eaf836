"""A column of ids -> which of them could be none. The services' API takes the same ids and no others."""

from __future__ import annotations

from typing import Final

import polars as pl

LONGEST_ID: Final = 512  # characters
UNPRINTED: Final = r"[\x00-\x1f\x7f]"
MISSING: Final = ("NaN", "nan")  # what a data frame writes where there is none


def find_unusable_ids(ids: pl.Series) -> tuple[pl.Series, str] | None:
    """The first kind of unusable id that is there: a Boolean column of where, and what was expected in words."""
    kinds = (
        (ids.str.len_chars() > LONGEST_ID, f"an id of at most {LONGEST_ID} characters, got a longer one"),
        (ids.str.contains(UNPRINTED), "an id without control characters, got one with some"),
        (ids.is_in(MISSING), "an id, got NaN: one is missing where the file was written"),
    )
    return next(((wrong, expected) for wrong, expected in kinds if wrong.any()), None)
