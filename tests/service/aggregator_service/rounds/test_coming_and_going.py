"""Who misses rounds, comes late, leaves or comes back: what each gets, and what the operator and the metrics say."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from shared.protocol.signing.enrolment import remove_key
from shared.strategies.lpsfed import similarities

if TYPE_CHECKING:
    from conftest import Running

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("missed", [1, 4])
async def test_after_missed_rounds_a_client_gets_the_new_mean_with_its_own_last_update(
    running: Running, missed: int
) -> None:
    """However long it was away: its last update outlives the retention of rounds."""
    async with running(retention_rounds=1) as federation:
        north, east, away = await federation.begun("north", "east", "away", rounds=missed + 2, quorum=2)
        for client, value, rho in ((north, 1.0, 0.0), (east, 3.0, 1.0), (away, 8.0, 0.5)):
            await client.put(1, client.update(value, rho=rho, margin=0.0))
        await away.level(1)
        for number in range(2, missed + 2):
            await north.put(number, north.update(10.0, rho=0.0, margin=0.0))
            await east.put(number, east.update(20.0, rho=1.0, margin=0.0))
            federation.clock.pass_the_deadline()
            assert await north.level(number) == pytest.approx(15.0)
        # Its latest rho still is the middle one: rhobar .5 of the mean 15, and as much of its own 8.
        assert await away.level(missed + 1) == pytest.approx(0.5 * 15.0 + 0.5 * 8.0)
        current = (await away.get("/v1/runs/current")).json()
        assert (current["round"], current["standing"], current["received"]) == (missed + 2, "expected", 0)
        assert (await away.put(missed + 2, away.update(8.0, rho=0.5, margin=0.0))).status_code == 201


async def test_rho_is_placed_among_the_latest_of_everybody_enrolled_leavers_and_returners_too(running: Running) -> None:
    async with running() as federation:
        north, south, leaver = await federation.begun("north", "south", "leaver", rounds=3, quorum=2)
        for client, value, rho in ((north, 2.0, 0.2), (south, 4.0, 0.4), (leaver, 6.0, 0.6)):
            await client.put(1, client.update(value, rho=rho, margin=0.0))
        await north.level(1)
        # Round 2: the farthest has left. Its .6 goes on holding the others apart, so south stays at .5.
        for client, value, rho in ((north, 2.0, 0.2), (south, 4.0, 0.4)):
            await client.put(2, client.update(value, rho=rho, margin=0.0))
        federation.clock.pass_the_deadline()
        assert await south.level(2) == pytest.approx(0.5 * 3.0 + 0.5 * 4.0)
        # Round 3: it returns with another rho, and is the nearest now; north is in between.
        for client, value, rho in ((north, 2.0, 0.2), (south, 4.0, 0.4), (leaver, 6.0, 0.1)):
            await client.put(3, client.update(value, rho=rho, margin=0.0))
        near = similarities({"north": {"rho": 0.2}, "south": {"rho": 0.4}, "leaver": {"rho": 0.1}})
        assert near == pytest.approx({"leaver": 1.0, "north": 2 / 3, "south": 0.0})
        for client, own in ((north, 2.0), (south, 4.0), (leaver, 6.0)):
            mixed = near[client.name] * 4.0 + (1 - near[client.name]) * own
            assert await client.level(3) == pytest.approx(mixed)
        told = (await federation.history())["rounds"]
        assert [one["missing"] for one in told] == [[], ["leaver"], []]
        assert {one["client"]: one["rhobar"] for one in told[2]["participants"]} == pytest.approx(near)


async def test_one_that_joins_late_is_expected_from_then_on_and_is_placed_with_its_first_rho(running: Running) -> None:
    async with running() as federation:
        (north,) = await federation.begun("north", rounds=3)
        await north.put(1, north.update(1.0, rho=0.0, margin=0.0))
        assert await north.level(1) == 1.0
        (late,) = await federation.joined("late")
        assert await late.level(1) == 1.0  # never sent: the mean
        await north.put(2, north.update(1.0, rho=0.0, margin=0.0))
        history = await federation.history()
        assert [one["missing"] for one in history["rounds"]] == [[], ["late"]]
        await late.put(2, late.update(5.0, rho=1.0, margin=0.0))
        assert (await north.level(2), await late.level(2)) == (3.0, 5.0)


async def test_the_operator_is_told_who_is_missing_and_until_when_before_and_in_a_round(running: Running) -> None:
    async with running() as federation:
        (north,) = await federation.joined("north")
        federation.client("south")  # registered, and not there yet
        waiting = (await federation.start_run(rounds=1, clients=2, deadline_seconds=60)).json()
        assert (waiting["phase"], waiting["enrolled"], waiting["missing"]) == ("waiting", ["north"], ["south"])
        assert waiting["deadline_at"] is not None
        await federation.joined("south")
        await north.put(1, north.update(1.0))
        history = await federation.history()
        assert (history["phase"], history["enrolled"], history["missing"]) == ("open", ["north", "south"], ["south"])
        metrics = (await federation.http.get("/metrics")).text
        assert "lpsfed_aggregator_missing_clients 1.0" in metrics
        assert "lpsfed_aggregator_updates_to_quorum 1.0" in metrics
        left = float(re.findall(r"^lpsfed_aggregator_seconds_left (\S+)", metrics, flags=re.M)[0])
        assert 0 < left <= 60


async def test_a_client_sees_itself_and_counts_and_nobody_s_name(running: Running) -> None:
    async with running() as federation:
        north, south = await federation.begun("north", "south", rounds=1)
        await south.put(1, south.update(1.0, rho=0.75, margin=0.5))
        seen = (await north.get("/v1/runs/current")).json()
        assert (seen["standing"], seen["joined"], seen["received"]) == ("expected", 2, 1)
        assert "south" not in json.dumps(seen) and "0.75" not in json.dumps(seen)
        assert seen["deadline_seconds"] == 3600.0


async def test_refusals_are_counted_by_reason_and_time_since_the_last_round_is_told(running: Running) -> None:
    async with running() as federation:
        (north,) = await federation.begun("north", rounds=1)
        assert (await north.put(1, b"no update")).status_code == 422
        assert (await north.put(2, north.update(1.0))).status_code == 409
        await north.put(1, north.update(1.0))
        assert (await north.personalised(1)).status_code == 200
        federation.clock.ahead += 100.0
        metrics = (await federation.http.get("/metrics")).text
        for code in ("protocol", "round-closed"):
            assert f'lpsfed_aggregator_refused_messages_total{{call="update",code="{code}"}} 1.0' in metrics
        since = float(re.findall(r"^lpsfed_aggregator_seconds_since_round (\S+)", metrics, flags=re.M)[0])
        assert 100 <= since < 200 and "lpsfed_aggregator_missing_clients 0.0" in metrics


async def test_a_new_run_does_not_wait_for_a_client_whose_key_was_removed(running: Running) -> None:
    async with running() as federation:
        (north, _) = await federation.begun("north", "gone", rounds=1, quorum=1)
        await north.put(1, north.update(1.0))
        federation.clock.pass_the_deadline()
        assert (await north.personalised(1)).status_code == 200
        remove_key("gone", federation.settings.registry)
        started = (await federation.start_run(rounds=1, clients=1)).json()
        assert (started["run"], started["enrolled"], started["missing"]) == ("run-2", ["north"], ["north"])
