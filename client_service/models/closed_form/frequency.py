"""Popularity scorer: the log frequency of each item, the same for every user."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from client_service.models.closed_form.scorer_part import ScorerPart
from shared.method.graph import degrees
from shared.method.parameters import Float32


@dataclass(frozen=True)
class Frequency:
    """Popularity scorer: log(1 + d_i) for every basket.

    d_i: the number of the item's training edges.
    """

    row: Float32  # (N,)

    def encode(self, baskets: sparse.csr_array) -> Float32:
        """Returns empty codes, (B, 0): the baskets do not count."""
        return np.empty((baskets.shape[0], 0), dtype=np.float32)

    def decode(self, codes: Float32) -> Float32:
        """Returns the scores of all items (B, N), each row the same."""
        return np.tile(self.row, (len(codes), 1))


def item_frequency(train: sparse.csr_array) -> Frequency:
    """Builds the popularity scorer of a training graph."""
    return Frequency(np.log1p(degrees(train)[1]).astype(np.float32))


ONLY_SETTING = 0.0  # the only setting: this scorer has none to choose
FREQUENCY = ScorerPart(
    "frequency", 0.25, lambda _: (ONLY_SETTING,), ONLY_SETTING, lambda graph, _: item_frequency(graph.interactions)
)
