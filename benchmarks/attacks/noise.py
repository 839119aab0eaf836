"""Differential privacy as a mode of the shadows, and the AUC that it allows."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from benchmarks.attacks.silo import SCALARS, Mode, Release
from client_service.privacy.accounting import planned_epsilon
from client_service.privacy.mechanism import Noise, privatise
from client_service.privacy.settings import TENSORS, PrivacySettings
from client_service.training.item_trainer import ItemTrainer
from shared.method.parameters import Parameters

PARTS = (TENSORS, *SCALARS)
LEAST, MOST = 1e-2, 1e4  # between which the noise multiplier lies, for any epsilon that means something
SECRET_BYTES = 32
UNSPENT = 1e9  # unlimited budget of the shadows' silo: the question is about one run


def settings_for_epsilon(epsilon: float, delta: float, clip_norm: float, rounds: int) -> PrivacySettings:
    """Finds the Gaussian noise with which a run spends `epsilon`, by the client's accountant."""

    def excess_epsilon(multiplier: float) -> float:
        return planned_epsilon(_gaussian_settings(multiplier, delta, clip_norm), SCALARS, rounds) - epsilon

    return _gaussian_settings(float(brentq(excess_epsilon, LEAST, MOST, xtol=1e-6)), delta, clip_norm)


def _gaussian_settings(multiplier: float, delta: float, clip_norm: float) -> PrivacySettings:
    return PrivacySettings(
        mechanism="gaussian", clip_norm=clip_norm, noise_multiplier=multiplier, delta=delta, budget=UNSPENT
    )


def private_mode(settings: PrivacySettings) -> Mode:
    """Releases updates by the client's own mechanism, which draws rho once."""

    def begin_run(secret: np.random.Generator) -> Release:
        key, kept = secret.bytes(SECRET_BYTES), dict[str, float]()

        def release_noised(training: ItemTrainer, received: Parameters, made: Parameters) -> Parameters:
            noise = Noise(key, str(training.context.round))
            released = privatise(received.arrays, made, SCALARS, settings, noise, kept).parameters
            kept["rho"] = released.scalars["rho"]
            return released

        return release_noised

    return begin_run


def largest_auc(settings: PrivacySettings, rounds: int) -> float:
    """Bounds the AUC of any test of a whole run, between any two shards.

    A Gaussian release of multiplier z is at most 1 / z deviations from that of another shard; independent ones add up
    in squares, and two normal distributions mu deviations apart have an AUC of Phi(mu / sqrt 2).
    """
    times = {TENSORS: rounds, "margin": rounds, "rho": 1}
    return gaussian_auc(sum(times[part] / settings.noise(part)[1] ** 2 for part in PARTS))


def gaussian_auc(squared: float) -> float:
    """Computes the AUC of two normal distributions by their squared distance in deviations."""
    return float(norm.cdf(math.sqrt(squared / 2.0)))
