"""Our epsilon is that of dp-accounting, and of formulas that can be written down by hand."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy import optimize, stats

from client_service.privacy.accounting import Charge, epsilon, planned_epsilon
from client_service.privacy.settings import PrivacySettings

DELTA = 1e-5
CASES = [
    [Charge("gaussian", 1.0)],
    [Charge("gaussian", 4.0)] * 10,
    [Charge("gaussian", 3.0)] * 5 + [Charge("gaussian", 8.0)] * 5 + [Charge("gaussian", 20.0)],
]


def composed(accountant: dp_accounting.PrivacyAccountant, charges: list[Charge]) -> float:
    for one in charges:
        accountant.compose(dp_accounting.GaussianDpEvent(one.noise_multiplier))
    return float(accountant.get_epsilon(DELTA))


@pytest.mark.parametrize("charges", CASES)
def test_it_agrees_with_both_accountants_of_dp_accounting_asked_directly(charges: list[Charge]) -> None:
    found = epsilon(charges, DELTA)
    assert found == pytest.approx(composed(PLDAccountant(), charges), abs=1e-3)
    assert found <= composed(RdpAccountant(), charges) <= 1.2 * found


def test_one_gaussian_release_has_the_epsilon_of_its_formula() -> None:
    """Balle and Wang 2018, Theorem 8: delta = Phi(1/2z - z eps) - e^eps Phi(-1/2z - z eps)."""
    for z in (0.5, 1.0, 3.0):

        def excess(value: float, z: float = z) -> float:
            upper, lower = (stats.norm.cdf(sign / (2 * z) - z * value) for sign in (1, -1))
            return float(upper - math.exp(value) * lower - DELTA)

        by_hand = optimize.brentq(excess, 0.0, 60.0)
        assert epsilon([Charge("gaussian", z)], DELTA) == pytest.approx(by_hand, abs=1e-6)


def test_so_many_gaussian_releases_are_one_with_less_noise() -> None:
    assert epsilon([Charge("gaussian", 6.0)] * 9, DELTA) == pytest.approx(epsilon([Charge("gaussian", 2.0)], DELTA))


def test_laplace_releases_spend_their_sum_whatever_delta() -> None:
    charges = [Charge("laplace", 1 / 0.5)] * 4 + [Charge("laplace", 1 / 0.1)] * 3
    assert epsilon(charges, None) == epsilon(charges, DELTA) == pytest.approx(4 * 0.5 + 3 * 0.1)
    one = PLDAccountant()
    one.compose(dp_accounting.LaplaceDpEvent(2.0), 4)
    assert one.get_epsilon(1e-9) == pytest.approx(4 * 0.5, abs=1e-3)


def test_both_kinds_on_one_shard_spend_their_sum_and_need_the_delta() -> None:
    charges = [Charge("laplace", 2.0), Charge("gaussian", 3.0)]
    assert epsilon(charges, DELTA) == pytest.approx(0.5 + epsilon(charges[1:], DELTA))
    assert math.isinf(epsilon(charges, None))


def test_nothing_spends_nothing() -> None:
    assert epsilon([], DELTA) == epsilon([], None) == 0.0


def test_a_run_is_planned_as_it_will_be_charged() -> None:
    gaussian = PrivacySettings(
        mechanism="gaussian", clip_norm=1.0, noise_multiplier=4.0, scalar_noise_multiplier=9.0, delta=DELTA, budget=9.0
    )
    charges = [Charge("gaussian", 4.0)] * 5 + [Charge("gaussian", 9.0)] * 6
    assert planned_epsilon(gaussian, ("margin", "rho"), 5) == pytest.approx(epsilon(charges, DELTA))
    laplace = PrivacySettings(mechanism="laplace", clip_norm=1.0, round_epsilon=1.0, scalar_epsilon=0.1, budget=9.0)
    assert planned_epsilon(laplace, ("margin", "rho"), 5) == pytest.approx(5.6)
    assert planned_epsilon(laplace, ("margin", "rho"), 5, anchors=5) == pytest.approx(6.0)
    assert planned_epsilon(laplace, (), 5) == pytest.approx(5.0)
