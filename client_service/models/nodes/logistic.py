"""Fits logistic regressions on the rows of a design, for a silo alone.

A ridge needs only Gram matrices of its rows, which add up over silos. The gradient of a logistic regression depends on
the current weights, so that silos would need a sum for each of its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shared.method.graph import Float64

STRENGTHS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # of the penalty, a node and a mean variance of the columns
STEPS = 200  # at most


def fit_logistic(rows: Float64, labels: NDArray[np.int64], classes: int) -> Iterator[tuple[float, Float64]]:
    """Yields each strength, strongest first, with weights (D, c) that sum to 0 over classes.

    rows: (m, D) of nodes whose labels (m,) are known; column 0 is a constant. Nothing is yielded without a node.
    """
    if not len(rows):
        return
    from scipy.optimize import minimize  # a twentieth of a trainer's start

    scale = len(rows) * float(rows[:, 1:].var(0).mean()) if rows.shape[1] > 1 else 0.0
    weights, least = np.zeros(rows.shape[1] * (classes - 1)), cast(Any, minimize)
    for strength in STRENGTHS:
        penalty = strength * (scale if scale > 0 else 1.0)
        options = {"maxiter": STEPS}
        given = (rows, labels, penalty)
        found = least(_loss, weights, args=given, jac=True, method="L-BFGS-B", options=options)
        weights = np.asarray(found.x, dtype=np.float64)
        by_class = np.concatenate([np.zeros((rows.shape[1], 1)), weights.reshape(rows.shape[1], -1)], axis=1)
        yield strength, by_class - by_class.mean(1, keepdims=True)


def _loss(weights: Float64, rows: Float64, labels: NDArray[np.int64], penalty: float) -> tuple[float, Float64]:
    """Computes the cross entropy with the penalty, and its gradient.

    The first class has the score 0.
    """
    by_class = weights.reshape(rows.shape[1], -1)
    scores = np.concatenate([np.zeros((len(rows), 1)), rows @ by_class], axis=1)
    chances = np.exp(scores - scores.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    own = chances[np.arange(len(labels)), labels]
    loss = -np.log(np.maximum(own, 1e-300)).sum() + penalty / 2 * float((by_class[1:] ** 2).sum())
    chances[np.arange(len(labels)), labels] -= 1.0
    gradient = rows.T @ chances[:, 1:]
    gradient[1:] += penalty * by_class[1:]
    return float(loss), gradient.ravel()


def logistic_forms(forms: Sequence[str]) -> list[str]:
    """Lists the forms that are tried: the widest linear one, and that with random features."""
    return [*[form for form in forms if form != "random"][-1:], *(form for form in forms if form == "random")]
