"""Scales of ratings: the smallest rating that counts as positive.

It is chosen once, and kept in the shard's head. Files, appended files and posted interactions follow it alike. An
interaction without a rating is positive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from shared.errors import SettingsError
from shared.message import Message

if TYPE_CHECKING:
    import polars as pl

ABOVE_ZERO: Final = 1e-9  # the least rating where each rating above 0 is positive
DEFAULT_LEAST: Final = 4.0  # of a silo whose data have no ratings: four of five stars
RatingKind = Literal["stars", "ten", "hundred", "binary", "signed", "counts", "any", "given"]
Finite = Field(default=None, allow_inf_nan=False)


class RatingScale(Message):
    """Scale of ratings.

    least: smallest positive rating. lowest, highest: ends of the scale, None if it is open.
    """

    kind: RatingKind
    least: float = Field(allow_inf_nan=False)
    lowest: float | None = Finite
    highest: float | None = Finite

    def is_positive(self, rating: pl.Expr) -> pl.Expr:
        """Returns an expression: which of these ratings are positive."""
        return rating.is_null() | (rating >= self.least)

    def count_outside(self, ratings: pl.Series) -> int:
        """Counts the ratings outside the scale."""
        low = 0 if self.lowest is None else int((ratings < self.lowest).sum())
        return low + (0 if self.highest is None else int((ratings > self.highest).sum()))


RATING_SCALES: Final[dict[str, RatingScale]] = {
    "stars": RatingScale(kind="stars", least=4.0, lowest=0.0, highest=5.0),
    "ten": RatingScale(kind="ten", least=8.0, lowest=0.0, highest=10.0),
    "hundred": RatingScale(kind="hundred", least=80.0, lowest=0.0, highest=100.0),
    "binary": RatingScale(kind="binary", least=1.0, lowest=0.0, highest=1.0),
    "signed": RatingScale(kind="signed", least=ABOVE_ZERO),
    "counts": RatingScale(kind="counts", least=ABOVE_ZERO),
    "any": RatingScale(kind="any", least=ABOVE_ZERO),
}


def choose_least_rating(setting: float | None, scale: RatingScale | None) -> float:
    """Chooses the smallest positive rating: the shard's, else the setting, else 4.

    Raises SettingsError if both are given and differ.
    """
    if scale is None:
        return DEFAULT_LEAST if setting is None else setting
    if setting is not None and setting != scale.least:
        raise SettingsError(
            f"least_rating: expected {scale.least:g}, as the shard was made with, or no such setting, got {setting:g}; "
            "convert the data again with --min-rating to change it"
        )
    return scale.least
