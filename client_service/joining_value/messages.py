"""The JSON messages of a comparison: what a run was worth to this silo. They stay in the silo."""

from __future__ import annotations

from pydantic import Field

from shared.message import Message


class FigureOut(Message):
    """A mean over users, and where it lies in 95 of 100 cases."""

    mean: float = Field(description="over the users", examples=[0.21])
    low: float = Field(description="lower end of the interval", examples=[0.19])
    high: float = Field(description="upper end of the interval", examples=[0.23])


class GroupOut(Message):
    """The same users' lists by popularity, by closed forms, by the silo alone and by the served model."""

    name: str = Field(description="which users, or which items", examples=["all users"])
    users: int = Field(ge=0, description="over whom the means are")
    popularity: FigureOut = Field(description="of popular items")
    floors: dict[str, FigureOut] = Field(
        {}, description="of closed forms that need no training: lowpass, ridge, ease", examples=[{}]
    )
    alone: FigureOut = Field(description="of what the silo has by itself")
    federated: FigureOut = Field(description="of what it serves")
    gain: FigureOut = Field(description="federated less alone, user by user")
    ratio: FigureOut | None = Field(
        None, description="federated over alone, both means, its interval user by user; none: of too few, or of nothing"
    )


class ComparisonOut(Message):
    """What a run was worth to this silo, on test items; it stays here."""

    measure: str = Field(description="the name of the figures", examples=["NDCG@20"])
    users: int = Field(ge=0, description="who have test items")
    few: bool = Field(description="too few users for these figures to say much")
    groups: tuple[GroupOut, ...] = Field((), description="all users first, then parts of them")
    validation_gain: FigureOut | None = Field(None, description="federated less alone on validation items")
    left_out: tuple[str, ...] = Field((), description="floors that take too long to compute in a silo of this size")
