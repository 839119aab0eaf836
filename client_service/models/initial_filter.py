"""Closed-form low-pass filter at which training starts, from the spectrum and the degrees.

An untrained linear filter is hard to beat, so the model begins as one.
"""

# Paper: normal noise; here: the filter h on the spectrum, because from noise the filter is never reached again.

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from shared.method.graph import Float64, degree_power, degrees
from shared.method.spectrum import Spectrum

USER_EXPONENT = 0.25  # at a common start scores are those of D_u^-1/4 x, whatever the basis normalises by


@dataclass(frozen=True)
class Filter:
    """Linear graph filter by its cut-off, ridge and degree exponent.

    f_ui = d_u^a d_i^b <U_u sqrt(s h), V_i sqrt(s h)>, with h = s^2 / (s^2 + ridge) on the first `cutoff` components.
    ridge 0 is the ideal low-pass filter h = 1. With a = b = 1/2 and h = 1 this is r_u D_i^-1/2 V V^T D_i^1/2.
    """

    cutoff: int
    ridge: float
    exponent: float

    def response(self, singular: Float64) -> Float64:
        """Computes the response h of the components kept, each in (0, 1]."""
        squares = singular**2
        found: Float64 = squares / (squares + self.ridge)
        return found


@dataclass(frozen=True)
class CommonSpectrum(Spectrum):
    """A silo's rows of the lowest frequencies of all silos' graph.

    R = D_u^-a X D_i^-b / s_1, with exponents (a, b). A column means the same in every silo. items (N, Phi): rows of V,
    zero for an item that is not listed; users (M, Phi): R V / s. Neither has orthonormal columns, but all silos' rows
    together have. item_degrees (N,) are those of all silos; catalogue: number of items; largest: s_1.
    """

    item_degrees: Float64
    exponents: tuple[float, float]
    catalogue: int
    largest: float


@dataclass(frozen=True)
class Start:
    """Start embeddings and degree scales of one shard.

    users (M, q), items (N, q), and degree scales d^exponent (M,), (N,). There is a column for each component that the
    filter keeps. Each scale has its own exponent. size: factor that makes the entries of order one. foreign: P^T Z(0) /
    size of the other silos' nodes as they begin, (Phi, q), where the frequencies are those of all silos.
    """

    users: Float64
    items: Float64
    user_scale: Float64
    item_scale: Float64
    exponents: tuple[float, float]
    size: float
    foreign: Float64 | None = None


def build_start(chosen: Filter, spectrum: Spectrum, interactions: sparse.csr_array) -> Start:
    """Builds the start embeddings Z(0) of a filter.

    Z(0) = [U; V] diag(sqrt(s h)): it lies in the range of P, so that every convolution leaves it as it is.
    """
    kept = spectrum.cut(chosen.cutoff)
    amplitude = np.sqrt(kept.singular * chosen.response(kept.singular))
    by_user, by_item = node_degrees(spectrum, interactions)
    of_users, of_items = exponents = _scale_exponents(chosen, spectrum)
    users, items = kept.users * amplitude, kept.items * amplitude
    foreign = _foreign_projection(spectrum, users, items, amplitude) if isinstance(spectrum, CommonSpectrum) else None
    return Start(
        users,
        items,
        degree_power(by_user, of_users),
        degree_power(by_item, of_items),
        exponents,
        _size(spectrum),
        foreign,
    )


def node_degrees(spectrum: Spectrum, interactions: sparse.csr_array) -> tuple[Float64, Float64]:
    """Returns the degrees of users and of items in the spectrum's graph."""
    by_user, by_item = degrees(interactions)
    return by_user, spectrum.item_degrees if isinstance(spectrum, CommonSpectrum) else by_item


def normalising_exponents(spectrum: Spectrum) -> tuple[float, float]:
    """Returns the exponents of the degrees of users and of items in R."""
    return spectrum.exponents if isinstance(spectrum, CommonSpectrum) else (0.5, 0.5)


def edge_weight(spectrum: Spectrum) -> float:
    """Returns the weight of an edge in R beside the degrees of its ends."""
    return 1.0 / spectrum.largest if isinstance(spectrum, CommonSpectrum) else 1.0


def _scale_exponents(chosen: Filter, spectrum: Spectrum) -> tuple[float, float]:
    if isinstance(spectrum, CommonSpectrum):
        return spectrum.exponents[0] - USER_EXPONENT, chosen.exponent
    return chosen.exponent, chosen.exponent


def _size(spectrum: Spectrum) -> float:
    """Returns the factor that makes the embeddings' entries of order one.

    For the frequencies of all silos it is the same everywhere: an item begins with one vector in all silos that have
    it.
    """
    if isinstance(spectrum, CommonSpectrum):
        return float(np.sqrt(spectrum.catalogue))
    return float(np.sqrt((len(spectrum.users) + len(spectrum.items)) / 2.0))


def _foreign_projection(spectrum: CommonSpectrum, users: Float64, items: Float64, amplitude: Float64) -> Float64:
    """Computes P^T Z(0) of the other silos' nodes, (Phi, q).

    For all silos it is sqrt(2) diag(amplitude), since their P^T P = I; the part of this silo's nodes is subtracted.
    """
    of_all = np.sqrt(2.0) * np.eye(len(spectrum.singular), len(amplitude)) * amplitude
    found: Float64 = of_all - spectrum.basis.T @ np.concatenate([users, items])
    return found
