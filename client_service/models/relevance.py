"""A model's own scores -> relevance between 0 and 1, in the same order."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.special import expit

from shared.method.graph import Float64
from shared.method.parameters import Float32


@dataclass(frozen=True)
class Relevance:
    """1 / (1 + exp(-(slope f + intercept))); slope is positive, so that no two items change places."""

    slope: float
    intercept: float

    def of(self, scores: Float32) -> Float64:
        """Of scores f of any shape."""
        found: Float64 = expit(scores.astype("float64") * self.slope + self.intercept)
        return found


UNFITTED = Relevance(1.0, 0.0)  # of a model that no validation item has judged
