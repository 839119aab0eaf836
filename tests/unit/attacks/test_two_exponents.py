"""Two iterated sums of the common basis over the same data must not differ in the weights of their users.

Who: the aggregator, which says a run's settings. A user of d items counts with d^-2e. So two such sums over the
same silos, with two exponents e, are two equations: where users have 2 items, and one has 20, they give that
one's items, every pair, and no rule of members or of changes counts such a difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import sparse

from client_service.federation.client_run import check_method
from client_service.sums.statistics import encode_sums, raw_products
from shared.errors import PrivacyError
from shared.method.settings import method_settings
from shared.sums.item_basis import PRODUCTS
from shared.sums.sum import decode_fixed
from tests.support.small import small_client

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Silos

ITEMS, BUSY = 30, 20


def users_of_two(seed: int) -> sparse.csr_array:
    """A silo's 40 users, who have two items each."""
    draws = np.random.default_rng(seed)
    rows = np.zeros((40, ITEMS))
    for row in rows:
        row[draws.choice(ITEMS, 2, replace=False)] = 1.0
    return sparse.csr_array(rows)


def test_two_exponents_give_the_items_of_a_user_who_has_more_than_the_others() -> None:
    victim = np.zeros((1, ITEMS))
    victim[0, np.random.default_rng(9).choice(ITEMS, BUSY, replace=False)] = 1.0
    silos = [users_of_two(1), users_of_two(2), sparse.csr_array(np.vstack([users_of_two(3).toarray(), victim]))]

    def summed(exponent: float) -> np.ndarray:
        parts = [encode_sums(one, raw_products(one, np.eye(ITEMS), exponent), 3)[PRODUCTS] for one in silos]
        return decode_fixed(np.sum(parts, axis=0, dtype=np.uint32))

    weights = np.array([[2.0 ** (-2 * e), BUSY ** (-2 * e)] for e in (0.25, 0.5)])
    apart = np.linalg.inv(weights)[1]
    read = apart[0] * summed(0.25) + apart[1] * summed(0.5)
    np.testing.assert_allclose(read, victim.T @ victim, atol=0.01)


@pytest.mark.parametrize("words", [None, 6])
def test_a_silo_takes_part_in_sums_with_its_own_exponent_alone(silos: Silos, tmp_path: Path, words: int | None) -> None:
    changes = {"catalogue": 40, "basis.kind": "iterated", "basis.rank": 8, "basis.rounds": 2, "basis.words": words}
    (shard,) = silos(1)
    own = method_settings(**changes)
    settings = small_client(shard, tmp_path, method=own, policy={"common_basis": "open"}, catalogue=None)
    assert check_method(settings, own, "basis").basis.exponent == 0.25
    for exponent in (0.0, 0.5):
        asked = method_settings(**changes, **{"basis.exponent": exponent})
        with pytest.raises(PrivacyError, match=r"expected a run with basis.exponent = 0.25"):
            check_method(settings, asked, "basis")
