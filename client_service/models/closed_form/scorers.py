"""Training graph and spectrum -> the closed-form scorers of one silo, each made once for its choice and its use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy import sparse

from client_service.models.closed_form.ease import ItemWeights, UserWeights, ease, ease_of_pairs
from client_service.models.closed_form.full_spectrum import FullSpectrum, full_spectra, full_spectrum, quarter_spectrum
from client_service.models.closed_form.least_squares import LeastSquares, Weighting, least_squares
from shared.method.graph import degrees
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum


@dataclass(frozen=True)
class Frequency:
    """f of any basket: log(1 + d_i), d_i the number of the item's training edges."""

    row: Float32  # (N,)

    def encode(self, baskets: sparse.csr_array) -> Float32:
        """Nothing of the baskets (B, N) counts: (B, 0)."""
        return np.empty((baskets.shape[0], 0), dtype=np.float32)

    def decode(self, codes: Float32) -> Float32:
        """f of every item (B, N), each row the same."""
        return np.tile(self.row, (len(codes), 1))


def item_frequency(train: sparse.csr_array) -> Frequency:
    """The frequencies in a training graph (M, N)."""
    return Frequency(np.log1p(degrees(train)[1]).astype(np.float32))


MOST_PAIRS = 6000  # items up to which their pairs are counted once for all ridges of EASE: 144 MB


@dataclass
class ClosedFormScorers:
    """interactions (M, N) and their low spectrum. What was kept of a setting is not made again; all else is, because
    the inverse of each ridge of EASE may take hundreds of megabytes."""

    interactions: sparse.csr_array
    spectrum: Spectrum
    _filters: dict[float, FullSpectrum] = field(default_factory=dict)
    _squares: dict[Weighting, LeastSquares] = field(default_factory=dict)
    _ease: dict[float, ItemWeights | UserWeights] = field(default_factory=dict)

    @cached_property
    def quarter(self) -> Spectrum:
        """What every ridge of the filter needs."""
        return quarter_spectrum(self.interactions)

    @cached_property
    def pairs(self) -> Float32:
        """X^T X, (N, N): how many users have each pair of items."""
        binary = self.interactions.astype(np.float32)
        return sparse.csr_array(binary.T @ binary).toarray()

    def filters(self, ridges: Sequence[float]) -> list[FullSpectrum]:
        return full_spectra(self.interactions, self.quarter, ridges)

    def filter(self, ridge: float) -> FullSpectrum:
        return self._filters.get(ridge) or full_spectrum(self.interactions, self.quarter, ridge)

    def squares(self, weighting: Weighting) -> LeastSquares:
        return self._squares.get(weighting) or least_squares(self.interactions, self.spectrum, weighting)

    def ease(self, ridge: float) -> ItemWeights | UserWeights:
        if (kept := self._ease.get(ridge)) is not None:
            return kept
        users, items = self.interactions.shape
        if items <= min(users, MOST_PAIRS):
            return ItemWeights(ease_of_pairs(self.pairs, ridge))
        return ease(self.interactions, ridge)

    def frequency(self) -> Frequency:
        return item_frequency(self.interactions)

    def keep_filter(self, ridge: float, made: FullSpectrum) -> None:
        """Have it at hand for whoever asks for this ridge."""
        self._filters[ridge] = made

    def keep_squares(self, weighting: Weighting, made: LeastSquares) -> None:
        """Likewise."""
        self._squares[weighting] = made

    def keep_ease(self, ridge: float, made: ItemWeights | UserWeights) -> None:
        """Likewise."""
        self._ease[ridge] = made
