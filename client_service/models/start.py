"""Spectrum and degrees -> the closed-form low-pass filter at which training starts.

A linear filter that nobody trained is hard to beat, so the model begins as one.
"""

# Paper: normal noise; here: the filter h on the spectrum, because from noise the filter is never reached again.

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from shared.method.graph import Float64, degrees, power
from shared.method.spectrum import Spectrum


@dataclass(frozen=True)
class Filter:
    """f_ui = d_u^a d_i^b <U_u sqrt(s h), V_i sqrt(s h)>, with h = s^2 / (s^2 + ridge) on the first `cutoff` components.

    ridge 0 is the ideal low-pass filter h = 1. With a = b = 1/2 and h = 1 this is r_u D_i^-1/2 V V^T D_i^1/2.
    """

    cutoff: int
    ridge: float
    exponent: float

    def response(self, singular: Float64) -> Float64:
        """h of the components kept, each in (0, 1]."""
        squares = singular**2
        found: Float64 = squares / (squares + self.ridge)
        return found


@dataclass(frozen=True)
class Start:
    """The filter of one shard: users (M, q), items (N, q), degree scales d^exponent (M,), (N,).

    There is a column for each component that the filter keeps.
    """

    users: Float64
    items: Float64
    user_scale: Float64
    item_scale: Float64
    exponent: float


def start_at(chosen: Filter, spectrum: Spectrum, interactions: sparse.csr_array) -> Start:
    """Z(0) = [U; V] diag(sqrt(s h)): it lies in the range of P, so that every convolution leaves it as it is."""
    kept = spectrum.cut(chosen.cutoff)
    amplitude = np.sqrt(kept.singular * chosen.response(kept.singular))
    by_user, by_item = degrees(interactions)
    return Start(
        kept.users * amplitude,
        kept.items * amplitude,
        power(by_user, chosen.exponent),
        power(by_item, chosen.exponent),
        chosen.exponent,
    )
