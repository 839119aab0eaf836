"""Sums that each tell nothing to those who are in them must not tell everything together.

Who: the aggregator. It holds each round of a run with four of five clients, in turn. Each client is in four of the
five sums, and no combination of these four is one client. Before, each client looked at the sums that it was in, and
agreed; the five together are a system of five equations for five updates.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shared.method.parameters import Parameters
from tests.support.liar import Liar
from tests.support.neighbours import BOTH_GRAPHS

if TYPE_CHECKING:
    from tests.support.misled import Mislead

pytestmark = [pytest.mark.anyio, BOTH_GRAPHS]
GROUPS = [*combinations([f"client-{number}" for number in range(1, 6)], 4)]


class Rotating(Liar):
    """Each round is held with the next four, from a start that is another one by its digest alone."""

    def next_start(self) -> Parameters:
        """The same, nudged by the least that floats can."""
        given = self.done.get(self.number - 1, self.start)
        return Parameters({name: np.nextafter(value, np.float32(2.0)) for name, value in given.arrays.items()}, {})

    def begin_next_round(self) -> None:
        self.expected = frozenset(GROUPS[self.number])
        super().begin_next_round()


async def test_who_has_not_seen_all_sums_of_a_run_helps_with_no_further_one(mislead: Mislead) -> None:
    async with mislead(5, Rotating, names=GROUPS[0], rounds=len(GROUPS), margin_strength=0.0) as clients:
        await clients.require_refused("the sum of each earlier round", by=["client-5"], sums=1)
