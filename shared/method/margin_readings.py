"""The readings of Eq. 8 that its sources allow, by name, and the greatest margin that each can give."""

from __future__ import annotations

import math
from typing import Literal

MarginReading = Literal["literal", "scaled", "sigmoid", "additive"]
"""literal: min(gamma xi, pi - R), as printed. scaled: the same with xi / pi. sigmoid: with BC-Loss's released
1 - sigmoid(u . v) in the place of xi. additive: as printed, but Eq. 9 has
cos R - M in the place of cos(R + M). `client_service.training.margins` has them."""

GREATEST_WIDENING: dict[MarginReading, float] = {
    "literal": math.pi,
    "scaled": 1.0,
    "sigmoid": 1.0,
    "additive": math.pi,
}
"""What gamma multiplies is at most this, in radians; the margin ends at pi - R, which may be as much as pi."""


def greatest_margin(reading: MarginReading, strength: float) -> float:
    """No margin of the reading, and so no mean of them (Eq. 10), is larger."""
    return min(strength * GREATEST_WIDENING[reading], math.pi)
