"""Everybody trains the same thing, or nobody is summed.

Who: the aggregator. It tells three of four clients a learning rate at which they learn nothing, so that the sum less
what all began with is the fourth client's update. Before, the sum was uncovered, and told it to within the fixed point.
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


class Divider(Liar):
    """Settings under which nothing moves, for everybody but the victim."""

    def told(self, client: str) -> RunOut:
        still = self.method.model_copy(update={"mlp_learning_rate": 1e-30, "learning_rate": 1e-30})
        said = super().told(client)
        return said if client == "client-4" else said.model_copy(update={"method": still})


async def test_clients_who_were_told_different_settings_are_not_summed_and_say_what_differs(mislead: Mislead) -> None:
    async with mislead(4, Divider) as clients:
        await clients.require_refused("got another method")
