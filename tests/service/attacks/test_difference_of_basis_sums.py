"""A difference of two sums of the common basis must not be one silo.

Who: an honest aggregator, or any silo that is in both; nobody has to cheat. What a silo adds follows from its data
alone, so that no seed and no other settings help: the exact sum over four silos less that over three was the fourth
one's counts of items and pairs, every one of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from client_service.sums.item_sums import ITERATED_SUM
from client_service.sums.registry import SILO_SUMS
from client_service.sums.statistics import catalogue_matrix
from client_service.sums.storage import load_basis, load_basis_head
from client_service.tasks.items import load_listed_shard
from shared.method.parameters import Float32
from shared.method.settings import BasisSettings
from shared.sums import SUMS
from shared.sums.item_basis import ITERATED
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Federation
from simulation.experiments.in_process import open_federation
from tests.service.attacks.test_difference_of_two_sums import VICTIM, Described, shut_out
from tests.support.misled import ending_of, start
from tests.support.neighbours import BOTH_GRAPHS
from tests.support.questions import wait_until

pytestmark = pytest.mark.anyio


async def test_in_the_open_the_difference_is_one_silos_matrix_as_the_page_says(secure_run: Described) -> None:
    """Nothing guards open sums (docs/privacy.md): a silo that is in both reads the one that has left."""
    one = secure_run(4)
    basis = BasisSettings(kind="exact", least_pairs=1)
    one = replace(one, secure=False, method=one.method.model_copy(update={"basis": basis}))
    async with open_federation(one) as federation:
        assert await sum_basis(federation, "run-1", one) is None
        of_four = await kept_pairs(one, "run-1")
        await shut_out(federation)
        assert await sum_basis(federation, "run-2", one, clients=3) is None
        of_three = await kept_pairs(one, "run-2")
    victim = next(shard for shard in one.shards if shard.name == VICTIM)
    settings = one.make_client_settings(victim, aggregator_url="http://127.0.0.1")
    matrix = catalogue_matrix(load_listed_shard(settings), one.agreed_method.catalogue)
    np.testing.assert_array_equal(of_four - of_three, (matrix.T @ matrix).toarray())


async def kept_pairs(one: Experiment, run: str) -> Float32:
    """What the first silo has of that run's sums, once it has them."""
    folder = one.state_folder(one.shards[0]) / "basis"

    async def kept() -> bool:
        head = load_basis_head(folder)
        return head is not None and head.run == run

    await wait_until(kept)
    head = load_basis_head(folder)
    basis = None if head is None else load_basis(folder, head.digest)
    assert basis is not None and basis.pairs is not None
    return basis.pairs


async def sum_basis(federation: Federation, run: str, one: object, **changed: object) -> str | None:
    """Hold a basis run; why it failed, None where it has not."""
    assert (await start(federation, one, part="basis", **changed)).status_code == 201  # type: ignore[arg-type]
    reason: str | None = (await ending_of(federation, run))["reason"]
    return reason


@BOTH_GRAPHS
async def test_four_silos_then_three_of_them_are_not_summed_whatever_the_kind(secure_run: Described) -> None:
    one = secure_run(4)
    one = replace(one, method=one.method.model_copy(update={"basis": BasisSettings(kind="exact")}))
    method = one.agreed_method
    async with open_federation(one) as federation:
        assert await sum_basis(federation, "run-1", one) is None
        assert await sum_basis(federation, "run-2", one, seed=1) is None  # the same sum again
        await shut_out(federation)
        exact = await sum_basis(federation, "run-3", one, seed=2, clients=3)
        other = method.model_copy(update={"basis": one.method.basis.model_copy(update={"exponent": 0.5})})
        again = await sum_basis(federation, "run-4", one, seed=3, clients=3, method=other)
    for reason in (exact, again):
        assert reason is not None and f"would tell of {VICTIM} alone" in reason


async def test_a_sum_of_another_part_over_three_of_four_silos_is_not_made(
    secure_run: Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which items three silos have, less those that four have, are the fourth one's, whatever the two sums count."""
    frequencies = replace(ITERATED, part="frequencies")
    monkeypatch.setitem(SUMS, "iterated", frequencies)
    monkeypatch.setitem(SILO_SUMS, "iterated", replace(ITERATED_SUM, declared=frequencies))
    one = secure_run(4)
    sums = {"frequencies": BasisSettings(kind="iterated", rank=8, rounds=2)}
    one = replace(one, method=one.method.model_copy(update={"basis": BasisSettings(kind="exact"), "sums": sums}))
    async with open_federation(one) as federation:
        assert await sum_basis(federation, "run-1", one) is None
        await shut_out(federation)
        asked = {"part": "frequencies", "clients": 3}
        assert (await federation.operator.post("/v1/runs", json=asked)).status_code == 201
        reason = (await ending_of(federation, "run-2"))["reason"]
    assert reason is not None and f"would tell of {VICTIM} alone" in reason
