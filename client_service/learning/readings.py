"""The readings of Eq. 8: what the popularity tables say of a pair, and where the margin is put."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from client_service.models.popularity import PopularityTables
from shared.method.margin_readings import MarginReading


@dataclass(frozen=True)
class Reading:
    """widening: what gamma multiplies, of every pair of buckets. off_the_cosine: cos R - M in place of cos(R + M)?"""

    widening: Callable[[PopularityTables], Tensor]
    off_the_cosine: bool = False


def scaled_angles(tables: PopularityTables) -> Tensor:
    """xi / pi of every pair of buckets, in [0, 1]."""
    # Paper: xi, in [0, pi]; here: in [0, 1 rad], the range of the margins that BC-Loss's code trains with, because a
    # trained xi lies about pi / 2, and so does R of a pair that nothing is known of: their sum is the end, pi.
    return tables.angles() / math.pi


def dissimilarities(tables: PopularityTables) -> Tensor:
    """1 - sigmoid(u . v) of every pair of buckets, in [0, 1]: the margin in the code that BC-Loss released."""
    # Paper: xi, the angle between u and v, after BC-Loss's text; here: its code (anzhang314/BC-Loss), without angle.
    return 1.0 - tables.products().sigmoid()


READINGS: dict[MarginReading, Reading] = {
    "literal": Reading(PopularityTables.angles),
    "scaled": Reading(scaled_angles),
    "sigmoid": Reading(dissimilarities),
    "additive": Reading(PopularityTables.angles, off_the_cosine=True),
}
