"""The attacker's arithmetic on cases whose answer is known: AUC, intervals, and what can be learnt from features."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from benchmarks.attacks.attack import run_attack
from benchmarks.attacks.scores import area_under_curve, judge_scores
from shared.method.graph import Float64

TARGETS = 6
SHADOWS = 400
ATTACKED = slice(200, 400)


def column(*values: float) -> Float64:
    return np.array(values, dtype=np.float64)[:, None]


def test_the_area_is_the_share_of_pairs_in_the_right_order_and_a_tie_is_half() -> None:
    truth = np.array([True, False, True, False])[:, None]
    assert area_under_curve(column(4, 3, 2, 1), truth) == 0.75
    assert area_under_curve(column(4, 1, 3, 2), truth) == 1.0 and area_under_curve(column(1, 4, 2, 3), truth) == 0.0
    assert area_under_curve(column(1, 1, 1, 1), truth) == 0.5 and area_under_curve(column(2, 2, 3, 1), truth) == 0.875


def test_with_trials_of_one_kind_alone_there_is_nothing_to_tell_apart() -> None:
    assert area_under_curve(column(1, 2, 3), np.ones((3, 1), dtype=bool)) == 0.5


def test_many_different_scores_are_compared_in_steps_that_hardly_matter() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random((500, 40)) < 0.5
    scores = rng.normal(size=truth.shape) + 0.7 * truth
    present, absent = scores[truth], scores[~truth]
    exact = np.searchsorted(np.sort(absent), present).mean() / len(absent)
    assert area_under_curve(scores, truth) == pytest.approx(exact, abs=5e-4)


def test_the_interval_holds_the_true_area_nineteen_times_in_twenty_and_shrinks_with_the_trials() -> None:
    rng, true = np.random.default_rng(1), norm.cdf(1.0 / np.sqrt(2.0))
    found = []
    for shadows in [80] * 100 + [800]:
        truth = rng.random((shadows, 1)) < 0.5
        found.append(judge_scores(rng.normal(size=truth.shape) + truth, truth))
    assert 88 <= sum(one.low <= true <= one.high for one in found[:100]) <= 100
    assert found[-1].high - found[-1].low < min(one.high - one.low for one in found[:100]) / 2


def test_trials_of_one_shadow_count_as_one() -> None:
    """Ten copies of each trial are no more evidence than one."""
    rng = np.random.default_rng(2)
    truth = rng.random((100, 1)) < 0.5
    scores = rng.normal(size=truth.shape) + truth
    once, often = judge_scores(scores, truth), judge_scores(np.repeat(scores, 10, axis=1), np.repeat(truth, 10, axis=1))
    assert (often.auc, often.low, often.high) == pytest.approx((once.auc, once.low, once.high), abs=1e-9)
    assert often.trials == 10 * once.trials


def test_few_false_alarms_are_asked_for_only_where_there_are_enough_trials() -> None:
    """Scores 0 to 999 without the target: ten of them are 990 or above, so that what is above 989 is found."""
    scores = np.concatenate([np.arange(1000.0), [995.0, 999.5, 10.0, 500.0]])[:, None]
    truth = np.arange(1004)[:, None] >= 1000
    assert judge_scores(scores, truth).tpr == 0.5
    assert judge_scores(scores[1:], truth[1:]).tpr is None


def planted_signal(strength: float, features: int = 300) -> tuple[Float64, np.ndarray]:
    """Each target moves the features along a direction of its own, under noise of deviation 1."""
    rng = np.random.default_rng(3)
    truth = rng.random((SHADOWS, TARGETS)) < 0.5
    directions = rng.normal(size=(TARGETS, features)) / np.sqrt(features)
    return rng.normal(size=(SHADOWS, features)) + strength * truth @ directions, truth


def test_a_signal_spread_over_many_features_is_found() -> None:
    seen, truth = planted_signal(strength=8.0)
    found = run_attack({"tensors": seen}, truth, ATTACKED).every
    assert found.auc > 0.9 and found.low > 0.85
    assert found.trials == 200 * TARGETS


def test_no_signal_is_no_better_than_guessing() -> None:
    seen, truth = planted_signal(strength=0.0)
    found = run_attack({"tensors": seen, "norms": seen[:, :5]}, truth, ATTACKED)
    assert found.every.low < 0.5 < found.every.high and found.every.high < 0.56


def test_a_signal_turned_round_is_found_as_well() -> None:
    """A target that makes a feature smaller: the attacker learns the direction."""
    rng = np.random.default_rng(4)
    truth = rng.random((SHADOWS, 1)) < 0.5
    assert run_attack({"scalars": rng.normal(size=truth.shape) - 3.0 * truth}, truth, ATTACKED).every.auc > 0.95


def test_the_features_that_tell_are_chosen_among_those_that_do_not() -> None:
    rng = np.random.default_rng(5)
    truth = rng.random((SHADOWS, 3)) < 0.5
    seen = {"tensors": rng.normal(size=(SHADOWS, 200)), "scalars": rng.normal(size=truth.shape) + 3.0 * truth}
    found = run_attack(seen, truth, ATTACKED)
    assert "scalars" in found.features and found.every.auc > 0.9


def test_attacked_shadows_teach_nothing() -> None:
    """With their truth turned round, every right answer is a wrong one: the scores have not seen it."""
    seen, truth = planted_signal(strength=4.0)
    turned = truth.copy()
    turned[ATTACKED] = ~truth[ATTACKED]
    found, other = (run_attack({"tensors": seen}, of, ATTACKED).every.auc for of in (truth, turned))
    assert found > 0.7 and other == pytest.approx(1.0 - found)


def test_targets_that_never_vary_are_left_out_and_the_easiest_are_named_beforehand() -> None:
    rng = np.random.default_rng(8)
    truth = rng.random((SHADOWS, 10)) < 0.5
    seen = rng.normal(size=truth.shape)
    seen[:, 4] += 4.0 * truth[:, 4]
    fixed = np.column_stack([truth, np.ones((SHADOWS, 2), dtype=bool)])
    found = run_attack({"scalars": seen}, fixed, ATTACKED)
    assert found.every.trials == 200 * 10
    assert found.exposed.trials == 200 and found.exposed.auc > 0.98
    assert found.every.auc < 0.85


def test_features_that_never_vary_are_no_evidence() -> None:
    truth = np.random.default_rng(9).random((SHADOWS, 2)) < 0.5
    assert run_attack({"scalars": np.full((SHADOWS, 3), 0.1)}, truth, ATTACKED).every.auc == 0.5
