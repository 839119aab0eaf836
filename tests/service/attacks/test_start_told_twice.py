"""A round has one start, whoever is asked.

Who: the aggregator. It tells all clients a start at which nothing is learnt, then one of them that another run is on,
then that the first one is, and gives it another start. Before, that client trained from the second one and said to the
others that it was told the first: the sum less the others' start was its update, 99 % of its numbers within 1e-5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from shared.method.parameters import Parameters
from shared.method.tensors import initial_parameters
from shared.protocol.schemas import RunOut
from shared.protocol.wire import MEDIA_TYPE, encode_body
from tests.support.liar import Liar
from tests.support.neighbours import BOTH_GRAPHS

if TYPE_CHECKING:
    from tests.support.misled import Mislead

pytestmark = [pytest.mark.anyio, BOTH_GRAPHS]
VICTIM = "client-4"


class Fickle(Liar):
    """It leads the victim astray, and gives it another model when that asks for the third time."""

    asked = 0

    @property
    def start(self) -> Parameters:
        """All zeros: no weight has a gradient."""
        drawn = initial_parameters(self.tensors, self.seed, exact=False)
        return Parameters({name: np.zeros_like(value) for name, value in drawn.items()})

    def told(self, client: str) -> RunOut:
        said = super().told(client)
        if client != VICTIM or self.asked > 1:
            return said
        return said.model_copy(update={"standing": "absent", "run": ("run-1", "run-2")[self.asked]})

    def answer(self, client: str, request: httpx.Request, body: bytes) -> tuple[int, bytes, str]:
        if client == VICTIM and request.url.path.endswith("/model"):
            self.asked += 1
            self.sequence += 1
            if self.asked > 2:
                return 200, encode_body(Parameters(initial_parameters(self.tensors, 7, exact=False))), MEDIA_TYPE
        return super().answer(client, request, body)


async def test_a_client_that_was_told_another_start_later_sends_nothing(mislead: Mislead) -> None:
    async with mislead(4, Fickle) as clients:
        await clients.require_refused("the start of round 1 of run-1", by=[VICTIM])
