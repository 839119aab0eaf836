"""What a client says of its training is what it has trained with.

Who: the aggregator. It tells one client of a run of 5 rounds, has it train, makes it break off, then tells it of 6
rounds as it told all others. The run's length says how long the warm-up is, in which some settings leave the MLPs
as they are. Before, that client said to the others what it was told last, and the sum less their start was its update.
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
SHORT, LONG = 5, 6  # rounds of a run: the shorter one has one round of warm-up
WORDS = "the number of rounds that round 2 was trained with"


def tell_a_length_twice(asked: list[int]) -> Any:
    """The first times of round 2, a shorter run, and no threshold: a secure client breaks off after its training."""

    def tell(client: str, call: str, message: Any) -> Any:
        if call != "current" or client != VICTIM or message.round != 2 or asked[0] > 0:
            return message
        asked[0] += 1
        return message.model_copy(update={"rounds": SHORT, "threshold": None})

    return tell


async def test_an_update_that_was_trained_for_a_run_of_another_length_is_not_masked(
    silos: Silos, small: MethodSettings, opened: Opened, until: Until, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    still = {"warmup_rounds": 100, "warmup_trains": "tables"}
    method = small.model_copy(update={"start": "random", "mlp_learning_rate": 0.01, **still})
    declaration = build_strategy("lpsfed", method).declaration(method).model_copy(update={"secure": True})
    shards = silos(4)
    names = frozenset(shard.name for shard in shards)
    liar = Liar(declaration, method, new_key(), names, rounds=LONG, tell=tell_a_length_twice([0]))
    async with misled(liar, shards, tmp_path / "state", opened, monkeypatch) as clients:

        async def settled() -> bool:
            if len(liar.means) == 1 and liar.number == 1:
                liar.done[1], liar.number = liar.means[0], 2
                liar.open_exchange()
            return len(liar.means) == 2 or WORDS in (await clients.problems())[VICTIM]

        await until(settled)
        if len(liar.means) == 2:  # as before: 4 mean - 3 start is the victim's update
            before, after = liar.done[1].arrays, liar.means[1].arrays
            guess = {name: 4 * value - 3 * before[name] for name, value in after.items()}
            truth = clients.updates[VICTIM, 2].arrays
            moved = max(float(np.abs(value - before[name]).max()) for name, value in truth.items())
            assert moved > 1e-3
            assert largest_difference(guess, truth) > 0.01 * moved, "the victim's update lies bare"
        assert len(liar.means) == 1
