"""Faults that heal: the run ends as the one without any, each update is taken once, and nobody waits for ever."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from client_service.boundary.aggregator_api import ATTEMPTS
from tests.system.faults.federation import LONGEST_SECONDS, Disturbed, Ending
from tests.system.faults.proxy import Fault

if TYPE_CHECKING:
    from conftest import Federation

pytestmark = pytest.mark.anyio
CALLS = {
    "join": "^POST /v1/clients ",
    "current": "^GET /v1/runs/current",
    "update": "^PUT .*/update ",
    "personalised": "^GET .*/personalized",
}
SLOW = Fault(delay=0.05)
TRICKLE = Fault(delay=0.2, chunk=1)
RESET_REQUEST = Fault(end="reset", way="request", share=0.5)
RESET_ANSWER = Fault(end="reset", way="answer", share=0.5)
CUT_REQUEST = Fault(end="close", way="request", share=0.5)
CUT_ANSWER = Fault(end="close", way="answer", share=0.5)
BLACK_HOLE = Fault(end="silence", way="request")
HALF_REQUEST = Fault(end="silence", way="request", share=0.5)
HALF_OPEN = Fault(end="silence", way="answer")
VANISHED_REQUEST = Fault(end="vanish", way="request", share=0.5)
VANISHED = Fault(end="vanish", way="answer")
TRICKLING_ANSWER = Fault(delay=0.2, chunk=1, slow=("answer",))
TWICE = (Fault(repeat="before"), Fault(repeat="beside"), Fault(repeat="after"))
BOTH = {  # of calls with a body and without
    "late": (SLOW, TRICKLE, TRICKLING_ANSWER),
    "reset": (RESET_REQUEST, RESET_ANSWER, BLACK_HOLE),
    "silent": (HALF_OPEN, VANISHED, CUT_ANSWER),
}
WITH_BODY = {"in half": (HALF_REQUEST, VANISHED_REQUEST, CUT_REQUEST), "twice": TWICE}
CASES = {f"{call}, {kind}": (call, BOTH[kind]) for call in CALLS for kind in BOTH}
CASES |= {f"{call}, {kind}": (call, WITH_BODY[kind]) for call in ("join", "update") for kind in WITH_BODY}
ALWAYS = {"update, in half", "personalised, reset"}  # the others are for `make faults`


def chosen(name: str) -> Any:
    return pytest.param(*CASES[name], id=name, marks=() if name in ALWAYS else pytest.mark.slow)


async def require_undisturbed(
    federation: Federation, undisturbed: dict[str, Ending], call: str, faults: Sequence[Fault], times: float = 1
) -> None:
    """One fault for each client, in the calls of this pattern: the run ends as without them, and all is on record."""
    with anyio.fail_after(LONGEST_SECONDS):
        async with federation() as running:
            for proxy, fault in zip(running.proxies.values(), faults, strict=True):
                proxy.aim(call, fault, times)
            await running.begin()
            assert await running.ended() == undisturbed
            met = [len(proxy.spoilt) for proxy in running.proxies.values()]
            assert met == [times] * 3 if times < math.inf else min(met) > 6
            await require_each_update_once(running)
            await require_nothing_undeclared(running)


@pytest.mark.parametrize(("call", "faults"), [chosen(name) for name in CASES])
async def test_a_fault_that_heals_changes_nothing(
    federation: Federation, undisturbed: dict[str, Ending], call: str, faults: tuple[Fault, Fault, Fault]
) -> None:
    await require_undisturbed(federation, undisturbed, CALLS[call], faults)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
async def test_a_call_that_fails_as_often_as_it_is_tried_is_made_again_later(
    federation: Federation, undisturbed: dict[str, Ending], call: str
) -> None:
    faults = (RESET_REQUEST, RESET_ANSWER, CUT_ANSWER)
    await require_undisturbed(federation, undisturbed, CALLS[call], faults, ATTEMPTS + 1)


@pytest.mark.slow
async def test_a_line_that_is_slow_all_the_time_changes_nothing(
    federation: Federation, undisturbed: dict[str, Ending]
) -> None:
    await require_undisturbed(federation, undisturbed, "", [Fault(delay=0.02)] * 3, math.inf)


async def require_each_update_once(running: Disturbed) -> None:
    """Every client's update of every round is accepted as new one time, whatever came besides."""
    taken = [one for one in await running.arrivals() if (one.call, one.status) == ("update", 201)]
    counts = Counter((one.client, one.round) for one in taken)
    assert counts == {(name, number): 1 for name in running.silos for number in (1, 2)}


async def require_nothing_undeclared(running: Disturbed) -> None:
    """All that came is on the ledger of whoever sent it, and the other way round."""
    report = await running.audited()
    assert report.held, [f"{one.name}: {fault}" for one in report.findings for fault in one.faults]
