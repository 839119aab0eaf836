"""A difference of two sums of the common basis must not be one silo.

Who: an honest aggregator, or any silo that is in both; nobody has to cheat. What a silo adds follows from its data
alone, so that no seed and no other settings help: the exact sum over four silos less that over three was the fourth
one's counts of items and pairs, every one of them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.method.settings import BasisSettings
from simulation.federation import Federation
from simulation.run import open_federation
from tests.attacks.misled import ending_of, start
from tests.attacks.test_difference_of_two_sums import VICTIM, Described, shut_out

pytestmark = pytest.mark.anyio


async def sum_basis(federation: Federation, run: str, one: object, **changed: object) -> str | None:
    """Hold a basis run; why it failed, None where it has not."""
    assert (await start(federation, one, part="basis", **changed)).status_code == 201  # type: ignore[arg-type]
    reason: str | None = (await ending_of(federation, run))["reason"]
    return reason


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
