"""Calibrates scores of nodes: probabilities by a temperature, and for two classes by Platt's line.

Platt. Probabilistic Outputs for Support Vector Machines. 1999; Guo, Pleiss, Sun, Weinberger. On Calibration of Modern
Neural Networks. ICML 2017. Both are a softmax of scale times scores plus offsets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.method.graph import Float64
from shared.method.parameters import Float32

Int64 = NDArray[np.int64]
USUAL_SCALE = 5.0  # of the scores of a ridge on ones and zeros, without validation nodes
USUAL_NODES = 5.0  # weight of the usual scale, in validation nodes
BINS = 10


@dataclass(frozen=True)
class Calibration:
    """Calibration of node scores: softmax(scale scores + offsets).

    offsets: (c,); none are zeros.
    """

    scale: float
    offsets: tuple[float, ...] = ()

    def probabilities(self, scores: Float32 | Float64) -> Float32:
        """Computes probabilities (m, c) of scores (m, c)."""
        return _softmax(scores.astype(np.float64), self.scale, np.array(self.offsets or (0.0,))).astype(np.float32)


UNCALIBRATED = Calibration(USUAL_SCALE)


def calibrate(scores: Float32, labels: Int64) -> Calibration:
    """Fits a scale, and for two classes offsets, to the known labels of nodes.

    scores: (m, c). labels: (m,). With few nodes the scale stays near its usual value.
    """
    # Paper: Platt's targets are moved from 0 and 1; here: the scale is drawn to its usual value, because that also
    # keeps probabilities of few nodes from 0 and 1.
    if not len(labels):
        return UNCALIBRATED
    from scipy.optimize import minimize  # a twentieth of a trainer's start

    wide, classes = scores.astype(np.float64), scores.shape[1]

    def loss(values: Float64) -> float:
        offsets = np.array([0.0, values[1]]) if classes == 2 else np.zeros(1)
        chances = _softmax(wide, float(np.exp(values[0])), offsets)[np.arange(len(labels)), labels]
        drawn = (values[0] - np.log(USUAL_SCALE)) ** 2 + (0.04 * values[1] ** 2 if classes == 2 else 0.0)
        return float(-np.log(np.maximum(chances, 1e-12)).sum() + USUAL_NODES * drawn / 2)

    start = np.array([np.log(USUAL_SCALE), 0.0][: 2 if classes == 2 else 1])
    found = minimize(loss, start, method="L-BFGS-B", bounds=[(-5.0, 8.0), (-60.0, 60.0)][: len(start)]).x
    return Calibration(float(np.exp(found[0])), (0.0, float(found[1])) if classes == 2 else ())


def _softmax(scores: Float64, scale: float, offsets: Float64) -> Float64:
    raised = scores * scale + offsets
    raised = np.exp(raised - raised.max(1, keepdims=True))
    found: Float64 = raised / raised.sum(1, keepdims=True)
    return found


@dataclass(frozen=True)
class Reliability:
    """Reliability of probabilities: how often nodes with about one probability are of the class.

    Values are of bins of the probability, and of bins with a node.

    error: the mean distance of both, each bin by its nodes.
    """

    predicted: tuple[float, ...]
    observed: tuple[float, ...]
    nodes: tuple[int, ...]

    @property
    def error(self) -> float:
        """Expected calibration error; nan without a node."""
        if not sum(self.nodes):
            return float("nan")
        distances = np.abs(np.array(self.predicted) - np.array(self.observed))
        return float((distances * np.array(self.nodes)).sum() / sum(self.nodes))


def measure_reliability(probabilities: Float32, labels: Int64, bins: int = BINS) -> Reliability:
    """Compares probabilities (m, c) with labels (m,) by bins.

    Of two classes the probability of class 1 is compared, else that of the likeliest class.
    """
    if probabilities.shape[1] == 2:
        chances, right = probabilities[:, 1].astype(np.float64), labels == 1
    else:
        chances, right = probabilities.max(1).astype(np.float64), probabilities.argmax(1) == labels
    place = np.minimum((chances * bins).astype(np.int64), bins - 1)
    counts = np.bincount(place, minlength=bins)
    used = counts > 0
    predicted = np.bincount(place, chances, bins)[used] / counts[used]
    observed = np.bincount(place, right.astype(np.float64), bins)[used] / counts[used]
    return Reliability(tuple(predicted.tolist()), tuple(observed.tolist()), tuple(counts[used].tolist()))
