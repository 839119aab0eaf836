"""One exchange a round, for ever.

Who: the aggregator. It holds a round's exchange a second time over the same updates, with one client fewer: under
another threshold, or after it has said that the run had failed and then that it was open. The difference of the two
sums is that client's update. Before, clients made new keys and masked the same update again, both times.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared.method.settings import MethodSettings
from shared.protocol.signing.keys import new_key
from shared.strategies import build_strategy
from tests.attacks.liar import Liar, largest_difference
from tests.attacks.misled import Misled, misled

if TYPE_CHECKING:
    from conftest import Opened, Silos, Until

pytestmark = pytest.mark.anyio
VICTIM = "client-5"
OTHERS = [f"client-{number}" for number in range(1, 5)]


async def under_another_threshold(liar: Liar, clients: Misled, until: Until) -> None:
    del clients, until
    liar.open_exchange(threshold=3, expected=OTHERS)


async def after_a_failure(liar: Liar, clients: Misled, until: Until) -> None:
    """The same terms again: of four clients with a threshold of four."""
    liar.phase, liar.sequence = "failed", liar.sequence + 1

    async def forgotten() -> bool:
        return all([(await clients.clients[name].get("/v1/status")).json()["phase"] == "failed" for name in OTHERS])

    await until(forgotten)
    liar.open_exchange(expected=OTHERS)


@pytest.mark.parametrize("again", [under_another_threshold, after_a_failure])
async def test_an_update_is_masked_once_whatever_the_aggregator_says_later(
    silos: Silos,
    small: MethodSettings,
    opened: Opened,
    until: Until,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    again: Callable[[Liar, Misled, Until], object],
) -> None:
    method = small.model_copy(update={"start": "random", "mlp_learning_rate": 0.01})
    declaration = build_strategy("lpsfed", method).declaration(method).model_copy(update={"secure": True})
    shards = silos(5)
    liar = Liar(declaration, method, new_key(), frozenset(shard.name for shard in shards), threshold=4)
    async with misled(liar, shards, tmp_path / "state", opened, monkeypatch) as clients:

        async def summed() -> bool:
            return len(liar.means) == 1

        await until(summed)
        await again(liar, clients, until)  # type: ignore[misc]

        async def settled() -> bool:
            problems = await clients.problems()
            refused = all("expected one exchange" in problems[name] or "threshold" in problems[name] for name in OTHERS)
            return len(liar.means) == 2 or refused

        await until(settled)
        if len(liar.means) == 2:  # as before
            first, second = (mean.arrays for mean in liar.means)
            guess = {name: 5 * value - 4 * second[name] for name, value in first.items()}
            assert largest_difference(guess, clients.updates[VICTIM, 1].arrays) > 1e-3, "the victim's update lies bare"
        assert len(liar.means) == 1
