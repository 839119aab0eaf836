"""Clips and noises an update by Gaussian or Laplace noise on a grid.

The noise is drawn from the silo's secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from client_service.privacy.accounting import Charge
from client_service.privacy.settings import TENSORS, Mechanism, PrivacySettings
from shared.errors import PrivacyError
from shared.method.graph import Float64
from shared.method.parameters import Arrays, Float32, Parameters
from shared.protocol.secure.vectors import MaskStream, add_masks

STEP_BITS = 20  # there are 2^20 to 2^21 steps of the grid in one scale of the noise
MANTISSA = 53  # bits of a float64

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Noise:
    """Noise source of one occasion.

    `secret`: 32 bytes. `occasion`: the public data of the occasion, as one text.
    """

    secret: bytes
    occasion: str

    def draws(self, purpose: str, content: Float64, mechanism: Mechanism) -> Float64:
        """Draws noise of deviation 1 (gaussian) or scale 1 (laplace) for each value.

        The noise depends on `content`, which it hides: other content has other noise, so that no two sums share it.
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
    """Computes the step of the grid, a power of two.

    So multiplying and dividing by it are exact.
    """
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - STEP_BITS)


def _normal_quantiles(probabilities: Float64) -> Float64:
    from scipy.special import ndtri  # most silos draw no noise

    quantiles: Float64 = ndtri(probabilities)
    return quantiles


def draw_noise(words: Words, mechanism: Mechanism) -> Float64:
    """Converts uniform words (2, n) to n draws of noise.

    Deviation 1 (gaussian) or scale 1 (laplace).
    """
    leading, rest = words
    zeros = MANTISSA - np.frexp((leading >> np.uint64(64 - MANTISSA)).astype(np.float64))[1]
    mantissa = 0.5 + np.ldexp((rest >> np.uint64(64 - MANTISSA)).astype(np.float64) + 0.5, -MANTISSA - 1)
    uniform = np.ldexp(mantissa, -zeros)  # in (0, 1)
    size = -_normal_quantiles(uniform / 2.0) if mechanism == "gaussian" else -np.log(uniform)
    signed: Float64 = np.where(rest & np.uint64(1), size, -size)
    return signed


def add_noise(
    content: Float64, radius: float, multiplier: float, purpose: str, mechanism: Mechanism, noise: Noise
) -> Float64:
    """Adds noise of scale multiplier * 2 radius to content of norm at most `radius`.

    The result is in whole steps of the grid. Values are truncated toward zero, so that their norm does not grow.
    """
    scale = multiplier * 2.0 * radius
    step = grid(scale)
    whole: Float64 = np.trunc(content / step) + 0.0  # else a zero would keep the sign of what was cut off
    return step * (whole + np.rint(noise.draws(purpose, whole, mechanism) * (scale / step)))


SHORTER = 1.0 - 2.0**-40  # what is clipped ends below its norm, however its sum was rounded


@dataclass(frozen=True)
class Release:
    """Noised update that may leave, and the charge of each newly drawn part, by name."""

    parameters: Parameters
    charges: Mapping[str, Charge] = field(default_factory=dict)


def privatise(
    received: Arrays,
    update: Parameters,
    declared: Sequence[str],
    settings: PrivacySettings,
    noise: Noise,
    kept: Mapping[str, float] | None = None,
) -> Release:
    """Clips and noises the change of all tensors together, and each declared scalar.

    Tensors: received + clip(update - received) + noise.

    declared: scalars that always leave; one that the update lacks counts as the least of its range, because its
    absence would tell something. kept: scalars that were drawn before; they leave unchanged, and cost nothing.
    """
    known = kept or {}
    arrays, charge = released_tensors(received, update.arrays, settings, noise)
    scalars = {name: known[name] if name in known else _scalar(name, update, settings, noise) for name in declared}
    drawn = {name: Charge(*settings.noise(name)) for name in declared if name not in known}
    return Release(Parameters(arrays, scalars), {TENSORS: charge, **drawn})


def released_tensors(
    received: Arrays, arrays: Arrays, settings: PrivacySettings, noise: Noise
) -> tuple[dict[str, Float32], Charge]:
    """Clips and noises all tensors as one vector, in the order of their names."""
    names = sorted(arrays)
    if missing := [name for name in names if name not in received]:
        raise PrivacyError(f"expected to have received every tensor that is sent, got none of {missing}")
    mechanism, multiplier = settings.noise(TENSORS)
    _, norm = settings.ball(TENSORS)
    before = [np.asarray(received[name], dtype=np.float64) for name in names]
    change = np.concatenate([(arrays[name] - old).ravel() for name, old in zip(names, before, strict=True)])
    moved = add_noise(clip_change(change, norm, mechanism), norm, multiplier, TENSORS, mechanism, noise)
    parts = np.split(moved, np.cumsum([old.size for old in before])[:-1])
    found = {
        n: (old + part.reshape(old.shape)).astype(np.float32) for n, old, part in zip(names, before, parts, strict=True)
    }
    return found, Charge(mechanism, multiplier)


def clip_change(change: Float64, norm: float, mechanism: Mechanism) -> Float64:
    """Scales `change` by min(1, C / norm): L2 norm for Gaussian noise, L1 for Laplace.

    A change that is not finite counts as zero: the result must be bounded for every shard.
    """
    own = float(np.linalg.norm(change) if mechanism == "gaussian" else np.abs(change).sum())
    if not np.isfinite(own):
        return np.zeros_like(change)
    return change * min(1.0, SHORTER * norm / own) if own > 0.0 else change


def _scalar(name: str, update: Parameters, settings: PrivacySettings, noise: Noise) -> float:
    """Clips a scalar into its range, adds noise, and clips the result.

    The last step sees the noised value alone.
    """
    least, most = settings.limits(name)
    centre, radius = settings.ball(name)
    mechanism, multiplier = settings.noise(name)
    value = update.scalars.get(name, least)
    within = np.array([min(max(value, least), most) - centre if np.isfinite(value) else -radius])
    found = add_noise(np.clip(within, -radius, radius), radius, multiplier, name, mechanism, noise)
    return min(max(float(found[0]) + centre, least), most)
