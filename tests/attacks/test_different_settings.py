"""Everybody trains the same thing, or nobody is summed.

Who: the aggregator. It tells three of four clients a learning rate at which they learn nothing, so that the sum less
what all began with is the fourth client's update. Before, the sum was uncovered, and told it to within the fixed point.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shared.method.settings import MethodSettings
from shared.protocol.signing.keys import new_key
from shared.strategies import build_strategy
from tests.attacks.liar import Liar, largest_difference
from tests.attacks.misled import misled

if TYPE_CHECKING:
    from conftest import Opened, Silos, Until

pytestmark = pytest.mark.anyio
VICTIM = "client-4"


def told_to_stand_still(method: MethodSettings) -> Any:
    """Settings under which nothing moves, for everybody but the victim."""
    still = method.model_copy(update={"mlp_learning_rate": 1e-30, "learning_rate": 1e-30})

    def tell(client: str, call: str, message: Any) -> Any:
        return message.model_copy(update={"method": still}) if call == "current" and client != VICTIM else message

    return tell


async def test_clients_who_were_told_different_settings_are_not_summed_and_say_what_differs(
    silos: Silos, small: MethodSettings, opened: Opened, until: Until, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = small.model_copy(update={"start": "random", "mlp_learning_rate": 0.01})
    declaration = build_strategy("lpsfed", method).declaration(method).model_copy(update={"secure": True})
    shards = silos(4)
    names = frozenset(shard.name for shard in shards)
    liar = Liar(declaration, method, new_key(), names, tell=told_to_stand_still(method))
    async with misled(liar, shards, tmp_path / "state", opened, monkeypatch) as clients:

        async def settled() -> bool:
            return bool(liar.means) or await clients.all_say("got another method")

        await until(settled)
        if liar.means:  # as before: 4 mean - 3 start is the victim's update
            guess = {name: 4 * value - 3 * liar.start.arrays[name] for name, value in liar.means[0].arrays.items()}
            truth = clients.updates[VICTIM, 1].arrays
            moved = max(float(np.abs(value - liar.start.arrays[name]).max()) for name, value in truth.items())
            assert largest_difference(guess, truth) > 0.1 * moved, "the victim's update lies bare"
        assert liar.means == []
