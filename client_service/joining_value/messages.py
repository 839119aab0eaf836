"""JSON messages that compare a run with the local model; they stay in the silo."""

from __future__ import annotations

from pydantic import Field

from shared.message import Message


class FigureOut(Message):
    """Mean over users, with its 95 % interval."""

    mean: float = Field(description="over the users", examples=[0.21])
    low: float = Field(description="lower end of the interval", examples=[0.19])
    high: float = Field(description="upper end of the interval", examples=[0.23])


class GroupOut(Message):
    """Figures of one group of users: popularity, baselines, local model, served model."""

    name: str = Field(description="name of the group of users or items", examples=["all users"])
    users: int = Field(ge=0, description="number of users in the means")
    popularity: FigureOut = Field(description="of popular items")
    floors: dict[str, FigureOut] = Field(
        {}, description="of closed forms that need no training: lowpass, ridge, ease", examples=[{}]
    )
    alone: FigureOut = Field(description="of the silo's local model")
    federated: FigureOut = Field(description="of the served model")
    gain: FigureOut = Field(description="federated minus alone, paired by user")
    ratio: FigureOut | None = Field(
        None,
        description="federated over alone, paired by user; none: too few users, or a mean of 0",
    )


class CurveOut(Message):
    """Points of a curve."""

    x: tuple[float, ...] = Field(max_length=200, description="ascending", examples=[[0.0, 0.5, 1.0]])
    y: tuple[float, ...] = Field(max_length=200, description="of each x", examples=[[0.0, 0.8, 1.0]])


class GraphQualityOut(Message):
    """Quality of a silo's graph and of its served model on validation nodes.

    These figures stay in the silo.
    """

    edge_homophily: float | None = Field(
        None, description="share of edges between nodes of one label; none: no edge has two labelled ends"
    )
    adjusted_homophily: float | None = Field(
        None, description="edge homophily adjusted for the degrees of the classes: 0 by chance, 1 at most"
    )
    classes: dict[str, int] = Field(description="labelled nodes of each class", examples=[{"kept": 80, "banned": 20}])
    answers: str = Field(
        description="the model that answers, and the reason", examples=["closed form of all silos' sums"]
    )
    roc: CurveOut | None = Field(
        None, description="x: false positives, y: true positives; of more than two classes the mean over these"
    )
    reliability: CurveOut | None = Field(None, description="x: the predicted probability, y: the observed share")
    calibration_error: float | None = Field(
        None, description="mean distance of both, weighted by nodes", examples=[0.03]
    )


class ComparisonOut(Message):
    """Comparison of a run with the local model on test items.

    It stays in the silo.
    """

    measure: str = Field(description="name of the measure", examples=["NDCG@20"])
    users: int = Field(ge=0, description="number of users with test items")
    few: bool = Field(description="true where there are too few users for reliable figures")
    groups: tuple[GroupOut, ...] = Field((), description="all users first, then parts of them")
    validation_gain: FigureOut | None = Field(None, description="federated less alone on validation items")
    left_out: tuple[str, ...] = Field((), description="floors that take too long to compute in a silo of this size")
