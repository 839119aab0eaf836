"""Charges -> epsilon. Gaussian releases by dp-accounting, Laplace ones by their plain sum."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from client_service.privacy.settings import SCALARS, TENSORS, Mechanism, PrivacySettings


class Charge(NamedTuple):
    """One release of one part: its noise's deviation or scale over the part's sensitivity."""

    mechanism: Mechanism
    noise_multiplier: float


def epsilon(charges: Iterable[Charge], delta: float | None) -> float:
    """What so many releases of one shard, each chosen in sight of those before, spend together at delta.

    Gaussian: releases of multipliers z_i are together as one of multiplier 1 / sqrt(sum 1 / z_i^2), because a sum of
    independent Gaussian privacy losses is one again (Dong, Roth, Su 2022, arXiv 1905.02383); its epsilon is exact
    (Balle, Wang 2018, arXiv 1805.06530). Laplace: the sum of 1 / z_i, whatever delta. Both: the sum of the two.
    Infinite for Gaussian releases without a delta.
    """
    known = list(charges)
    pure = math.fsum(1.0 / z for mechanism, z in known if mechanism == "laplace")
    precision = math.fsum(z**-2 for mechanism, z in known if mechanism == "gaussian")
    return pure + (_gaussian(precision**-0.5, delta or 0.0) if precision else 0.0)


def _gaussian(multiplier: float, delta: float) -> float:
    from dp_accounting import get_epsilon_gaussian  # it takes a second to load, and most silos do not ask for it

    return float(get_epsilon_gaussian(multiplier, delta))


def planned_epsilon(settings: PrivacySettings, scalars: Iterable[str], rounds: int, *, anchors: int = 1) -> float:
    """Epsilon of a whole run: in each round the tensors and the scalars, and a steady scalar once for each anchor."""
    times = {TENSORS: rounds} | {name: anchors if SCALARS[name].steady else rounds for name in set(scalars)}
    charges = [Charge(*settings.noise(part)) for part, count in times.items() for _ in range(count)]
    return epsilon(charges, settings.delta)
