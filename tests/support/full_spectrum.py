"""The full-spectrum filter of one ridge."""

from __future__ import annotations

from scipy import sparse

from client_service.models.closed_form import full_spectrum
from client_service.models.closed_form.full_spectrum import FullSpectrum
from shared.method.spectrum import Spectrum, low_spectrum


def quarter_spectrum(interactions: sparse.csr_array) -> Spectrum:
    """The lowest frequencies of the quarter-normalised graph: what every ridge of the filter needs."""
    return low_spectrum(interactions, full_spectrum.COMPONENTS, full_spectrum.EXPONENT)


def filter_of_ridge(interactions: sparse.csr_array, spectrum: Spectrum, ridge: float) -> FullSpectrum:
    """The filter of a training graph (M, N) with its quarter spectrum, float32."""
    return full_spectrum.full_spectra(interactions, spectrum, (ridge,))[0]
