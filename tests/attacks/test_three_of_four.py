"""Sums that each tell nothing to those who are in them must not tell everything together.

Who: the aggregator. It holds each round of a run with three of four clients, in turn. Each client is in three of the
four sums, and no combination of these three is one client. Before, each client looked at the sums that it was in, and
agreed; the four together are a system of four equations for four updates.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.protocol.signing.keys import new_key
from shared.strategies import build_strategy
from tests.attacks.liar import Liar
from tests.attacks.misled import misled

if TYPE_CHECKING:
    from conftest import Opened, Silos, Until

pytestmark = pytest.mark.anyio
VICTIM = "client-4"
NAMES = [f"client-{number}" for number in range(1, 5)]
GROUPS = [*combinations(NAMES, 3)]


def nudged(given: Parameters) -> Parameters:
    """By the least that floats can: a start that is another one by its digest alone."""
    return Parameters({name: np.nextafter(value, np.float32(2.0)) for name, value in given.arrays.items()}, {})


async def test_who_has_not_seen_all_sums_of_a_run_helps_with_no_further_one(
    silos: Silos, small: MethodSettings, opened: Opened, until: Until, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = small.model_copy(update={"start": "random", "mlp_learning_rate": 0.01, "margin_strength": 0.0})
    declaration = build_strategy("lpsfed", method).declaration(method).model_copy(update={"secure": True})
    shards = silos(4)
    liar = Liar(declaration, method, new_key(), frozenset(GROUPS[0]), rounds=len(GROUPS))
    async with misled(liar, shards, tmp_path / "state", opened, monkeypatch) as clients:

        async def settled() -> bool:
            if len(liar.means) == liar.number < len(GROUPS):
                liar.done[liar.number] = nudged(liar.done.get(liar.number - 1, liar.start))
                liar.number += 1
                liar.open_exchange(expected=GROUPS[liar.number - 1])
            problems = (await clients.problems()).values()
            return len(liar.means) == len(GROUPS) or any("the sum of each earlier round" in one for one in problems)

        await until(settled)
        if len(liar.means) == len(GROUPS):  # as before
            sums = [3 * np.concatenate([v.ravel() for v in mean.arrays.values()]) for mean in liar.means]
            matrix = np.array([[name in group for name in NAMES] for group in GROUPS], dtype=np.float64)
            found = np.linalg.solve(matrix, np.array(sums))[NAMES.index(VICTIM)]
            names = list(liar.means[0].arrays)
            truth, start = (
                np.concatenate([of[name].ravel() for name in names])
                for of in (clients.updates[VICTIM, len(GROUPS)].arrays, liar.start.arrays)
            )
            alike = np.corrcoef(found - start, truth - start)[0, 1]
            assert alike < 0.5, f"the victim's update lies bare: correlation {alike:.2f}"
        assert len(liar.means) == 1
