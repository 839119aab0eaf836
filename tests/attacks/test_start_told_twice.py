"""A round has one start, whoever is asked.

Who: the aggregator. It tells all clients a start at which nothing is learnt, then one of them that another run is on,
then that the first one is, and gives it another start. Before, that client trained from the second one and said to the
others that it was told the first: the sum less the others' start was its update, 99 % of its numbers within 1e-5.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.method.start import initial_parameters
from shared.protocol.signing.keys import new_key
from shared.protocol.wire import MEDIA_TYPE, encode
from shared.strategies import build_strategy
from tests.attacks.liar import Liar
from tests.attacks.misled import misled

if TYPE_CHECKING:
    from conftest import Opened, Silos, Until

pytestmark = pytest.mark.anyio
VICTIM = "client-4"


class Fickle(Liar):
    """It gives the victim another model when that asks for the third time."""

    asked = 0

    @property
    def start(self) -> Parameters:
        """All zeros: no weight has a gradient."""
        drawn = initial_parameters(self.tensors, self.seed, exact=False)
        return Parameters({name: np.zeros_like(value) for name, value in drawn.items()})

    def answer(self, client: str, request: httpx.Request, body: bytes) -> tuple[int, bytes, str]:
        if client == VICTIM and request.url.path.endswith("/model"):
            self.asked += 1
            self.sequence += 1
            if self.asked > 2:
                return 200, encode(Parameters(initial_parameters(self.tensors, 7, exact=False))), MEDIA_TYPE
        return super().answer(client, request, body)


def lead_astray(liar: list[Fickle]) -> Any:
    def tell(client: str, call: str, message: Any) -> Any:
        if call != "current" or client != VICTIM or liar[0].asked > 1:
            return message
        return message.model_copy(update={"standing": "absent", "run": ("run-1", "run-2")[liar[0].asked]})

    return tell


async def test_a_client_that_was_told_another_start_later_sends_nothing(
    silos: Silos, small: MethodSettings, opened: Opened, until: Until, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = small.model_copy(update={"start": "random", "mlp_learning_rate": 0.01})
    declaration = build_strategy("lpsfed", method).declaration(method).model_copy(update={"secure": True})
    shards = silos(4)
    names = frozenset(shard.name for shard in shards)
    itself: list[Fickle] = []
    liar = Fickle(declaration, method, new_key(), names, tell=lead_astray(itself))
    itself.append(liar)
    async with misled(liar, shards, tmp_path / "state", opened, monkeypatch) as clients:

        async def settled() -> bool:
            said = (await clients.problems())[VICTIM]
            return bool(liar.means) or "what round 1 of run-1 began with" in said

        await until(settled)
        if liar.means:  # as before
            truth = clients.updates[VICTIM, 1].arrays
            near = [np.abs(4 * value - truth[name]) < 1e-5 for name, value in liar.means[0].arrays.items()]
            bare = float(np.concatenate([one.ravel() for one in near]).mean())
            assert bare < 0.5, f"the victim's update lies bare: {bare:.0%} of its numbers"
        assert liar.means == []
