"""The attacks on the sums of the common basis find what is told, and nothing that is hidden."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.attacks import sums
from benchmarks.attacks import sums as drawn_sums
from benchmarks.attacks.population import all_matrices
from benchmarks.attacks.scores import area_under_curve
from benchmarks.privacy.noised_basis import measure


@pytest.fixture(scope="module")
def drawn() -> drawn_sums.SiloSample:
    return drawn_sums.draw_silos(drawn_sums.SumPopulation(all_matrices("synthetic")["train"]), 4, 40, seed=0)


def area(drawn: drawn_sums.SiloSample, scores: drawn_sums.Float64) -> float:
    return area_under_curve(scores[None], drawn.targets[1][None])


def test_silos_share_no_user_and_half_of_the_targets_are_in_the_sum(drawn: drawn_sums.SiloSample) -> None:
    there = np.concatenate(drawn.members)
    users, truth = drawn.targets
    assert len(set(there)) == 160 and drawn.inside.shape[0] == 160
    assert (np.isin(users, there) == truth).all() and truth.mean() == 0.5


def test_every_pair_tells_a_user_and_noise_hides_it(drawn: drawn_sums.SiloSample) -> None:
    assert area(drawn, sums.score_by_pairs(drawn, 1)) > 0.9
    assert area(drawn, sums.score_by_noised_sum(drawn, 1e4)) > area(drawn, sums.score_by_noised_sum(drawn, 1.0)) + 0.1


def test_rare_pairs_lie_open_unless_they_are_left_out(drawn: drawn_sums.SiloSample) -> None:
    found = dict(sums.pair_rows([drawn]))
    assert found["exact, every pair"] == 1.0 and found["exact, pairs of 3 and more"] == 0.5


def test_all_other_silos_know_the_last_one(drawn: drawn_sums.SiloSample) -> None:
    assert dict(sums.item_rows([drawn]))["exact; all other silos"] == 1.0


def test_directions_of_the_aggregator_s_choice_read_columns(drawn: drawn_sums.SiloSample) -> None:
    read, *_ = dict(sums.lying_rows([drawn])).values()
    assert read == 1.0


def test_a_noised_basis_is_measured_beside_what_each_silo_has_alone() -> None:
    [line] = measure(all_matrices("synthetic"), 4, [100.0])
    assert line[:2] == ["4", "100"] and float(line[-1]) > 0.5
