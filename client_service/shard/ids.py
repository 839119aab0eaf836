"""Ids -> which of them could be none. Loading and the services' API take the same ids and no others."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

LONGEST_ID: Final = 512  # characters
UNPRINTED: Final = r"[\x00-\x1f\x7f]"
MISSING: Final = ("NaN", "nan")  # what a data frame writes where there is none

TOO_LONG: Final = f"an id of at most {LONGEST_ID} characters, got a longer one"
WITH_CONTROLS: Final = "an id without control characters, got one with some"
NO_ID: Final = "an id, got NaN: one is missing where it was written"

_unprinted = re.compile(UNPRINTED)


def find_unusable_ids(ids: pl.Series) -> tuple[pl.Series, str] | None:
    """The first kind of unusable id that is there: a Boolean column of where, and what was expected in words."""
    kinds = (
        (ids.str.len_chars() > LONGEST_ID, TOO_LONG),
        (ids.str.contains(UNPRINTED), WITH_CONTROLS),
        (ids.is_in(MISSING), NO_ID),
    )
    return next(((wrong, expected) for wrong, expected in kinds if wrong.any()), None)


def require_usable_id(text: str) -> str:
    """The id, as `find_unusable_ids` would leave it. ValueError for one that it would find; it is not quoted."""
    kinds = ((len(text) > LONGEST_ID, TOO_LONG), (holds_controls(text), WITH_CONTROLS), (text in MISSING, NO_ID))
    for wrong, expected in kinds:
        if wrong:
            raise ValueError(f"expected {expected}")
    return text


def holds_controls(text: str) -> bool:
    """Is there a control character in it?"""
    return _unprinted.search(text) is not None
