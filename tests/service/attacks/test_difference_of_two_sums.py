"""A difference of two sums must not be one client.

Who: an honest aggregator, or whoever reads its states; nobody has to cheat. Draws followed from the seed, which
defaults to 0. Run-1 with four clients, run-2 with the same seed and one of them quarantined: 4 mean1 - 3 mean2 was the
fourth client's update, to 8.9e-8.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest

from shared.method.parameters import Parameters
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Federation
from simulation.experiments.in_process import open_federation
from tests.support.misled import ending_of, start
from tests.support.neighbours import BOTH_GRAPHS
from tests.support.questions import read, wait_until

pytestmark = pytest.mark.anyio
VICTIM = "client-4"
Described = Callable[[int], Experiment]


async def shut_out(federation: Federation) -> None:
    content = {"reason": "looked odd"}
    assert (await federation.operator.post(f"/v1/clients/{VICTIM}/quarantine", json=content)).status_code == 201


@BOTH_GRAPHS
async def test_two_runs_from_one_start_are_summed_over_the_same_members_or_not_at_all(secure_run: Described) -> None:
    one = secure_run(4)
    async with open_federation(one) as federation:
        assert (await start(federation, one)).status_code == 201
        await ending_of(federation, "run-1")
        await shut_out(federation)
        again = await start(federation, one, clients=3)
        reason = again.text if again.status_code != 201 else (await ending_of(federation, "run-2"))["reason"]
    with closing(sqlite3.connect(one.folder / "aggregator" / "aggregator.sqlite")) as database:
        [(count,)] = database.execute("select count(*) from states where run = 'run-2'").fetchall()
    assert count == 0 and "another seed" in reason


async def test_another_seed_is_another_start_and_draws_follow_from_the_silo_too(
    secure_run: Described, trained: dict[tuple[str, int, str], Parameters]
) -> None:
    one = secure_run(3)
    async with open_federation(one) as federation:
        for run, changed in (("run-1", {}), ("run-2", {}), ("run-3", {"seed": 1})):
            assert (await start(federation, one, **changed)).status_code == 201
            assert (await ending_of(federation, run))["reason"] is None
    first, again = (trained[run, 1, "client-1"].arrays for run in ("run-1", "run-2"))
    # The same start, the same seed, another run.
    assert max(float(np.abs(np.asarray(first[name], np.float64) - again[name]).max()) for name in again) > 1e-6


@BOTH_GRAPHS
async def test_who_leaves_alone_after_a_round_ends_the_run_and_is_not_told_by_difference(secure_run: Described) -> None:
    """The neighbour of the hole within one run: updates of two rounds differ little once training settles."""
    one = secure_run(4)
    async with open_federation(one) as federation:
        assert (await start(federation, one, rounds=40)).status_code == 201

        async def first_sum() -> bool:
            return len((await read(federation.operator, "runs/run-1"))["rounds"]) > 1

        await wait_until(first_sum)
        await shut_out(federation)
        reason = (await ending_of(federation, "run-1"))["reason"]
    assert f"would tell the update of {VICTIM}" in reason
