"""v, the estimate of the second moment of the clients' changes, and how a round moves it. Pure; any shape.

v: estimate before the round, >= 0. q: the round's squared magnitude, >= 0: D^2, or D'^2 with divergence-resistant
aggregation. beta2: b2, from 0 to below 1. Every rule keeps v >= 0 and leaves v as it is where q = 0, except for Adam's.

Reddi et al.: Adaptive Federated Optimization. ICLR 2021. arXiv 2003.00295 (Algorithm 2: Adagrad, Adam, Yogi).
Lou et al.: Efficient federated graph aggregation. Scientific Reports 15, 23394 (2025): C-SME.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shared.method.graph import Float64

SecondMoment = Callable[[Float64, Float64, float], Float64]
"""(v, q, b2) -> v after the round."""


def adagrad(v: Float64, q: Float64, beta2: float) -> Float64:
    """v + q: the sum of all rounds."""
    del beta2
    return v + q


def adam(v: Float64, q: Float64, beta2: float) -> Float64:
    """b2 v + (1 - b2) q."""
    return beta2 * v + (1.0 - beta2) * q


def yogi(v: Float64, q: Float64, beta2: float) -> Float64:
    """v - (1 - b2) q sign(v - q)."""
    moved: Float64 = v - (1.0 - beta2) * q * np.sign(v - q)
    return moved


# Paper: formula (3) of C-SME is missing in the text at hand, which tells its cases in words; here: two readings of it,
# because each contradicts another sentence. Compared as v <= q, not as v / q <= 1, so that q = 0 needs no case.
def clip(v: Float64, q: Float64, beta2: float) -> Float64:
    """v + (1 - b2) max(q - v, -q): Adam's as long as v <= 2 q, Yogi's beyond. It decays on all of q < v <= 2 q."""
    moved: Float64 = v + (1.0 - beta2) * np.maximum(q - v, -q)
    return moved


def ramp(v: Float64, q: Float64, beta2: float) -> Float64:
    """v - (1 - b2) q f, f = -1 where v <= q, 2 v / q - 3 where v <= 2 q, +1 beyond: Yogi's without its jump."""
    between = np.where(v <= 2.0 * q, 2.0 * v - 3.0 * q, q)
    moved: Float64 = v - (1.0 - beta2) * np.where(v <= q, -q, between)
    return moved
