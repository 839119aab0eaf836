"""One exchange a round, for ever.

Who: the aggregator. It holds a round's exchange a second time over the same updates, with one client fewer: under
another threshold, or after it has said that the run had failed and then that it was open. The difference of the two
sums is that client's update. Before, clients made new keys and masked the same update again, both times.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from tests.support.neighbours import BOTH_GRAPHS
from tests.support.questions import in_phase, wait_until

if TYPE_CHECKING:
    from tests.support.misled import Mislead, Misled

pytestmark = [pytest.mark.anyio, BOTH_GRAPHS]
OTHERS = [f"client-{number}" for number in range(1, 5)]  # all but the victim


async def under_another_threshold(clients: Misled) -> None:
    clients.liar.open_exchange(threshold=3, expected=OTHERS)


async def after_a_failure(clients: Misled) -> None:
    """The same terms again: of four clients with a threshold of four."""
    clients.liar.phase, clients.liar.sequence = "failed", clients.liar.sequence + 1
    for name in OTHERS:
        await wait_until(in_phase(clients.clients[name], "failed"))
    clients.liar.open_exchange(expected=OTHERS)


@pytest.mark.parametrize("begin_again", [under_another_threshold, after_a_failure])
async def test_an_update_is_masked_once_whatever_the_aggregator_says_later(
    mislead: Mislead, begin_again: Callable[[Misled], Awaitable[None]]
) -> None:
    async with mislead(5, threshold=4) as clients:
        await clients.until_summed(1)
        await begin_again(clients)
        await clients.require_refused("expected one exchange", "threshold", by=OTHERS, sums=1)
