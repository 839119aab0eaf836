"""What a client says of its training is what it has trained with.

Who: the aggregator. It tells one client of a run of 5 rounds, has it train, makes it break off, then tells it of 6
rounds as it told all others. The run's length says how long the warm-up is, in which some settings leave the MLPs
as they are. Before, that client said to the others what it was told last, and the sum less their start was its update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.protocol.schemas import RunOut
from tests.support.liar import Liar
from tests.support.neighbours import BOTH_GRAPHS

if TYPE_CHECKING:
    from tests.support.misled import Mislead

pytestmark = [pytest.mark.anyio, BOTH_GRAPHS]
VICTIM = "client-4"
SHORT, LONG = 5, 6  # rounds of a run: the shorter one has one round of warm-up


class Shortening(Liar):
    """Once in round 2, a shorter run, and no threshold: a secure client breaks off after its training."""

    shortened = False

    def told(self, client: str) -> RunOut:
        said = super().told(client)
        if client != VICTIM or said.round != 2 or self.shortened:
            return said
        self.shortened = True
        return said.model_copy(update={"rounds": SHORT, "threshold": None})


async def test_an_update_that_was_trained_for_a_run_of_another_length_is_not_masked(mislead: Mislead) -> None:
    still = {"warmup_rounds": 100, "warmup_trains": "tables"}
    async with mislead(4, Shortening, rounds=LONG, **still) as clients:
        words = "the number of rounds that round 2 was trained with"
        await clients.require_refused(words, by=[VICTIM], sums=1)
