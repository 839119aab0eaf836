"""Whoever guesses an id tests it against the sum of held buckets: what a silo, a liar, and the aggregator confirm.

Who: a silo with a public list of ids, such as all ISBNs, that looks for those which others sell. The sum cannot keep
that from it; it can keep what one silo alone sells from all silos that tell the truth.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.method.settings import BasisSettings, MethodSettings
from shared.sums.common_items import HELD, TABLES, TRAINED, hash_ids, hide_rare_buckets

BUCKETS, KEY = 1 << 20, "ab" * 32
METHOD = MethodSettings(basis=BasisSettings(kind="items"))
PUBLIC = [f"978{number:010}" for number in range(30_000)]


def held_by(ids: list[str]) -> NDArray[np.uint32]:
    found = np.zeros((TABLES, BUCKETS), np.uint32)
    for row, buckets in zip(found, hash_ids(ids, KEY, BUCKETS), strict=True):
        row[buckets] = 1
    return found


def confirm(held: NDArray[np.uint32], least: int) -> set[str]:
    """The public ids that the sum says so many silos have."""
    enough = [row[buckets] >= least for row, buckets in zip(held, hash_ids(PUBLIC, KEY, BUCKETS), strict=True)]
    return {PUBLIC[place] for place in np.flatnonzero(enough[0] & enough[1])}


@pytest.fixture(scope="module")
def silos() -> list[set[str]]:
    generator = np.random.default_rng(0)
    return [set(generator.choice(PUBLIC, 4000, replace=False)) for _ in range(3)]


def test_a_silo_confirms_what_two_others_sell_and_nothing_that_one_sells(silos: list[set[str]]) -> None:
    total = np.sum([held_by(sorted(silo)) for silo in silos], axis=0, dtype=np.uint32)
    told = hide_rare_buckets(METHOD, {HELD: total, TRAINED: np.zeros(1, np.uint32)})[HELD]
    own, others = silos[0], silos[1:]
    found, both = confirm(told, 2) - own, (others[0] & others[1]) - own
    assert both <= found and len(found - both) <= 5  # of 22,000 each has a chance of (10,400 / 2^20)^2
    one = (others[0] ^ others[1]) - own
    assert len(found & one) <= 5 < len(one)


def test_a_silo_that_claims_all_ids_it_guesses_confirms_what_any_other_sells(silos: list[set[str]]) -> None:
    """Nobody sees the lie: masks hide each part. It costs the liar the list, which holds all that anybody has."""
    told = told_beside(held_by(PUBLIC), silos[1:])
    found, sold = confirm(told, 2), silos[1] | silos[2]
    assert sold <= found and len(found - sold) <= 10


def test_a_silo_that_claims_every_bucket_learns_nothing(silos: list[set[str]]) -> None:
    """So many buckets that one silo alone holds explain every other match by chance, and the list stays empty."""
    for claimed in (np.ones((TABLES, BUCKETS), np.uint32), np.eye(2, dtype=np.uint32).repeat(BUCKETS // 2, axis=1)):
        assert not told_beside(claimed, silos[1:]).any()


def told_beside(lie: NDArray[np.uint32], silos: list[set[str]]) -> NDArray[np.uint32]:
    """What all are told of the sum of these silos and one that lies."""
    total = np.sum([lie, *(held_by(sorted(silo)) for silo in silos)], axis=0, dtype=np.uint32)
    return np.asarray(hide_rare_buckets(METHOD, {HELD: total, TRAINED: np.zeros(1, np.uint32)})[HELD])


def test_the_aggregator_confirms_what_anybody_sells_and_not_who(silos: list[set[str]]) -> None:
    parts = [held_by(sorted(silo)) for silo in silos]
    total = np.sum(parts, axis=0, dtype=np.uint32)
    found, sold = confirm(total, 1), silos[0] | silos[1] | silos[2]
    assert sold <= found and len(found - sold) <= 10
    other = np.sum(parts[::-1], axis=0, dtype=np.uint32)
    np.testing.assert_array_equal(total, other)
