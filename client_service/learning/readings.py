"""The readings of Eq. 8: what the popularity tables say of a pair, and how far that may widen the pair's angle."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from client_service.learning.losses import margin, refined_margin, refined_tapered_margin, tapered_margin
from client_service.models.popularity import PopularityTables
from shared.method.margin_readings import MarginReading


@dataclass(frozen=True)
class Reading:
    """widening: what gamma multiplies, of every pair of buckets. local: M_ui of (that, f, gamma). refined: Eq. 15 of
    (M_updated, M_ui, f, omega). whole_below_pi: is M_ui gamma times the widening wherever that is below pi - R?"""

    widening: Callable[[PopularityTables], Tensor]
    local: Callable[[Tensor, Tensor, float], Tensor] = margin
    refined: Callable[[float | None, Tensor, Tensor, float], Tensor] = refined_margin
    whole_below_pi: bool = True


def scaled_angles(tables: PopularityTables) -> Tensor:
    """xi / pi of every pair of buckets, in [0, 1]."""
    # Paper: xi, in [0, pi]; here: in [0, 1 rad], the range of the margins that BC-Loss trains with, because R of a pair
    # that nothing is known of is pi / 2, and a trained xi lies about pi / 2 too: their sum leaves no gradient.
    return tables.angles() / math.pi


def dissimilarities(tables: PopularityTables) -> Tensor:
    """1 - sigmoid(u . v) of every pair of buckets, in [0, 1]: the margin in the code that BC-Loss released."""
    # Paper: xi, the angle between u and v; here: BC-Loss's own code, anzhang314/BC-Loss, which says 1 - sigmoid(u . v)
    # where its text, that Eq. 8 follows, has the angle.
    return 1.0 - tables.products().sigmoid()


READINGS: dict[MarginReading, Reading] = {
    "literal": Reading(PopularityTables.angles),
    "scaled": Reading(scaled_angles),
    "sigmoid": Reading(dissimilarities),
    "tapered": Reading(PopularityTables.angles, tapered_margin, refined_tapered_margin, whole_below_pi=False),
}
