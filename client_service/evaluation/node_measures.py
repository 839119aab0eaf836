"""Measures probabilities of nodes' classes against known labels: accuracy, and area under the ROC curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_service.evaluation.metrics import MeasureLabel, Measures
from client_service.models.nodes.measures import accuracy, place_positives

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
ACCURACY, AUC = "accuracy", "auc"
NODE_LABELS = {AUC: MeasureLabel(AUC, "AUC"), ACCURACY: MeasureLabel(ACCURACY, "Accuracy")}
CHANCE_AUC = 0.5  # area under the curve of a random ranking; also used if all nodes are of one class


def choose_primary(classes: int) -> str:
    """Returns the name of the measure by which validation chooses.

    With two classes it is the area under the ROC curve, else accuracy.
    """
    return AUC if classes == 2 else ACCURACY


def measure_nodes(probabilities: NDArray[np.floating], labels: Int64) -> Measures:
    """Measures probabilities (P, c) of nodes with known labels (P,).

    Both measures are 0 without a node, and with a probability that is no number.
    """
    classes = probabilities.shape[1]
    primary = choose_primary(classes)
    if not len(labels) or not np.isfinite(probabilities).all():
        return Measures(dict.fromkeys(NODE_LABELS, 0.0), len(labels), primary)
    values = {AUC: area_under_curve(probabilities, labels), ACCURACY: accuracy(probabilities, labels)}
    return Measures(values, len(labels), primary)


def area_under_curve(probabilities: NDArray[np.floating], labels: Int64) -> float:
    """Computes the area under the ROC curve of class 1, or the mean over classes.

    More than two classes are each measured against the others.

    Classes that no node has, or that all have, are left out.
    """
    classes = probabilities.shape[1]
    chosen = (1,) if classes == 2 else range(classes)
    mixed = [column for column in chosen if 0 < np.sum(labels == column) < len(labels)]
    areas = [float(place_positives(probabilities[:, column], labels == column)[0].mean()) for column in mixed]
    return float(np.mean(areas)) if areas else CHANCE_AUC


@dataclass(frozen=True)
class NodeContributions:
    """Contributions of nodes to a measure.

    parts: groups of values, each of whose means is the measure: of one group for accuracy, of positives and of
    negatives for the area under the curve.
    """

    parts: tuple[Float64, ...]

    @property
    def mean(self) -> float:
        """Value of the measure: the mean of its first group."""
        return float(self.parts[0].mean())

    def standard_error(self) -> float:
        """Estimates the standard error of the measure; 1 if a group has one node."""
        if min(map(len, self.parts)) < 2:
            return 1.0
        return float(np.sqrt(sum(float(part.var(ddof=1)) / len(part) for part in self.parts)))

    def subtract(self, other: NodeContributions, scale: float = 1.0, other_scale: float = 1.0) -> NodeContributions:
        """Subtracts another model's contributions of the same nodes, node by node."""
        pairs = zip(self.parts, other.parts, strict=True)
        return NodeContributions(tuple(ours * scale - theirs * other_scale for ours, theirs in pairs))


def node_contributions(probabilities: NDArray[np.floating], labels: Int64) -> NodeContributions | None:
    """Splits the primary measure into contributions of nodes.

    None if it is undefined, as for nodes of one class.
    """
    if probabilities.shape[1] != 2:
        return NodeContributions(((probabilities.argmax(1) == labels).astype(np.float64),)) if len(labels) else None
    positive = labels == 1
    if not 0 < positive.sum() < len(labels):
        return None
    return NodeContributions(place_positives(probabilities[:, 1], positive))
