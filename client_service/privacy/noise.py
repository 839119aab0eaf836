"""A silo's secret -> Gaussian and Laplace noise in whole steps of a grid, which nobody without the secret can know.

A key of HMAC-SHA256 over all that the draw belongs to seeds a ChaCha20 stream, as in HKDF with one block. The same draw
comes out the same again; without the secret it cannot be told from randomness, whoever knows the run or the shard.

Two uniform words make one draw by the inverse of the distribution function. The words are taken as a floating-point
number with its own leading zeros, so that the tails are as fine as the middle: no value of the grid is left out within
8 deviations, or 36 scales. Values and noise are added as whole steps, which hides the least bits that give away sums of
floating-point numbers (Mironov 2012, On significance of the least significant bits for differential privacy). What is
not in the account: a draw lies up to 2^-53 of itself off, and with probability 2^-53 it is cut off at the tail's end.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from client_service.privacy.settings import Mechanism
from shared.method.graph import Float64
from shared.protocol.secure.masks import MaskStream, add_masks

STEP_BITS = 20  # there are 2^20 to 2^21 steps of the grid in one scale of the noise
MANTISSA = 53  # bits of a float64

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Noise:
    """Draws of one occasion. `secret`: 32 bytes; `occasion`: what is public about it, as one text."""

    secret: bytes
    occasion: str

    def draws(self, purpose: str, content: Float64, mechanism: Mechanism) -> Float64:
        """As many draws of deviation 1 (gaussian) or scale 1 (laplace) as `content` has values.

        `content` is what they are to hide: with other content they are others, so that no two sums share their noise.
        """
        words = add_masks(
            np.zeros(2 * content.size, dtype=np.uint64), [MaskStream(self._key(purpose, content), 1)], piece=0
        )
        return draw_noise(words.reshape(2, -1), mechanism)

    def _key(self, purpose: str, content: Float64) -> bytes:
        digest = hashlib.sha256(np.ascontiguousarray(content, dtype="<f8").data).hexdigest()
        text = json.dumps(["lpsfed-noise/1", purpose, self.occasion, digest])
        return hmac.digest(self.secret, text.encode(), "sha256")


def grid(scale: float) -> float:
    """The step: a power of two, so that multiplying by it and dividing by it are exact."""
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - STEP_BITS)


def draw_noise(words: Words, mechanism: Mechanism) -> Float64:
    """Uniform words (2, n) -> n draws of deviation 1 (gaussian) or scale 1 (laplace)."""
    leading, rest = words
    zeros = MANTISSA - np.frexp((leading >> np.uint64(64 - MANTISSA)).astype(np.float64))[1]
    mantissa = 0.5 + np.ldexp((rest >> np.uint64(64 - MANTISSA)).astype(np.float64) + 0.5, -MANTISSA - 1)
    uniform = np.ldexp(mantissa, -zeros)  # in (0, 1)
    size = -ndtri(uniform / 2.0) if mechanism == "gaussian" else -np.log(uniform)
    signed: Float64 = np.where(rest & np.uint64(1), size, -size)
    return signed


def add_noise(
    content: Float64, radius: float, multiplier: float, purpose: str, mechanism: Mechanism, noise: Noise
) -> Float64:
    """`content`, of norm `radius` at most, plus noise of scale multiplier * 2 radius, in whole steps of the grid.

    Values are cut off toward zero, so that their norm does not grow.
    """
    scale = multiplier * 2.0 * radius
    step = grid(scale)
    whole: Float64 = np.trunc(content / step) + 0.0  # else a zero would keep the sign of what was cut off
    return step * (whole + np.rint(noise.draws(purpose, whole, mechanism) * (scale / step)))
