"""Secure rounds on a graph of neighbours over the wire, up to the drop-outs that its bounds bear and beyond them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from shared.protocol.secure.fixed_point import STEP
from shared.protocol.wire import decode_body
from tests.support.neighbours import force_graph

if TYPE_CHECKING:
    from conftest import Secured

pytestmark = pytest.mark.anyio
PHASES = ("keys", "shares", "checks", "masked", "consents", "answers")


async def test_the_sum_of_64_silos_is_that_of_the_survivors_with_drop_outs_in_each_phase(secured: Secured) -> None:
    """Three are missing from the sum, and two who have sent their vectors fall silent: five of 64 is what is borne.

    Of 23 neighbours as with the usual bound, which bears three, many a draw lacks the shares of somebody's secret.
    """
    async with secured(64, settings={"dropouts": 0.08}, quorum=43) as made:
        here = list(made.clients)
        lost = dict(zip(PHASES[1:], here[:5], strict=True))
        for phase in PHASES:
            here = [name for name in here if name != lost.get(phase)]
            await made.phase(phase, *here)
            if phase in lost and phase != "answers":
                await made.late()
        roster = made.clients[here[0]].sharing.roster
        assert (roster.graph.degree, roster.graph.threshold, len(roster.members)) == (26, 22, 64)
        assert all(len(one.sharing.message.shares) == 26 for one in made.clients.values() if one.sharing)
        answer = await made.clients[here[0]].fake.personalised(1)
        assert answer.status_code == 200, answer.text
        found, expected = decode_body(answer.content)[1].arrays, made.mean(*list(made.clients)[3:])
        assert set(found) == set(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=2.0**-22, atol=STEP)
        [one] = (await made.federation.history())["rounds"]
        assert one["missing"] == list(made.clients)[:3]


@pytest.mark.parametrize("phase", PHASES[1:4])
async def test_more_drop_outs_than_the_bound_bears_end_the_round_with_the_reason_and_lose_nothing(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    force_graph(monkeypatch)
    bounds = {"colluders": 0.0, "dropouts": 0.2}
    async with secured(5, settings=bounds, quorum=3) as made:
        await made.until(phase)
        await made.phase(phase, "ada", "bob", "cyd")
        assert made.clients["ada"].begun.terms.common.graph is not None
        await made.late()
        history = await made.federation.history()
        said = f"round 1: 3 of 4 clients at the deadline of its phase {phase}, missing dan, eve"
        assert (history["phase"], history["reason"]) == ("failed", said)
        assert {one["client"] for one in (await made.federation.operate("GET", "/v1/clients")).json()} == set(
            made.clients
        )
        assert (await made.clients["ada"].asked("request")).status_code == 409
        again = await made.federation.start_run(rounds=1, clients=5, seed=1)  # with all who are still there
        assert again.status_code == 201, again.text
