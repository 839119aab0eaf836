"""Sums of the common basis that no data can have must not become anybody's basis.

Who: a silo that lies, under masks where nobody sees its part; or the aggregator, which hands out the sum. One silo said
a variance below 0, or counts that wrapped around: every silo kept a basis of NaN, and gave up each training
run that used it with an IndexError that named nobody's fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from client_service.sums import item_sums
from client_service.sums.basis import (
    CommonBasis,
    make_basis_of_last_round,
    make_exact_basis,
    make_noised_basis,
    require_possible,
)
from client_service.sums.scorers import common_scorers, common_spectrum
from client_service.sums.statistics import count_pairs
from client_service.sums.storage import load_basis_head
from client_service.sums.subspace_iteration import start_directions
from shared.errors import ProtocolError
from shared.method.settings import BasisSettings
from shared.sums.item_basis import DEGREES, NOISE, PAIRS, PRODUCTS, WEIGHTED
from simulation.experiments.experiment import Experiment
from simulation.experiments.in_process import open_federation
from tests.support.misled import start
from tests.support.questions import read, wait_until

ITEMS, RANK = 24, 8
Sums = dict[str, NDArray[np.uint32]]
NUMBERS = ("0", "1", "2^31", "2^32 - 1", "any")


def fill(kind: str, *shape: int) -> NDArray[np.uint32]:
    if kind == "any":
        return np.random.default_rng(1).integers(0, 1 << 32, shape, dtype=np.uint32)
    return np.full(shape, {"0": 0, "1": 1, "2^31": 1 << 31, "2^32 - 1": (1 << 32) - 1}[kind], np.uint32)


def of_pairs(first: str, second: str) -> CommonBasis:
    return make_exact_basis({DEGREES: fill(first, ITEMS), PAIRS: fill(second, ITEMS * (ITEMS - 1) // 2)}, 0.25)


def of_products(first: str, second: str) -> CommonBasis:
    sums = {DEGREES: fill(first, ITEMS), PRODUCTS: fill(second, ITEMS, RANK)}
    return make_basis_of_last_round(sums, start_directions(0, ITEMS, RANK), 0.25)


def of_noised(first: str, second: str) -> CommonBasis:
    return make_noised_basis({NOISE: fill(first, 1), WEIGHTED: fill(second, ITEMS * (ITEMS + 1) // 2)}, ITEMS, RANK)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("make", [of_pairs, of_products, of_noised])
@pytest.mark.parametrize("second", NUMBERS)
@pytest.mark.parametrize("first", NUMBERS)
def test_whatever_is_summed_is_refused_or_gives_numbers_to_score_by(
    make: Callable[[str, str], CommonBasis], first: str, second: str
) -> None:
    try:
        basis = require_possible(make(first, second))
    except ProtocolError:
        return
    interactions = sparse.csr_array((np.random.default_rng(2).random((30, ITEMS)) < 0.2).astype(float))
    places = np.arange(ITEMS)
    found = [value for one in common_scorers(basis, places, interactions) for value in vars(one).values()]
    found.append(common_spectrum(basis, places, interactions, 4).users)
    assert all(np.isfinite(value).all() for value in found if isinstance(value, np.ndarray))


def test_true_counts_pass_however_rare_pairs_are_left_out() -> None:
    data = sparse.csr_array((np.random.default_rng(3).random((50, ITEMS)) < 0.3).astype(float))
    sums = count_pairs(data)
    hidden = np.where(sums[PAIRS] < 3, 0, sums[PAIRS]).astype(np.uint32)
    for pairs in (sums[PAIRS], hidden):
        basis = make_exact_basis({DEGREES: sums[DEGREES], PAIRS: pairs}, 0.25)
        assert require_possible(basis) is basis


@pytest.mark.anyio
async def test_counts_that_wrap_around_in_one_silo_are_named_by_all_and_kept_by_nobody(
    secure_run: Callable[[int], Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = secure_run(3)
    one = replace(one, method=one.method.model_copy(update={"basis": BasisSettings(kind="exact")}))
    honest, liars = item_sums.count_pairs, list[Any]()

    def lie(interactions: sparse.csr_array) -> Sums:
        """The silo that is asked first adds 0 users of each item, less what all can have."""
        sums = honest(interactions)
        if not liars:
            liars.append(interactions)
        return {**sums, DEGREES: sums[DEGREES] - np.uint32(1 << 20)} if interactions is liars[0] else sums

    monkeypatch.setattr(item_sums, "count_pairs", lie)
    async with open_federation(one) as federation:
        assert (await start(federation, one, part="basis")).status_code == 201

        async def said() -> bool:
            problems = [(await read(client, "status")).get("problem") or "" for client in federation.clients.values()]
            return all("expected sums of the common basis that data can have" in words for words in problems)

        await wait_until(said)
    assert all(load_basis_head(one.state_folder(shard) / "basis") is None for shard in one.shards)
