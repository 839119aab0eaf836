"""A graph of neighbours is the one that all have drawn, under bounds that each silo agrees to.

Who: the aggregator. It announces bounds under which few neighbours are enough, and colludes with more than it says; or
has a graph that is sparser than its bounds, that is not drawn by the silos' numbers, or that follows from other bounds
for one silo. Each would leave a client with neighbours who help it to read that client's update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from shared.protocol.schemas import GraphBounds, RunOut
from shared.protocol.secure.messages import GraphPlan, Roster, Sharers
from tests.support.liar import Liar
from tests.support.neighbours import BOUNDS, force_graph
from tests.support.questions import wait_until

if TYPE_CHECKING:
    from tests.support.misled import Mislead

pytestmark = pytest.mark.anyio
VICTIM = "client-2"
MESSAGES = {"roster": Roster, "sharers": Sharers}


@dataclass
class GraphLiar(Liar):
    """It passes on messages that a test has changed. otherwise: bounds that the victim alone hears of."""

    changes: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    otherwise: GraphBounds | None = None

    def _passed_on(self, client: str, call: str) -> tuple[int, bytes, str]:
        status, content, kind = super()._passed_on(client, call)
        if status == 200 and call in self.changes and not (call == "roster" and client == VICTIM):
            content = self.changes[call](MESSAGES[call].model_validate_json(content)).model_dump_json().encode()
        return status, content, kind

    def told(self, client: str) -> RunOut:
        said = super().told(client)
        return said if self.otherwise is None or client != VICTIM else said.model_copy(update={"graph": self.otherwise})


def of_degree_two(roster: Roster) -> Roster:
    return roster.model_copy(update={"graph": GraphPlan(degree=2, threshold=2, masks=2)})


def of_everybody(roster: Roster) -> Roster:
    return roster.model_copy(update={"graph": None})


def with_a_commitment_of_its_own(roster: Roster) -> Roster:
    """To the number that shall draw one silo's neighbours."""
    return roster.model_copy(
        update={
            "members": tuple(
                one.model_copy(update={"draw": "00" * 32}) if one.client == VICTIM else one for one in roster.members
            )
        }
    )


def with_a_draw_of_its_own(sharers: Sharers) -> Sharers:
    return sharers.model_copy(update={"draws": {**sharers.draws, VICTIM: "00" * 32}})


def without_a_draw(sharers: Sharers) -> Sharers:
    """As if one silo had drawn nobody."""
    return sharers.model_copy(update={"draws": {name: one for name, one in sharers.draws.items() if name != VICTIM}})


PLANNED = (
    "expected a graph of degree 2, threshold 2 and 3 masks, as follows from the announced bounds and 5 clients, got "
)
COMMITTED = f"the draw of neighbours that '{VICTIM}' has committed to"
LIES = {
    "a sparser graph": (
        {"changes": {"roster": of_degree_two}},
        f"{PLANNED}a graph of degree 2, threshold 2 and 2 masks",
    ),
    "the full graph": ({"changes": {"roster": of_everybody}}, f"{PLANNED}everybody to hold"),
    "a graph without bounds": (
        {"changes": {"roster": of_degree_two}, "bounds": None},
        "expected everybody to hold shares of everybody",
    ),
    "a silo's commitment": ({"changes": {"roster": with_a_commitment_of_its_own}}, f"'{VICTIM}' has signed"),
    "a silo's draw": ({"changes": {"sharers": with_a_draw_of_its_own}}, COMMITTED),
    "no draw of a silo": ({"changes": {"sharers": without_a_draw}}, COMMITTED),
    "two kinds of bounds": ({"otherwise": GraphBounds(colluders=0.1, dropouts=0.0)}, "got another graph"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_graph_that_the_silos_have_not_drawn_is_refused_before_anything_is_masked(
    mislead: Mislead, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    force_graph(monkeypatch)
    how, words = LIES[lie]
    async with mislead(5, GraphLiar, **({"threshold": 4, "bounds": BOUNDS} | how)) as clients:

        async def refused() -> bool:
            return any([words in await clients.problem(name) for name in clients.clients])

        await wait_until(refused)
        assert not clients.liar.means and len(clients.liar.vectors) < 4


async def test_bounds_below_a_silo_s_policy_are_refused_before_it_sends_its_keys(
    mislead: Mislead, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_graph(monkeypatch)
    weaker, policy = GraphBounds(colluders=0.3, dropouts=0.0), {"policy": {"colluders": 1 / 3}}
    async with mislead(4, bounds=weaker, client=policy) as clients:
        await clients.require_refused(
            "bears 0.3333 or more of its members as colluders (policy.colluders), got a run that announces 0.3:"
        )
        assert clients.liar.exchange is not None and not clients.liar.exchange.keys
