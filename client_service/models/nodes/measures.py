"""Measures scores of nodes: accuracy, and for two classes the area under the ROC curve."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Scores = NDArray[np.floating]


def accuracy(scores: Scores, labels: Int64) -> float:
    """Computes the share of nodes, (m,), whose class has the highest score, (m, c).

    nan without a node.
    """
    return float(np.mean(scores.argmax(1) == labels)) if len(labels) else float("nan")


def area_under_roc(scores: Scores, labels: Int64) -> float:
    """Computes how often a node of class 1 scores above one of class 0.

    Ties count half. nan where no node is of one of the classes.
    """
    positive = labels == 1
    if not 0 < positive.sum() < len(labels):
        return float("nan")
    return float(place_positives(scores[:, 1] - scores[:, 0], positive)[0].mean())


def place_positives(scores: Scores, positive: NDArray[np.bool_]) -> tuple[Float64, Float64]:
    """Computes each positive's share of negatives below, and each negative's of positives above.

    The mean of either is the area under the ROC curve, and their spreads give its variance (DeLong et al. 1988).
    """
    ours, others = scores[positive], scores[~positive]
    return _share_below(ours, others), 1.0 - _share_below(others, ours)


def _share_below(scores: Scores, others: Scores) -> Float64:
    """Computes for each score the share of others below it; equal ones count half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, scores, side="left") + np.searchsorted(ordered, scores, side="right")
    shares: Float64 = below / (2.0 * len(others))
    return shares


def primary_score(scores: Scores, labels: Int64, classes: int) -> float:
    """Computes the measure by which validation chooses; -inf where the measure is not defined."""
    found = area_under_roc(scores, labels) if classes == 2 else accuracy(scores, labels)
    return found if np.isfinite(found) else float("-inf")
