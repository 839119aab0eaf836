"""Noise and privacy account of a silo's part in noised sums of the common basis.

The unit is one user, who is present or absent with all interactions in one silo. The noise hides a user in the sum;
no silo adds enough of it to hide a user in its part. So this account is separate from that of updates, whose unit is
a whole shard. It covers all shards of the silo, because a changed shard mostly has the same users.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np

from client_service.boundary.ledger import LEDGER
from client_service.boundary.ledger_heads import LedgerHeads
from client_service.privacy.accounting import FOLDER, ROUNDING, Account, Charge, find_shortfall, silo_secret
from client_service.privacy.mechanism import Noise
from shared.errors import DataError, PrivacyError
from shared.method.parameters import Parameters, blocks, digest_arrays
from shared.method.settings import MethodSettings
from shared.protocol.secure.messages import RoundTerms
from shared.sums import find_sum
from shared.sums.sum import STEP, SumNoise

ACCOUNT, SECRET = f"{FOLDER}/basis-account.jsonl", f"{FOLDER}/basis-secret"  # in the state directory
LEDGER_FIELD = "noise"  # field of a noised part's ledger entry that describes its charge
EVERY_SHARD = ""


def noise_deviation(epsilon: float, delta: float) -> float:
    """Computes the least deviation of Gaussian noise for (epsilon, delta) at sensitivity 1.

    Balle, Wang 2018, arXiv 1805.06530.
    """
    from dp_accounting import get_sigma_gaussian  # it takes a second to load, and most silos do not use it

    return float(get_sigma_gaussian(epsilon, delta))


def find_basis_shortfall(state_directory: Path) -> str | None:
    """Describes which charge the account lacks for the last noised part.

    None if it lacks nothing.
    """
    return find_shortfall(state_directory / LEDGER, state_directory / ACCOUNT, LEDGER_FIELD)


class BasisGuard:
    """Releases a silo's noised parts of sums within its policy's budget."""

    def __init__(self, heads: LedgerHeads, budget: float, delta: float) -> None:
        """Opens account and secret.

        Raises DataError for a damaged account or secret, and for an account that lacks a part that has left.
        """
        if shortfall := find_basis_shortfall(heads.state_directory):
            raise DataError(shortfall)
        (heads.state_directory / FOLDER).mkdir(parents=True, exist_ok=True)
        self._account = Account(heads, EVERY_SHARD, ACCOUNT, SECRET)
        self._secret, self._budget, self._delta = silo_secret(heads, SECRET), budget, delta
        self._leaving = False

    def release(self, update: Parameters, terms: RoundTerms, method: MethodSettings) -> Parameters:
        """Adds this silo's noise to its part of a sum, and charges the release once.

        The same round gives the same noise again. Raises PrivacyError beyond the budget.
        """
        basis, plan = method.basis, find_sum(method).noise
        assert basis.epsilon is not None and plan is not None
        deviation = noise_deviation(basis.epsilon, basis.delta)
        content = f"{terms.model_dump_json()}\n{digest_arrays(update.arrays)}"
        occasion = hashlib.sha256(content.encode()).hexdigest()
        if occasion not in self._account.spent.occasions:
            self._charge(occasion, plan.tensor, Charge("gaussian", deviation), run=terms.run, round=terms.round)
        self._leaving = True
        parts = terms.threshold - 1  # of the noise that any sum has beside that of one silo, which knows its own
        return _add_sum_noise(update, plan, deviation / math.sqrt(parts), Noise(self._secret, occasion))

    def permit(self) -> dict[str, Any]:
        """Returns the ledger's note on a masked part that is about to leave.

        Raises PrivacyError without a release.
        """
        if not self._leaving:
            raise PrivacyError("expected this silo's part of the sum with its noise, got one without a release")
        spent = self._account.epsilon(self._delta)
        return {"epsilon": spent, "delta": self._delta, "budget": self._budget, "account": self._account.end}

    def _charge(self, occasion: str, tensor: str, charge: Charge, **place: Any) -> None:
        after = self._account.epsilon(self._delta, [charge])
        if after > self._budget * (1 + ROUNDING):
            spent = self._account.epsilon(self._delta)
            words = f"expected a noised sum within policy.basis_budget = {self._budget:g} at delta {self._delta:g}"
            raise PrivacyError(f"{words}, got epsilon {after:.4g} with it; {spent:.4g} is spent")
        self._account.charge(occasion, {tensor: charge}, {}, epsilon=after, **place)


def _add_sum_noise(update: Parameters, plan: SumNoise, deviation: float, noise: Noise) -> Parameters:
    """Adds normal noise with each entry's deviation, and the variance that goes with it."""
    sums = np.array(update.arrays[plan.tensor], dtype=np.uint32)
    deviations = plan.deviations(sums.size, deviation)
    for begin, end in blocks(sums.size):
        part = sums[begin:end]
        drawn = noise.draws(f"{plan.tensor} {begin}", part.astype(np.float64), "gaussian")
        part += np.rint(drawn * deviations[begin:end] / STEP).astype(np.int64).astype(np.uint32)
    variance = np.array([math.ceil(deviation**2 / STEP)], dtype=np.uint32)
    return Parameters({plan.variance: variance, plan.tensor: sums}, update.scalars)
