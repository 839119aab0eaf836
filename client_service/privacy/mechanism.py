"""An update and what was received -> what may leave of it: clipped, noised, and what that costs. No disk, no HTTP.

Abadi et al. 2016 (arXiv 1607.00133) clip and noise sums of gradients; McMahan et al. 2018 (arXiv 1710.06963) whole
clients' changes at the aggregator. Here the client does it by itself, before anything leaves: nobody is trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from client_service.privacy.accountant import Charge
from client_service.privacy.noise import Noise, add_noise
from client_service.privacy.settings import TENSORS, Mechanism, PrivacySettings
from shared.errors import PrivacyError
from shared.method.exchanged import Parameters
from shared.method.graph import Float64
from shared.method.parameters import Arrays, Float32

SHORTER = 1.0 - 2.0**-40  # what is clipped ends below its norm, however its sum was rounded


@dataclass(frozen=True)
class Release:
    """What may leave, and the charge of each part that was drawn for it, by the part's name."""

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
    """received + clip(update - received) + noise for all tensors together; each declared scalar, clipped and noised.

    declared: the scalars that always leave; one that the update lacks counts as the least of its range, because that it
    is missing would tell something too. kept: scalars that were drawn before: they leave as they are, and cost nothing.
    """
    known = kept or {}
    arrays, charge = released_tensors(received, update.arrays, settings, noise)
    scalars = {name: known[name] if name in known else _scalar(name, update, settings, noise) for name in declared}
    drawn = {name: Charge(*settings.noise(name)) for name in declared if name not in known}
    return Release(Parameters(arrays, scalars), {TENSORS: charge, **drawn})


def released_tensors(
    received: Arrays, arrays: Arrays, settings: PrivacySettings, noise: Noise
) -> tuple[dict[str, Float32], Charge]:
    """All tensors as one vector, in the order of their names."""
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
    """`change` times min(1, C / its norm): L2 for Gaussian noise, L1 for Laplace.

    One that is not finite counts as none: this must be bounded for every shard.
    """
    own = float(np.linalg.norm(change) if mechanism == "gaussian" else np.abs(change).sum())
    if not np.isfinite(own):
        return np.zeros_like(change)
    return change * min(1.0, SHORTER * norm / own) if own > 0.0 else change


def _scalar(name: str, update: Parameters, settings: PrivacySettings, noise: Noise) -> float:
    """Clipped into its range, noised, and put back into the range: that last step looks at the sum alone."""
    least, most = settings.limits(name)
    centre, radius = settings.ball(name)
    mechanism, multiplier = settings.noise(name)
    value = update.scalars.get(name, least)
    within = np.array([min(max(value, least), most) - centre if np.isfinite(value) else -radius])
    found = add_noise(np.clip(within, -radius, radius), radius, multiplier, name, mechanism, noise)
    return min(max(float(found[0]) + centre, least), most)
