"""What a silo that lies reads in a sum of pair counts whose rare pairs are left out, and what a silo can do about it.

Who: a silo in the sum. It adds the threshold to each of its own counts, so that every pair is over it in the sum, and
takes it off again: 398 of 398 rare pairs were read. Masked counts cannot be looked at, so this stands, and is said; a
silo is warned, and its policy can demand noise.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from client_service.boundary.policy import Policy, allowed_declaration
from client_service.sums.item_sums import warn_of_rare_pairs
from client_service.sums.statistics import count_pairs
from shared.errors import PrivacyError
from shared.method.settings import MethodSettings, method_settings
from shared.strategies import build_strategy
from shared.sums.item_basis import PAIRS, hide_rare_pairs

LEAST = 3


def method_of(**basis: object) -> MethodSettings:
    changes = {f"basis.{name}": value for name, value in basis.items()}
    return method_settings(catalogue=40, **{"basis.kind": "exact"}, **changes)


def test_a_silo_that_lifts_its_own_counts_reads_all_rare_pairs_as_the_page_says() -> None:
    draws = np.random.default_rng(1)
    honest = [count_pairs(sparse.csr_array((draws.random((12, 40)) < 0.15).astype(float)))[PAIRS] for _ in range(3)]
    truth = np.sum(honest, axis=0)
    rare = (truth > 0) & (truth < LEAST)
    handed = hide_rare_pairs(method_of(least_pairs=LEAST), {PAIRS: truth.astype(np.uint32)})[PAIRS]
    assert rare.sum() > 100 and not handed[rare].any()
    lifted = (truth + LEAST).astype(np.uint32)
    read = hide_rare_pairs(method_of(least_pairs=LEAST), {PAIRS: lifted})[PAIRS] - np.uint32(LEAST)
    np.testing.assert_array_equal(read[rare], truth[rare])


@pytest.mark.parametrize(("basis", "warned"), [({}, True), ({"epsilon": 8.0}, False), ({"least_pairs": 1}, False)])
def test_a_silo_is_warned_of_it(basis: dict[str, object], warned: bool) -> None:
    assert any("policy.common_basis = noised" in one for one in warn_of_rare_pairs(method_of(**basis))) is warned


def test_a_silo_that_demands_noise_takes_part_in_no_such_sum() -> None:
    policy = Policy(common_basis="noised")
    for method, allowed in ((method_of(epsilon=8.0), True), (method_of(), False)):
        strategy = build_strategy("lpsfed", method)
        if allowed:
            assert allowed_declaration(strategy, method, policy, secure=True).sums
            continue
        with pytest.raises(PrivacyError, match="expected common_basis"):
            allowed_declaration(strategy, method, policy, secure=True)
