"""Training graph and spectrum -> the closed-form scorers of one silo, each made once for its choice and its use."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from scipy import sparse

from client_service.models.ease import ItemWeights, UserWeights, ease
from client_service.models.frequent import Frequency, item_frequency
from client_service.models.full_spectrum import FullSpectrum, full_spectrum, quarter_spectrum
from client_service.models.least_squares import LeastSquares, Weighting, least_squares
from shared.method.spectrum import Spectrum


@dataclass
class OwnScorers:
    """interactions (M, N) and their low spectrum. What was kept of a setting is not made again; all else is, because
    the inverse of each ridge of EASE may take hundreds of megabytes."""

    interactions: sparse.csr_array
    spectrum: Spectrum
    _squares: dict[Weighting, LeastSquares] = field(default_factory=dict)
    _ease: dict[float, ItemWeights | UserWeights] = field(default_factory=dict)

    @cached_property
    def quarter(self) -> Spectrum:
        """What every ridge of the filter needs."""
        return quarter_spectrum(self.interactions)

    def filter(self, ridge: float) -> FullSpectrum:
        return full_spectrum(self.interactions, self.quarter, ridge)

    def squares(self, weighting: Weighting) -> LeastSquares:
        return self._squares.get(weighting) or least_squares(self.interactions, self.spectrum, weighting)

    def ease(self, ridge: float) -> ItemWeights | UserWeights:
        return self._ease.get(ridge) or ease(self.interactions, ridge)

    def frequency(self) -> Frequency:
        return item_frequency(self.interactions)

    def keep_squares(self, weighting: Weighting, made: LeastSquares) -> None:
        """Have it at hand for whoever asks for this weighting."""
        self._squares[weighting] = made

    def keep_ease(self, ridge: float, made: ItemWeights | UserWeights) -> None:
        """Likewise."""
        self._ease[ridge] = made
