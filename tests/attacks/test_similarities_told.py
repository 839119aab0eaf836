"""How much of the mean each client begins with is the run's word, not the aggregator's of the moment.

Who: the aggregator. After a first round it gives everybody the same false mean, at which nothing is learnt, and tells
one client a rhobar of 0, so that this one alone goes on from what it had (Eq. 14), and all others a rhobar of 1. Their
updates are then the false mean: the second sum is that client's update, 99 % of its numbers exactly. Before, this was
so in every run of LPSFed, whatever its `similarity_floor`, and no silo could demand one. It still is where silos allow
a floor below 1: docs/lying-aggregator.md. (With Adam some more rounds are needed, until its momentum has died away.)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from client_service.sending import warn_of_unlike_starts
from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.protocol.signing.keys import new_key
from shared.strategies import build_strategy
from tests.attacks.liar import Liar
from tests.attacks.misled import Misled, misled

if TYPE_CHECKING:
    from conftest import Opened, Silos, Until

pytestmark = pytest.mark.anyio
VICTIM = "client-4"


def dead(given: Parameters) -> Parameters:
    """No weight has a gradient where all are zero."""
    return Parameters({name: np.zeros_like(value) for name, value in given.arrays.items()}, given.scalars)


def laid_bare(liar: Liar, clients: Misled) -> float:
    """What part of the victim's second update the second sum tells."""
    truth = clients.updates[VICTIM, 2].arrays
    near = [np.abs(4 * value - truth[name]) < 1e-5 for name, value in liar.means[1].arrays.items()]
    return float(np.concatenate([one.ravel() for one in near]).mean())


def lying(small: MethodSettings, names: frozenset[str], floor: float) -> Liar:
    changed = {"start": "random", "optimiser": "rmsprop", "mlp_learning_rate": 0.01}
    method = small.model_copy(update={**changed, "similarity_floor": floor})
    declaration = build_strategy("lpsfed", method).declaration(method).model_copy(update={"secure": True})
    rhobars = dict.fromkeys(names, 1.0) | {VICTIM: 0.0}
    return Liar(declaration, method, new_key(), names, rounds=2, rhobars=rhobars)


@pytest.mark.parametrize(
    ("floor", "policy", "words"),
    [
        (1.0, {}, "a rhobar from 1 to 1"),
        (0.0, {"least_similarity": 1.0}, "at least 1 of the mean (policy.least_similarity), got 0"),
        (0.0, {}, None),
    ],
)
async def test_nobody_begins_elsewhere_than_the_run_and_the_silo_allow(
    silos: Silos,
    small: MethodSettings,
    opened: Opened,
    until: Until,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    floor: float,
    policy: dict[str, Any],
    words: str | None,
) -> None:
    """`words`: of the victim's refusal; None: the page says that it is uncovered, and so it is."""
    shards = silos(4)
    liar = lying(small, frozenset(shard.name for shard in shards), floor)
    async with misled(liar, shards, tmp_path / "state", opened, monkeypatch, policy=policy) as clients:

        async def settled() -> bool:
            if len(liar.means) == 1 and liar.number == 1:
                liar.done[1], liar.number = dead(liar.means[0]), 2
                liar.open_exchange()
            said = (await clients.problems())[VICTIM]
            return len(liar.means) == 2 or (words is not None and words in said)

        await until(settled)
        if words is None:
            assert len(liar.means) == 2 and laid_bare(liar, clients) > 0.9
        elif len(liar.means) == 2:  # as before
            assert laid_bare(liar, clients) < 0.5, "the victim's update lies bare"
        assert words is None or len(liar.means) < 2


@pytest.mark.parametrize(("floor", "secure", "warned"), [(0.0, True, True), (1.0, True, False), (0.0, False, False)])
def test_a_silo_whose_run_leaves_this_open_is_warned(
    small: MethodSettings, floor: float, secure: bool, warned: bool
) -> None:
    method = small.model_copy(update={"similarity_floor": floor})
    declaration = build_strategy("lpsfed", method).declaration(method).model_copy(update={"secure": secure})
    assert any("policy.least_similarity" in one for one in warn_of_unlike_starts(declaration, method)) == warned
