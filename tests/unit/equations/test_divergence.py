"""Step 9 (Eq. 6, 11, 16): K is the eigenvalues over their sum; rho = KL(K^R || K^c)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shared.method.divergence import align_kernels, divergence, kernel
from shared.method.graph import Float64

UNIFORM = np.full(8, 0.7)
STEP = np.array([0.2] * 4 + [0.6] * 4)


def rho(anchor: Float64, own: Float64) -> float:
    found = divergence(kernel(anchor), kernel(own))
    assert found is not None
    return found


def test_a_kernel_is_the_sorted_non_zero_eigenvalues_over_their_sum() -> None:
    # .1 + .2 + .2 + .5 = 1 after the two zeros (one of them a rounding error) are gone; then over 2 times as much.
    values = np.array([1.0, 0.0, 0.4, 1e-12, 0.2, 0.4])
    assert kernel(values).tolist() == pytest.approx([0.1, 0.2, 0.2, 0.5])


def test_a_kernel_of_zeros_is_empty() -> None:
    assert len(kernel(np.zeros(5))) == 0


def test_rho_of_a_uniform_anchor_and_a_step_by_hand() -> None:
    # K^R = 1/8 each. Own eigenvalues sum to 3.2: K^c = 1/16 four times, 3/16 four times.
    # KL = 4 (1/8) log((1/8) / (1/16)) + 4 (1/8) log((1/8) / (3/16)) = 1/2 log 2 + 1/2 log(2/3) = 1/2 log(4/3).
    assert rho(UNIFORM, STEP) == pytest.approx(0.5 * math.log(4 / 3), abs=1e-12)


def test_rho_is_not_symmetric() -> None:
    # The other way: 4 (1/16) log(1/2) + 4 (3/16) log(3/2) = 3/4 log(3/2) - 1/4 log 2.
    assert rho(STEP, UNIFORM) == pytest.approx(0.75 * math.log(1.5) - 0.25 * math.log(2), abs=1e-12)


@pytest.mark.parametrize("zeros", [1, 10, 60])
def test_zeros_of_either_side_change_nothing(zeros: int) -> None:
    padding = np.zeros(zeros)
    assert rho(UNIFORM, np.concatenate([padding, STEP])) == rho(UNIFORM, STEP)
    assert rho(np.concatenate([padding, UNIFORM]), STEP) == rho(UNIFORM, STEP)


def test_the_longer_anchor_is_cut_to_the_clients_length_and_sums_to_one_again() -> None:
    longer = np.concatenate([UNIFORM, [5.0, 9.0]])
    assert rho(longer, STEP) == pytest.approx(0.5 * math.log(4 / 3), abs=1e-12)


def test_the_longer_client_is_cut_to_the_anchors_length_and_sums_to_one_again() -> None:
    longer = np.concatenate([STEP, [0.9, 1.0, 1.0]])
    assert rho(UNIFORM, longer) == pytest.approx(0.5 * math.log(4 / 3), abs=1e-12)


def test_what_is_compared_is_the_common_length_with_a_sum_of_one_each() -> None:
    # The anchor keeps .1 and .3 of their sum .4; the client's two stay as they are.
    anchor, own = align_kernels(np.array([0.1, 0.3, 0.6]), np.array([0.2, 0.8]))
    assert (anchor.tolist(), own.tolist()) == (pytest.approx([0.25, 0.75]), pytest.approx([0.2, 0.8]))
    own, anchor = align_kernels(np.array([0.2, 0.8]), np.array([0.1, 0.3, 0.6]))
    assert (anchor.tolist(), own.tolist()) == (pytest.approx([0.25, 0.75]), pytest.approx([0.2, 0.8]))


def test_nothing_to_compare_is_two_empty_kernels() -> None:
    assert [len(part) for part in align_kernels(kernel(np.zeros(3)), kernel(STEP))] == [0, 0]


def test_fewer_than_eight_values_say_nothing() -> None:
    seven, eight = kernel(np.arange(1.0, 8.0)), kernel(np.arange(1.0, 9.0))
    assert divergence(seven, eight) is None and divergence(eight, seven) is None
    assert divergence(kernel(np.zeros(20)), eight) is None
    assert divergence(eight, eight) is not None


def test_equal_spectra_are_at_distance_zero_whatever_their_scale() -> None:
    assert rho(STEP, STEP) == 0.0
    assert rho(STEP, 0.25 * STEP) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("seed", range(20))
def test_rho_is_never_negative_and_follows_the_definition(seed: int) -> None:
    generator = np.random.default_rng(seed)
    anchor, own = generator.uniform(0.01, 1.0, (2, 9))
    r, c = sorted(anchor.tolist()), sorted(own.tolist())
    expected = sum(a / sum(r) * math.log(a / sum(r) / (b / sum(c))) for a, b in zip(r, c, strict=True))
    assert rho(anchor, own) == pytest.approx(expected, abs=1e-12)
    assert rho(anchor, own) > 0.0
