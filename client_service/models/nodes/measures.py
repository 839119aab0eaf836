"""Measures scores of nodes: accuracy, and for two classes the area under the ROC curve."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Int64 = NDArray[np.int64]
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
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return float("nan")
    ranks = rankdata(scores[:, 1] - scores[:, 0])
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def primary_score(scores: Scores, labels: Int64, classes: int) -> float:
    """Computes the measure by which validation chooses; -inf where the measure is not defined."""
    found = area_under_roc(scores, labels) if classes == 2 else accuracy(scores, labels)
    return found if np.isfinite(found) else float("-inf")
