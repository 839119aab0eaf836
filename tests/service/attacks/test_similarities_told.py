"""How much of the mean each client begins with is the run's word, not the aggregator's of the moment.

Who: the aggregator. After a first round it gives everybody the same false mean, at which nothing is learnt, and tells
one client a rhobar of 0, so that this one alone goes on from what it had (Eq. 14), and all others a rhobar of 1. Their
updates are then the false mean: the second sum is that client's update, 99 % of its numbers exactly. Before, this was
so in every run of LPSFed as it was shipped. Now a secure run has the floor 1 and a silo demands it, unless both choose
another: docs/privacy.md. (With Adam some more rounds are needed, until its momentum has died away.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from client_service.federation.run_setup import warn_of_unlike_starts
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy
from simulation.experiments.experiment import Experiment
from simulation.experiments.in_process import open_federation
from tests.support.liar import Liar
from tests.support.misled import ending_of, start
from tests.support.neighbours import BOTH_GRAPHS

if TYPE_CHECKING:
    from tests.support.misled import Mislead

pytestmark = pytest.mark.anyio
VICTIM = "client-4"
RHOBARS = dict.fromkeys(("client-1", "client-2", "client-3"), 1.0) | {VICTIM: 0.0}


class Deadening(Liar):
    """After the first round it gives a mean of zeros: no weight has a gradient there."""

    def next_start(self) -> Parameters:
        given = self.means[-1]
        return Parameters({name: np.zeros_like(value) for name, value in given.arrays.items()}, given.scalars)


def lying(floor: float | None) -> dict[str, Any]:
    return {"rounds": 2, "rhobars": RHOBARS, "optimiser": "rmsprop", "similarity_floor": floor}


@BOTH_GRAPHS
@pytest.mark.parametrize(
    ("floor", "policy", "words", "sums"),
    [
        (None, {}, "a rhobar from 1 to 1", 1),
        (1.0, {"least_similarity": 0.0}, "a rhobar from 1 to 1", 1),
        (0.0, {}, "at least 1 of the mean (policy.least_similarity), got 0", 0),
    ],
)
async def test_nobody_begins_elsewhere_than_the_run_and_the_silo_allow(
    mislead: Mislead, floor: float | None, policy: dict[str, Any], words: str, sums: int
) -> None:
    async with mislead(4, Deadening, client={"policy": policy}, **lying(floor)) as clients:
        await clients.require_refused(words, by=[VICTIM], sums=sums)


@BOTH_GRAPHS
async def test_where_both_allow_it_the_victim_is_uncovered_as_the_page_says(
    mislead: Mislead, trained: dict[tuple[str, int, str], Parameters]
) -> None:
    async with mislead(4, Deadening, client={"policy": {"least_similarity": 0.0}}, **lying(0.0)) as clients:
        await clients.until_summed(2)
    truth = trained["run-1", 2, VICTIM].arrays
    near = [np.abs(4 * value - truth[name]) < 1e-5 for name, value in clients.liar.means[1].arrays.items()]
    assert np.concatenate([one.ravel() for one in near]).mean() > 0.9


@pytest.mark.parametrize(("floor", "secure", "warned"), [(0.0, True, True), (1.0, True, False), (0.0, False, False)])
def test_a_silo_whose_run_leaves_this_open_is_warned(
    small: MethodSettings, floor: float, secure: bool, warned: bool
) -> None:
    method = small.model_copy(update={"similarity_floor": floor})
    declaration = build_strategy("lpsfed", method).declaration(method).model_copy(update={"secure": secure})
    assert any("policy.least_similarity" in one for one in warn_of_unlike_starts(declaration, method)) == warned


async def test_a_secure_run_that_is_asked_for_without_a_floor_has_one(
    secure_run: Callable[[int], Experiment],
) -> None:
    """From the aggregator's own request to what a silo trains with: nobody has to know of it."""
    one = secure_run(3)
    async with open_federation(one) as federation:
        asked = one.method.model_dump(mode="json")
        assert "similarity_floor" not in asked
        answer = await start(federation, one, method=one.method)
        assert answer.status_code == 201, answer.text
        assert answer.json()["request"]["method"]["similarity_floor"] == 1.0
        assert (await ending_of(federation, "run-1"))["phase"] == "finished"
