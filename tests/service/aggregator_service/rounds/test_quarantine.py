"""Clients that are shut out: set, seen, told, lifted, after a restart and in an older database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from aggregator_service.aggregation import computation
from shared.protocol.schemas import MemberOut

if TYPE_CHECKING:
    from conftest import FakeClient, Federation, Running

pytestmark = pytest.mark.anyio

SCALARS = {"rho": 0.1, "margin": 0.2}
REASON = "its operator has called: the shard is broken"


async def shut_out(federation: Federation, client: str, reason: str = REASON) -> httpx.Response:
    return await federation.operate("POST", f"/v1/clients/{client}/quarantine", json={"reason": reason})


async def readmit_client(federation: Federation, client: str) -> httpx.Response:
    return await federation.operate("DELETE", f"/v1/clients/{client}/quarantine")


async def members(federation: Federation) -> dict[str, MemberOut]:
    answer = await federation.operate("GET", "/v1/clients")
    assert answer.status_code == 200, answer.text
    return {one["client"]: MemberOut.model_validate(one) for one in answer.json()}


async def test_a_client_that_an_operator_shuts_out_is_told_so_and_nothing_of_it_is_taken(running: Running) -> None:
    async with running() as federation:
        north, south, west = await federation.begun("north", "south", "west")
        shown = await shut_out(federation, "west")
        assert shown.status_code == 201 and shown.json()["quarantine"]["cause"] == "operator"
        answer = await west.put(1, west.update(1.0, **SCALARS))
        assert (answer.status_code, answer.json()["code"]) == (403, "quarantined")
        assert answer.json()["detail"] == (
            "you are quarantined: the operator decided it; the aggregator's operator can let you in again"
        )
        assert [await one.standing() for one in (north, south, west)] == ["expected", "expected", "quarantined"]
        found = await members(federation)
        held = found["west"].quarantine
        assert held is not None and (held.cause, held.reason, held.run, held.round) == ("operator", REASON, None, None)
        assert found["north"].quarantine is None
        assert not list((federation.settings.state_directory / "blobs").iterdir())


async def test_a_round_neither_waits_for_a_quarantined_client_nor_uses_what_it_has_sent(running: Running) -> None:
    async with running() as federation:
        north, south, west = await federation.begun("north", "south", "west")
        assert await west.sends(1, 900.0) == 201
        assert await north.sends(1, 1.0) == await south.sends(1, 3.0) == 201
        # All three are in, so the round is closed. In the next one west is shut out after it has sent.
        assert (await north.personalised(1)).status_code == 200
        assert await west.sends(2, 900.0) == await north.sends(2, 1.0) == 201
        await shut_out(federation, "west")
        assert await south.sends(2, 3.0) == 201
        assert await north.level(2) == 2.0
        last = (await federation.history())["rounds"][1]
        assert {one["client"]: (one["received"], one["quarantined"]) for one in last["participants"]} == {
            "north": (True, False),
            "south": (True, False),
            "west": (False, True),
        }
        assert last["missing"] == []
        first = (await federation.history())["rounds"][0]
        assert [one["received"] for one in first["participants"]] == [True] * 3


async def test_the_round_closes_at_once_where_it_waited_for_that_client_alone(running: Running) -> None:
    async with running() as federation:
        north, south, _ = await federation.begun("north", "south", "west")
        assert await north.sends(1, 1.0) == await south.sends(1, 3.0) == 201
        assert (await north.personalised(1, wait=0.0)).status_code == 204
        await shut_out(federation, "west")
        assert await north.level(1) == 2.0


async def test_it_still_reads_its_parameters_and_moves_nobody_s(running: Running) -> None:
    async with running() as federation:
        north, south, west = await federation.begun("north", "south", "west")
        for client, value, rho in ((north, 1.0, 0.1), (south, 3.0, 0.2), (west, 8.0, 5.0)):
            assert await client.sends(1, value, rho=rho) == 201
        assert await west.level(1) == 8.0  # the farthest keeps its own (Eq. 12, 14)
        assert await south.level(1) == pytest.approx(4.0, abs=0.1)
        await shut_out(federation, "west")
        assert await north.sends(2, 1.0) == await south.sends(2, 3.0, rho=0.2) == 201
        # Without west's rho the farthest is south; west gets the others' mean.
        assert await south.level(2) == 3.0
        assert await west.level(2) == 2.0
        assert await west.level(1) == 8.0  # what was aggregated stays


async def test_once_let_in_again_it_is_waited_for_and_may_send_what_was_not_used(running: Running) -> None:
    async with running() as federation:
        north, south, west = await federation.begun("north", "south", "west")
        assert await west.sends(1, 5.0) == await north.sends(1, 1.0) == 201
        await shut_out(federation, "west")
        before = (await west.get("/v1/runs/current")).json()["sequence"]
        answer = await readmit_client(federation, "west")
        assert answer.status_code == 200 and answer.json()["quarantine"] is None
        now = (await west.get("/v1/runs/current", after=before, wait=2.0)).json()
        assert now["sequence"] > before and now["standing"] == "expected"  # who waits for a change is woken
        assert await south.sends(1, 3.0) == 201
        assert (await north.personalised(1, wait=0.0)).status_code == 204
    async with running() as federation:  # a restart forgets nothing of it
        north, west = federation.client("north"), federation.client("west")
        waited = await west.personalised(1)  # nobody waits for what waits for itself
        assert waited.status_code == 409 and "your quarantine was lifted; send one again" in waited.json()["detail"]
        assert await west.sends(1, 5.0) == 201
        assert await north.level(1) == 3.0


async def test_deciding_twice_the_same_or_about_nobody_is_refused(running: Running) -> None:
    async with running() as federation:
        north, *_ = await federation.begun("north", "south")
        assert (await readmit_client(federation, "north")).status_code == 409
        assert (await shut_out(federation, "north")).status_code == 201
        assert (await shut_out(federation, "north")).status_code == 409
        for method in ("POST", "DELETE"):
            body = {"json": {"reason": "x"}} if method == "POST" else {}
            assert (await federation.operate(method, "/v1/clients/nobody/quarantine", **body)).status_code == 404
        for reason in ("", "x" * 201):
            assert (await shut_out(federation, "south", reason)).status_code == 422
        for path, method in (("", "GET"), ("/south/quarantine", "DELETE"), ("/south/quarantine", "POST")):
            calls = [federation.http.request(method, f"/v1/clients{path}", auth=auth) for auth in (north.auth, None)]
            assert [(await call).status_code for call in calls] == [403, 401]


async def test_before_any_run_a_client_can_be_shut_out_and_the_run_then_waits_for_others(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.joined("north", "south")
        assert (await shut_out(federation, "north")).status_code == 201
        assert (await federation.start_run(clients=2)).json()["phase"] == "waiting"
        assert await north.standing() == "quarantined"
        await federation.joined("west")
        assert (await federation.history())["phase"] == "open"
        assert [
            one["client"] for one in (await federation.history())["rounds"][0]["participants"] if one["quarantined"]
        ] == ["north"]
        await readmit_client(federation, "north")
        assert await north.standing() == "expected"


async def test_without_a_quorum_of_its_own_a_round_needs_those_that_are_left(running: Running) -> None:
    async with running() as federation:
        north, *others = await federation.begun("north", "south", "west")
        for client in others:
            await shut_out(federation, client.name)
        assert await north.sends(1, 7.0) == 201
        assert await north.level(1) == 7.0
        await shut_out(federation, "north")
        history = await federation.history()
        assert (history["phase"], history["reason"]) == (
            "failed",
            "round 2: 0 clients are left that are not quarantined, expected 1 or more",
        )


async def test_a_run_fails_with_a_reason_once_its_quorum_cannot_be_had_any_more(running: Running) -> None:
    async with running() as federation:
        north, south, west = await federation.begun("north", "south", "west", quorum=2)
        await shut_out(federation, "west")
        assert (await federation.history())["phase"] == "open"
        await shut_out(federation, "south")
        history = await federation.history()
        reason = "round 1: 1 clients are left that are not quarantined, expected 2 or more"
        assert (history["phase"], history["reason"]) == ("failed", reason)
        assert reason in (await north.personalised(1)).json()["detail"]
        assert (await federation.start_run(clients=1, quorum=1)).status_code == 201  # the next run does without them
        assert [await one.standing() for one in (north, south, west)] == ["expected", "quarantined", "quarantined"]


async def test_who_is_refused_too_often_in_a_run_is_shut_out_and_lifting_counts_anew(running: Running) -> None:
    async with running(quarantine_refusals=2) as federation:
        north, south = await federation.begun("north", "south", quorum=1)
        assert (await north.put(1, b"garbage")).status_code == 422
        assert (await members(federation))["north"].refused == 1
        assert (await north.put(1, north.update(1.0, margin=9.0))).status_code == 422  # out of its range counts as well
        found = (await members(federation))["north"].quarantine
        assert found is not None and (found.cause, found.run, found.round) == ("refusals", "run-1", 1)
        assert found.reason == "2 of its updates did not match the declaration"
        answer = await north.put(1, north.update(1.0))
        assert answer.status_code == 403 and "too many of your updates" in answer.json()["detail"]
        await readmit_client(federation, "north")
        assert (await members(federation))["north"].refused == 0
        assert await north.sends(1, 1.0) == 201
        # Of a client whose update is in, nothing more can be taken, whatever it sends: an audit may try.
        assert [(await north.put(1, b"garbage")).status_code for _ in range(3)] == [422] * 3
        assert (await members(federation))["north"].refused == 0
        assert await south.sends(1, 1.0) == 201


FAR: dict[str, Any] = {"rounds": 2, "method": {"quarantine_factor": 3.0}}


async def far_round(clients: list[FakeClient], values: list[float]) -> None:
    for client, value in zip(clients, values, strict=True):
        assert await client.sends(1, value) == 201


async def test_an_update_further_than_allowed_shuts_its_client_out_before_the_round_is_aggregated(
    running: Running,
) -> None:
    async with running() as federation:
        clients = await federation.begun("ada", "bob", "cyd", "dan", "eve", **FAR)
        await far_round(clients, [1.0, 2.0, 2.0, 3.0, 1000.0])
        assert await clients[0].level(1) == pytest.approx(2.0, rel=1e-6)
        found = (await members(federation))["eve"].quarantine
        assert found is not None and (found.cause, found.run, found.round) == ("distance", "run-1", 1)
        assert found.reason.startswith("its update was ") and found.reason.endswith("expected at most 3")
        answer = await clients[4].put(2, clients[4].update(1.0))
        assert answer.status_code == 403 and "farther from the round" in answer.json()["detail"]
        assert not any(sign.isdigit() for sign in answer.json()["detail"])  # nothing of how far the others were
        assert (await clients[4].personalised(1)).status_code == 200


async def test_it_is_looked_at_again_without_the_farthest_until_nobody_is_too_far(running: Running) -> None:
    async with running() as federation:
        clients = await federation.begun("ada", "bob", "cyd", "dan", "eve", **FAR)
        # Of all five the median is 10, and 25 is within three times that; of four it is 5.5, of three 1.
        await far_round(clients, [1.0, 1.0, 10.0, 25.0, 1e6])
        assert await clients[0].level(1) == 1.0
        assert [name for name, one in (await members(federation)).items() if one.quarantine] == ["cyd", "dan", "eve"]


async def test_two_updates_are_never_too_far_from_one_another(running: Running) -> None:
    async with running() as federation:
        clients = await federation.begun("north", "south", rounds=1, method={"quarantine_factor": 2.0})
        await far_round(clients, [0.0, 1e9])
        assert (await clients[0].personalised(1)).status_code == 200
        assert all(one.quarantine is None for one in (await members(federation)).values())


async def test_a_restart_forgets_neither_who_is_shut_out_nor_what_was_refused(running: Running) -> None:
    async with running(quarantine_refusals=2) as federation:
        north, south, west = await federation.begun("north", "south", "west")
        assert await west.sends(1, 900.0) == await south.sends(1, 3.0) == 201
        await shut_out(federation, "west")
        await north.put(1, b"garbage")
        before = await members(federation)
    async with running(quarantine_refusals=2) as federation:
        north, south, west = (federation.client(name) for name in ("north", "south", "west"))
        assert await members(federation) == before
        assert [await one.standing() for one in (north, south, west)] == ["expected", "received", "quarantined"]
        assert await west.sends(1, 900.0) == 403
        assert await north.sends(1, 1.0) == 201
        assert await north.level(1) == 2.0
        assert (await federation.history())["rounds"][0]["missing"] == []
        await north.put(2, b"garbage")
        assert (await members(federation))["north"].quarantine is not None  # the second one of the run


async def test_a_round_that_is_closed_again_after_a_crash_shuts_the_same_out(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "the disk is gone for a while")

    with monkeypatch.context() as patch:
        patch.setattr(computation, "aggregate_round", broken)
        async with running() as federation:
            clients = await federation.begun("ada", "bob", "cyd", "dan", "eve", **FAR)
            await far_round(clients, [1.0, 2.0, 2.0, 3.0, 1000.0])
            assert (await clients[0].personalised(1, wait=0.5)).status_code == 204
            before = await members(federation)
            assert before["eve"].quarantine is not None
    async with running() as federation:
        client = federation.client("ada")
        assert await client.level(1) == pytest.approx(2.0, rel=1e-6)
        assert await members(federation) == before


async def test_the_operator_s_page_and_the_metrics_show_who_is_shut_out(running: Running) -> None:
    async with running() as federation:
        await federation.begun("north", "south", "west")
        assert "lpsfed_aggregator_quarantined_clients 0.0" in (await federation.http.get("/metrics")).text
        page = await federation.operate("GET", "/")
        assert "no round waits for them" not in page.text
        await shut_out(federation, "west", "<b>look</b>")
        page = await federation.operate("GET", "/")
        assert "no round waits for them" in page.text and "&lt;b&gt;look&lt;/b&gt;" in page.text
        assert "quarantined</span>" in page.text
        assert "lpsfed_aggregator_quarantined_clients 1.0" in (await federation.http.get("/metrics")).text
