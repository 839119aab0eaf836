"""Distance of two spectra: kernels K and divergence rho (Eq. 6, 11, 16)."""

from __future__ import annotations

import math

import numpy as np

from shared.method.graph import Float64

ZERO = 1e-9  # an eigenvalue below this is a zero of the Laplacian (one a connected component), up to rounding
SIGNIFICANT_BITS = 10  # binary digits of a rho that leaves a client: an error of at most .05 %
LEAST_LENGTH = 8  # least number of non-zero eigenvalues for a meaningful comparison


def kernel(eigenvalues: Float64) -> Float64:
    """Computes K (Eq. 16): non-zero eigenvalues, ascending, over their sum, (<= Phi,)."""
    # Paper: all of the first Phi eigenvalues; here: without the zeros, because each would add an arbitrary amount, set
    # by whatever replaces log 0, that swamps the rest.
    positive = np.sort(eigenvalues[eigenvalues > ZERO])
    return positive / positive.sum() if len(positive) else positive


def align_kernels(anchor: Float64, own: Float64) -> tuple[Float64, Float64]:
    """Cuts both kernels to the shorter's length, and scales each to sum to 1.

    Shapes (n,), (n,).
    """
    length = min(len(anchor), len(own))
    return anchor[:length] / anchor[:length].sum(), own[:length] / own[:length].sum()


def divergence(anchor: Float64, own: Float64) -> float | None:
    """Computes rho = KL(K^R || K^c) (Eq. 11) in nats.

    It is >= 0; None if fewer than 8 values can be compared.
    """
    reference, local = align_kernels(anchor, own)
    if len(reference) < LEAST_LENGTH:
        return None
    return max(0.0, float(np.sum(reference * np.log(reference / local))))


def round_divergence(rho: float) -> float:
    """Rounds rho to SIGNIFICANT_BITS binary digits, as it leaves a client."""
    # Paper: rho as it is computed; here: rounded, because each exact rho is one linear equation of the spectrum's
    # logarithms to 53 binary digits: with as many anchors as eigenvalues all of them could be solved for.
    mantissa, exponent = math.frexp(rho)
    return math.ldexp(round(mantissa * 2**SIGNIFICANT_BITS), exponent - SIGNIFICANT_BITS)


def greatest_divergence(cutoff: int, largest: float = 1.0) -> float:
    """Computes the largest rho possible: ln(Phi largest / ZERO).

    No eigenvalue is above `largest`; 25.6 nats at Phi = 128. sum p ln(p / q) <= max ln(1 / q), since sum p ln p <= 0;
    and q, one of n <= Phi eigenvalues over their sum, is more than ZERO / (n largest), since each is above ZERO and
    none above `largest`. The low half of a bipartite graph's normalised Laplacian, 1 - s, is never above 1.
    """
    return math.log(cutoff * largest / ZERO)
