"""A drawn graph -> both sides of Lemma 1 and of Theorem 4.2, the left ones exactly, for the worst signal there is.

r is 1 throughout: both sides of Theorem 4.2 scale with r^2.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg, sparse

from benchmarks.theorems.blocks import community_eigengap, community_indicators
from shared.method.graph import Float64, normalise
from shared.method.spectrum import low_spectrum


def both_sides(graph: sparse.csr_array, communities: int) -> dict[str, float]:
    """Figures of one graph. lemma: largest |P_k P_k^T x - chi chi^T x| over |x| = 1, beside its bound.

    smoothness: largest |Var(z) - Var(z*)| over |x| <= 1 with Var(z) = z^T L z, beside its bound, beside what the
    proof's last step drops (Eq. 82), and beside 2, which holds for any two vectors no longer than 1.
    """
    spectrum = low_spectrum(graph, communities + 1)
    gap = community_eigengap(spectrum.eigenvalues, communities)
    own = spectrum.cut(communities)
    chi = community_indicators(graph.shape[0], communities)
    root = np.sqrt(communities)
    return {
        "gap": gap,
        "lemma": _norm_of_difference(own.basis, np.eye(len(own.singular)), chi, np.eye(communities)),
        "lemma_bound": 8.0 * root / gap,
        "left": _norm_of_difference(own.basis, np.diag(own.eigenvalues), chi, chi.T @ _laplacian_times(graph, chi)),
        "bound": 32.0 * root / gap,
        "dropped": 128.0 * communities / gap**2,
        "trivial": 2.0,
        "lambda_k": float(own.eigenvalues[-1]),
    }


def _norm_of_difference(first: Float64, inner: Float64, second: Float64, other: Float64) -> float:
    """Spectral norm of A X A^T - B Y B^T for orthonormal A and B, computed in the space that both span together."""
    base, _ = linalg.qr(np.concatenate([first, second], axis=1), mode="economic")
    left, right = base.T @ first, base.T @ second
    return float(np.abs(linalg.eigvalsh(left @ inner @ left.T - right @ other @ right.T)).max())


def _laplacian_times(graph: sparse.csr_array, columns: Float64) -> Float64:
    """L X for X (M + N, k), with L = I - D^-1/2 A D^-1/2."""
    half, users = normalise(graph), graph.shape[0]
    mixed = np.concatenate([half @ columns[users:], half.T @ columns[:users]])
    product: Float64 = columns - mixed
    return product
