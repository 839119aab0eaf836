"""Statistics against values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.harness.statistics import (
    bootstrap_interval,
    compare_pairs,
    correct_holm,
    decide_verdict,
    least_corrected,
    measure_spread,
    paired_differences,
    paired_t_test,
    signed_ranks,
    wilcoxon_test,
)


def test_spread_is_the_mean_and_the_sample_deviation() -> None:
    found = measure_spread([1.0, 2.0, 4.0, 5.0])
    assert (found.mean, found.count) == (3.0, 4)
    assert found.deviation == pytest.approx(math.sqrt((4 + 1 + 1 + 4) / 3))
    assert measure_spread([2.0]).deviation == 0.0


def test_units_are_those_that_both_have() -> None:
    assert paired_differences({"a": 3.0, "b": 2.0, "c": 9.0}, {"b": 1.5, "a": 1.0}).tolist() == [2.0, 0.5]


def test_wilcoxon_of_six_differences_of_one_sign_is_two_in_two_to_the_sixth() -> None:
    assert wilcoxon_test(np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])) == pytest.approx(2 / 64)
    # one negative rank, the least: W = 1; sums of ranks <= 1 are {} and {1}, so p = 2 * 2 / 64
    assert wilcoxon_test(np.array([-0.1, 0.2, 0.3, 0.4, 0.5, 0.6])) == pytest.approx(4 / 64)
    assert wilcoxon_test(np.zeros(6)) == 1.0


def test_signed_ranks_by_hand() -> None:
    # |d| ascending: .1 .2 .2 .4 have ranks 1 2.5 2.5 4, and 0 has none
    assert signed_ranks(np.array([0.2, -0.1, 0.0, 0.4, -0.2])) == (6.5, 3.5)


def test_the_least_p_is_that_of_all_units_on_one_side_times_the_rows() -> None:
    assert least_corrected(8, 1) == pytest.approx(wilcoxon_test(np.arange(1.0, 9.0))) == pytest.approx(2 / 256)
    assert least_corrected(8, 6) == pytest.approx(12 / 256) and least_corrected(8, 7) > 0.05
    assert least_corrected(2, 9) == 1.0


def test_paired_t_against_the_formula() -> None:
    # mean 2, deviation 1, n = 3: t = 2 / (1 / sqrt 3) = 2 sqrt 3, and with 2 degrees p = 1 - t / sqrt(t^2 + 2)
    t = 2 * math.sqrt(3)
    assert paired_t_test(np.array([1.0, 2.0, 3.0])) == pytest.approx(1 - t / math.sqrt(t**2 + 2))
    assert paired_t_test(np.zeros(4)) == 1.0 and paired_t_test(np.full(4, 0.5)) == 0.0


def test_holm_by_hand() -> None:
    # sorted .01 .02 .03 .04 times 4 3 2 1: .04 .06 .06 .04, made monotone: .04 .06 .06 .06
    assert correct_holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert correct_holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    found = correct_holm([0.02, float("nan"), 0.01])
    assert found[[0, 2]] == pytest.approx([0.02, 0.02]) and math.isnan(found[1])


def test_the_interval_holds_the_mean_is_repeatable_and_has_no_width_without_spread() -> None:
    values = np.random.default_rng(3).normal(1.0, 0.5, 40)
    low, high = bootstrap_interval(values)
    assert low < values.mean() < high and bootstrap_interval(values) == (low, high)
    normal = 1.96 * values.std() / math.sqrt(40)
    assert high - low == pytest.approx(2 * normal, rel=0.1)
    assert bootstrap_interval(np.full(8, 0.25)) == (0.25, 0.25)


def figures(*values: float) -> dict[object, float]:
    return dict(enumerate(values))


def test_verdicts() -> None:
    own = figures(*np.linspace(0.3, 0.4, 12))
    others = {
        "worse": figures(*np.linspace(0.3, 0.4, 12) - np.linspace(0.01, 0.02, 12)),
        "better": figures(*np.linspace(0.3, 0.4, 12) + np.linspace(0.01, 0.02, 12)),
        "same": figures(*np.linspace(0.3, 0.4, 12)),
        "few": figures(0.1, 0.1, 0.1, 0.1, 0.1),
    }
    found = compare_pairs({label: (own, other) for label, other in others.items()})
    assert {label: one.verdict for label, one in found.items()} == {
        "worse": "ahead",
        "better": "behind",
        "same": "no difference seen",
        "few": "too few pairs",
    }
    assert found["worse"].difference == pytest.approx(0.015)
    assert found["worse"].corrected == pytest.approx(3 * found["worse"].wilcoxon)  # three tests: few counts for none
    assert math.isnan(found["few"].wilcoxon) and found["few"].units == 5


def test_one_large_difference_against_the_ranks_is_no_verdict() -> None:
    # eleven small losses and one large win: W+ = 12, and 70 of the 2^12 sets of ranks sum to at most that
    difference = np.array([*(-0.01 * np.arange(1, 12)), 5.0])
    assert signed_ranks(difference) == (12.0, 66.0) and difference.mean() > 0
    found = compare_pairs({"other": (figures(*difference), figures(*np.zeros(12)))})["other"]
    assert found.corrected == pytest.approx(140 / 4096) and found.corrected < 0.05
    assert found.verdict == "no difference seen"


def test_ranks_interval_and_p_must_agree() -> None:
    gains = np.arange(1.0, 9.0)
    assert decide_verdict(gains, (0.5, 2.0), 0.04) == "ahead" and decide_verdict(-gains, (-2.0, -0.5), 0.04) == "behind"
    assert (
        decide_verdict(gains, (0.5, 2.0), 0.05) == decide_verdict(gains, (0.5, 2.0), float("nan")) == "ahead, unproven"
    )
    assert decide_verdict(-gains, (-2.0, -0.5), 0.05) == "behind, unproven"
    for difference, span, corrected in (
        (gains, (0.0, 2.0), 0.04),
        (gains, (-2.0, -0.5), 0.04),
        (-gains, (0.5, 2.0), 0.04),
        (-gains, (-2.0, 0.0), 0.04),
    ):
        assert decide_verdict(difference, span, corrected) == "no difference seen", (span, corrected)


def test_six_units_of_one_sign_prove_nothing_once_two_rows_are_tested() -> None:
    own = figures(1, 2, 3, 4, 5, 6)
    beaten = figures(0.9, 1.8, 2.7, 3.6, 4.5, 5.4)
    assert compare_pairs({"one": (own, beaten)})["one"].verdict == "ahead"
    assert compare_pairs({"one": (own, beaten), "two": (own, beaten)})["one"].verdict == "ahead, unproven"


def test_rows_without_a_common_unit_are_left_out() -> None:
    assert compare_pairs({"other": ({"a": 1.0}, {"b": 1.0})}) == {}
