"""A secure round over the wire: its six phases, who drops out in each, and what is left of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load

from shared.protocol.secure.fixed_point import STEP
from shared.protocol.wire import decode_body
from shared.strategies.lpsfed import similarities

if TYPE_CHECKING:
    from conftest import Secured, SecureFederation

pytestmark = pytest.mark.anyio
RHO = {"ada": 0.3, "bob": 0.9, "cyd": 0.5, "dan": 0.35, "eve": 0.7}
PHASES = ("keys", "shares", "checks", "masked", "consents", "answers")


async def told(made: SecureFederation, name: str, *, number: int = 1) -> Any:
    """What one client may fetch after a round."""
    answer = await made.clients[name].fake.personalised(number)
    assert answer.status_code == 200, answer.text
    return decode_body(answer.content)[1]


def close(found: Any, expected: dict[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2.0**-22, atol=STEP)


async def test_everybody_gets_the_mean_mean_margin_and_its_own_rhobar(secured: Secured) -> None:
    async with secured(4) as made:
        for phase in PHASES:
            await made.phase(phase)
        near = similarities({name: {"rho": RHO[name]} for name in made.clients})
        margin = np.mean([one.content.scalars["margin"] for one in made.clients.values()])
        for name in made.clients:
            found = await told(made, name)
            close(found.arrays, made.mean(*made.clients))
            assert found.scalars == {"margin": pytest.approx(margin, abs=STEP), "rhobar": near[name]}
        assert (await made.federation.history())["phase"] == "finished"


@pytest.mark.parametrize("lost_after", ["", "keys", "shares", "checks", "masked", "consents"])
async def test_a_client_may_drop_out_in_any_phase(secured: Secured, lost_after: str) -> None:
    async with secured(4, quorum=3) as made:
        here = list(made.clients)
        reached = PHASES[: PHASES.index(lost_after) + 1] if lost_after else ()
        for phase in reached:
            await made.phase(phase)
        here.remove("bob")
        for phase in PHASES[len(reached) :]:
            await made.phase(phase, *here)
            if phase == PHASES[len(reached)] and phase != "answers":  # of these as many as the threshold are enough
                await made.late()
        survivors = list(made.clients) if lost_after in ("masked", "consents") else here
        close((await told(made, "ada")).arrays, made.mean(*survivors))
        assert (await told(made, "bob")).scalars["rhobar"] == (0.0 if "bob" in survivors else 1.0)
        [one] = (await made.federation.history())["rounds"]
        assert one["missing"] == ([] if "bob" in survivors else ["bob"])


@pytest.mark.parametrize("phase", PHASES)
async def test_too_few_in_a_phase_end_the_run_with_the_reason(secured: Secured, phase: str) -> None:
    async with secured(4, quorum=3) as made:
        for before in PHASES[: PHASES.index(phase)]:
            await made.phase(before)
        await made.phase(phase, "ada", "cyd")
        await made.late()
        history = await made.federation.history()
        said = f"round 1: 2 of 3 clients at the deadline of its phase {phase}, missing bob, dan"
        assert (history["phase"], history["reason"]) == ("failed", said)
        assert (await made.clients["ada"].asked("request")).status_code == 409


async def test_the_default_quorum_is_everybody_as_in_an_open_run(secured: Secured) -> None:
    async with secured(4) as made:
        await made.phase("keys", "ada", "bob", "cyd")
        await made.late()
        assert (await made.federation.history())["phase"] == "failed"


async def test_the_next_round_is_held_with_other_keys(secured: Secured) -> None:
    async with secured(3, rounds=2) as made:
        for phase in PHASES:
            await made.phase(phase)
        await told(made, "ada")
        for one in made.clients.values():
            one.next_round()
        for phase in PHASES:
            await made.phase(phase)
        close((await told(made, "cyd", number=2)).arrays, made.mean(*made.clients))
        assert (await made.federation.history())["phase"] == "finished"


async def test_the_state_of_a_client_that_came_too_late_for_the_round_is_absent(secured: Secured) -> None:
    async with secured(4, quorum=3) as made:
        await made.phase("keys", "ada", "bob", "cyd")
        await made.late()
        assert [await one.standing() for one in made.clients.values()] == ["expected"] * 3 + ["absent"]
        refused = await made.clients["dan"].keys()
        assert (refused.status_code, refused.json()["code"]) == (409, "round-closed")


async def test_with_fedavg_there_is_no_scalar_at_all(secured: Secured) -> None:
    async with secured(3, settings={"strategy": "fedavg"}) as made:
        for one in made.clients.values():
            one.content = type(one.content)(one.content.arrays)
        for phase in PHASES:
            await made.phase(phase)
        answer = await made.clients["bob"].fake.personalised(1)
        close(load(answer.content), made.mean(*made.clients))
        assert (await told(made, "bob")).scalars == {}


async def test_the_operator_sees_where_an_open_round_stands(secured: Secured) -> None:
    async with secured(4, quorum=3) as made:
        await made.phase("keys")
        await made.phase("shares", "ada", "cyd")
        [one] = (await made.federation.history())["rounds"]
        assert one["secure"] == {
            "step": "shares",
            "threshold": 3,
            "came": {"keys": 4, "shares": 2, "checks": 0, "masked": 0, "consents": 0, "answers": 0},
            "waiting_for": ["bob", "dan"],
            "expelled": [],
        }
        page = (await made.federation.operate("GET", "/")).text
        assert "step shares, waiting for bob, dan" in page
        await made.phase("shares", "bob", "dan")
        for phase in PHASES[2:]:
            await made.phase(phase)
        await told(made, "ada")
        [one] = (await made.federation.history())["rounds"]
        assert "secure" not in one or one["secure"] is None
