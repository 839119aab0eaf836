"""Statistics of figures by unit: means, paired tests, an interval, and a verdict.

A unit is one client of one partition, its figure the mean over seeds: runs that differ in seed alone are near-copies
of each other and count once. Partitions cut the same data, so that units are still not independent and p-values are
too small rather than too large; the document says so.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Float64 = NDArray[np.float64]
Figures = Mapping[Hashable, float]
"""By unit."""
Pair = tuple[Figures, Figures]
Verdict = Literal["ahead", "behind", "ahead, unproven", "behind, unproven", "no difference seen", "too few pairs"]
FEWEST_UNITS = 6  # below it the least possible p of a two-sided signed-rank test is above 0.05
LEVEL = 0.05
DRAWS = 10_000
SEED = 0
DECIMALS = 12


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (0 for one value)."""

    mean: float
    deviation: float
    count: int


@dataclass(frozen=True)
class Comparison:
    """Comparison of two methods: mean difference, interval, p-values and verdict.

    units: number that both have. p-values are NaN and the interval is (NaN, NaN) where there are too few of them.
    """

    units: int
    difference: float
    low: float
    high: float
    wilcoxon: float
    t: float
    corrected: float
    verdict: Verdict


def measure_spread(values: Sequence[float]) -> Spread:
    """Computes mean and sample deviation of at least one value."""
    array = np.asarray(values, dtype=np.float64)
    return Spread(float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else 0.0, len(array))


def paired_differences(own: Figures, other: Figures) -> Float64:
    """Computes own - other over common keys, in the order of `own`.

    Equal up to rounding is equal, as tests rank.
    """
    return np.round([own[key] - other[key] for key in own if key in other], DECIMALS).astype(np.float64)


def wilcoxon_test(difference: Float64) -> float:
    """Computes the two-sided signed-rank test (Wilcoxon 1945); 1 without any difference."""
    if not np.any(difference):
        return 1.0
    return float(stats.wilcoxon(difference).pvalue)


def signed_ranks(difference: Float64) -> tuple[float, float]:
    """Computes W+ and W-, the sums of ranks of |difference| above and below 0.

    Zeros have no rank; equal values share theirs.
    """
    moved = difference[difference != 0.0]
    ranks = stats.rankdata(np.abs(moved))
    return float(ranks[moved > 0.0].sum()), float(ranks[moved < 0.0].sum())


def paired_t_test(difference: Float64) -> float:
    """Computes the two-sided t-test of mean zero.

    It is 1 if all are zero, 0 if all are the same other value.
    """
    if np.ptp(difference) == 0.0:
        return 0.0 if difference[0] else 1.0
    return float(stats.ttest_1samp(difference, 0.0).pvalue)


def correct_holm(values: Sequence[float]) -> Float64:
    """Computes Holm's step-down correction of m p-values (Holm 1979).

    The i-th smallest is multiplied by m - i + 1, is never less than the one before, and is at most 1. NaN stays NaN
    and does not count.
    """
    uncorrected = np.asarray(values, dtype=np.float64)
    corrected = np.full(len(uncorrected), np.nan)
    places = np.flatnonzero(~np.isnan(uncorrected))
    order = places[np.argsort(uncorrected[places], kind="stable")]
    stepped = uncorrected[order] * (len(order) - np.arange(len(order)))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return corrected


def least_corrected(units: int, rows: int) -> float:
    """Computes the smallest possible p after Holm: rows * 2 / 2^units, at most 1."""
    return min(1.0, rows * 2.0 ** (1 - units))


def bootstrap_interval(difference: Float64, seed: int = SEED) -> tuple[float, float]:
    """Computes the 95 % percentile interval of the mean by bootstrap over units."""
    bootstrap = stats.bootstrap(
        (difference,),
        np.mean,
        n_resamples=DRAWS,
        confidence_level=1 - LEVEL,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return float(bootstrap.confidence_interval.low), float(bootstrap.confidence_interval.high)


def compare_pairs(pairs: Mapping[str, Pair]) -> dict[str, Comparison]:
    """Compares the first with the second of each pair, over common units.

    Pairs without common units are left out. Wilcoxon's p is corrected over the pairs with enough units to test.
    """
    by_name = {name: paired_differences(own, other) for name, (own, other) in pairs.items()}
    by_name = {name: difference for name, difference in by_name.items() if len(difference)}
    tests = {name: _paired_tests(difference) for name, difference in by_name.items()}
    corrected = correct_holm([wilcoxon_p for wilcoxon_p, _ in tests.values()])
    return {
        name: _make_comparison(by_name[name], tests[name], float(p)) for name, p in zip(tests, corrected, strict=True)
    }


def _paired_tests(difference: Float64) -> tuple[float, float]:
    if len(difference) < FEWEST_UNITS:
        return float("nan"), float("nan")
    return wilcoxon_test(difference), paired_t_test(difference)


def _make_comparison(difference: Float64, tests: tuple[float, float], corrected: float) -> Comparison:
    units, mean = len(difference), float(difference.mean())
    if units < FEWEST_UNITS:
        nan = float("nan")
        return Comparison(units, mean, nan, nan, *tests, corrected, "too few pairs")
    span = bootstrap_interval(difference)
    return Comparison(units, mean, *span, *tests, corrected, decide_verdict(difference, span, corrected))


def decide_verdict(difference: Float64, span: tuple[float, float], corrected: float) -> Verdict:
    """Returns the side of the larger sum of ranks, if the interval lies there.

    It is unproven where Holm's p is too large.
    """
    above, below = signed_ranks(difference)
    low, high = span
    proven = corrected < LEVEL
    if above > below and low > 0.0:
        return "ahead" if proven else "ahead, unproven"
    if below > above and high < 0.0:
        return "behind" if proven else "behind, unproven"
    return "no difference seen"
