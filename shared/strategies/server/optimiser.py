"""How far a round moves each number: the arithmetic of a server optimiser on plain arrays, in float64. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shared.method.graph import Float64
from shared.strategies.server.second_moments import SecondMoment


class Moments(NamedTuple):
    """m and v of some numbers, each of their shape; v is not used by momentum."""

    first: Float64
    second: Float64


@dataclass(frozen=True)
class ServerOptimiser:
    """rate: eta. beta1, beta2: b1, b2. tau: the least divisor; v begins at tau^2.

    second_moment: how v follows the round's squared magnitude; None: momentum, which has no v.
    resistant: that magnitude is D', the centre of the clients' |changes|; otherwise D, the centre's change.
    """

    rate: float
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    second_moment: SecondMoment | None = None
    resistant: bool = False

    def begin(self, size: int) -> Moments:
        """m = 0, v = tau^2."""
        return Moments(np.zeros(size), np.full(size, self.tau**2))

    def step(self, change: Float64, magnitude: Float64, moments: Moments) -> tuple[Float64, Moments]:
        """What is added to the numbers, and the moments after it. change: D. magnitude: |D| or D'.

        m = b1 m + (1 - b1) D, and eta m / (sqrt(v) + tau); momentum: m = b1 m + D, and eta m (Hsu, Qi, Brown 2019,
        arXiv 1909.06335). Numbers that nobody moved go on moving as long as their m lasts.
        """
        # Paper: how m follows the changes is not told; here: the signed D, because with D' every step would go up.
        # No correction of the moments' start: Algorithm 1 has none, as Algorithm 2 of Reddi et al. has none.
        if self.second_moment is None:
            first = self.beta1 * moments.first + change
            return self.rate * first, Moments(first, moments.second)
        first = self.beta1 * moments.first + (1.0 - self.beta1) * change
        second = self.second_moment(moments.second, np.square(magnitude), self.beta2)
        return self.rate * first / (np.sqrt(second) + self.tau), Moments(first, second)
