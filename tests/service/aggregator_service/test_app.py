"""Whole runs over the wire, with clients that only know numpy."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest

from aggregator_service.rounds.run import Run
from aggregator_service.rounds.uploads import Address, Uploads
from shared.method.parameters import Float32
from shared.method.tensors import initial_parameters
from shared.protocol.wire import MEDIA_TYPE
from shared.strategies import build_strategy
from tests.support.questions import LONGEST_SECONDS

if TYPE_CHECKING:
    from conftest import Running

Tensors = Callable[[bytes], dict[str, Float32]]
pytestmark = pytest.mark.anyio


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> int:
    """Seconds of a long poll that outlasts every test: one that ends was woken."""
    monkeypatch.setattr("aggregator_service.rounds.round_loop.LONGEST_WAIT_SECONDS", 10**9)
    return 10**9


@pytest.mark.parametrize("strategy", ["lpsfed", "fedavg", "local"])
async def test_a_run_goes_from_the_first_join_to_the_end(running: Running, strategy: str) -> None:
    async with running(strategy=strategy) as federation:
        clients = await federation.begun("east", "north", "south")
        for number in (1, 2):
            for client in clients:
                scalars = {"rho": 0.1, "margin": 0.2} if strategy == "lpsfed" else {}
                assert (await client.put(number, client.update(1.0, **scalars))).status_code == 201
            for client in clients:
                assert (await client.personalised(number)).status_code == 200
        history = await federation.history()
        assert history["phase"] == "finished"
        assert [(one["phase"], one["missing"]) for one in history["rounds"]] == [("aggregated", [])] * 2


async def test_everybody_starts_from_the_same_seeded_parameters(running: Running, tensors: Tensors) -> None:
    async with running() as federation:
        (north,) = await federation.begun("north", seed=5)
        answer = await north.get("/v1/runs/run-1/model")
        method = federation.settings.method
        expected = initial_parameters(build_strategy("lpsfed", method).tensors(method), 5, exact=True)
        assert answer.headers["content-type"] == MEDIA_TYPE
        got = tensors(answer.content)
        assert got.keys() == expected.keys()
        assert all(np.array_equal(got[name], expected[name]) for name in expected)


async def test_lpsfed_mixes_the_mean_with_ones_own_as_much_as_ones_spectrum_is_far(
    running: Running, tensors: Tensors
) -> None:
    # rho .2, .3, .6 -> rhobar 1, .75, 0 (Eq. 12); mean of 1, 2, 6 is 3 (Eq. 13); Eq. 14: 3, .75 * 3 + .25 * 2, 6
    sent = {"east": (1.0, 0.2, 0.5), "north": (2.0, 0.3, 0.7), "south": (6.0, 0.6, 0.9)}
    expected = {"east": (3.0, 0.7), "north": (2.75, 0.7), "south": (6.0, 0.9)}
    async with running() as federation:
        clients = await federation.begun(*sent)
        for client in clients:
            value, rho, margin = sent[client.name]
            await client.put(1, client.update(value, rho=rho, margin=margin))
        for client in clients:
            answer = await client.personalised(1)
            value, margin = expected[client.name]
            assert all(np.allclose(array, value) for array in tensors(answer.content).values())
            assert scalars_of(answer.content) == pytest.approx({"margin": margin})
            assert answer.headers["cache-control"] == "no-store"
        near = {one["client"]: one["rhobar"] for one in (await federation.history())["rounds"][0]["participants"]}
        assert near == pytest.approx({"east": 1.0, "north": 0.75, "south": 0.0})


def scalars_of(body: bytes) -> dict[str, float]:
    """Read from the safetensors header by hand: 8 bytes of length, then JSON."""
    length = int.from_bytes(body[:8], "little")
    scalars: dict[str, float] = json.loads(json.loads(body[8 : 8 + length])["__metadata__"]["scalars"])
    return scalars


async def test_a_long_poll_wakes_up_when_the_run_starts(running: Running, endless: int) -> None:
    async with running() as federation:
        (north,) = await federation.joined("north")
        idle = (await north.get("/v1/runs/current")).json()
        assert (idle["run"], idle["joined"]) == (None, 1)
        seen: list[dict[str, object]] = []

        async def poll() -> None:
            seen.append((await north.get("/v1/runs/current", after=idle["sequence"], wait=endless)).json())

        with anyio.fail_after(LONGEST_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(poll)
                await anyio.sleep(0.05)
                assert not seen
                await federation.start_run(rounds=2, clients=1)
        assert (seen[0]["run"], seen[0]["phase"], seen[0]["standing"]) == ("run-1", "open", "expected")
        assert seen[0]["sequence"] > idle["sequence"]


async def test_a_wait_is_cut_to_what_the_aggregator_allows(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aggregator_service.rounds.round_loop.LONGEST_WAIT_SECONDS", 0.05)
    async with running() as federation:
        (north,) = await federation.begun("north")
        sequence = (await north.get("/v1/runs/current")).json()["sequence"]
        with anyio.fail_after(LONGEST_SECONDS):
            found = await north.get("/v1/runs/current", after=sequence, wait=10**9)
            assert found.json()["sequence"] == sequence
            answer = await north.personalised(1, wait=10**9)
        assert (answer.status_code, answer.headers["retry-after"]) == (204, "1")


async def test_a_shutdown_does_not_wait_for_long_polls(running: Running, endless: int) -> None:
    async with running() as federation:
        (north,) = await federation.begun("north")
        sequence = (await north.get("/v1/runs/current")).json()["sequence"]
        with anyio.fail_after(LONGEST_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: north.get("/v1/runs/current", after=sequence, wait=endless))
                tasks.start_soon(lambda: north.personalised(1, wait=endless))
                await anyio.sleep(0.05)
                federation.app.state.coordinator.wind_down()
        assert (await federation.http.get("/health/ready")).status_code == 503
        assert (await federation.http.get("/health/live")).status_code == 200


async def test_a_deadline_closes_a_round_that_has_its_quorum(running: Running) -> None:
    async with running() as federation:
        north, south = await federation.begun("north", "south", rounds=1, quorum=1)
        await north.put(1, north.update(1.0))
        federation.clock.pass_the_deadline()
        assert (await north.personalised(1)).status_code == 200
        assert (await federation.history())["phase"] == "finished"
        closed = await south.put(1, south.update(2.0))
        assert (closed.status_code, closed.json()["code"]) == (409, "round-closed")


async def test_a_deadline_without_quorum_fails_the_run_and_tells_whoever_waits(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.begun("north", "south")
        await north.put(1, north.update(1.0))
        federation.clock.pass_the_deadline()
        answer = await north.personalised(1)
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        history = await federation.history()
        assert (history["phase"], history["rounds"][0]["phase"]) == ("failed", "failed")
        assert history["reason"] == "round 1: 1 of 2 updates at the deadline, missing south"
        assert (await federation.start_run(rounds=1, clients=2)).json()["run"] == "run-2"


async def test_an_anchor_is_the_same_for_everybody(running: Running) -> None:
    async with running() as federation:
        north, south = await federation.begun("north", "south")
        first, second = [await one.get("/v1/runs/run-1/rounds/1/anchor") for one in (north, south)]
        assert first.json() == second.json()
        assert first.json()["source"] == "declared 40 x 30 x 200"
        assert sum(first.json()["kernel"]) == pytest.approx(1.0)
        assert (await north.get("/v1/runs/run-1/rounds/2/anchor")).status_code == 404


async def test_below_three_clients_joining_warns(running: Running) -> None:
    async with running() as federation:
        warnings = [(await federation.client(name).join()).json()["warnings"] for name in ("a", "b", "c")]
        assert "tell the other's" in warnings[1][0]
        assert [len(one) for one in warnings] == [1, 1, 0]


async def test_metrics_count_by_route_template_and_never_name_a_client(running: Running) -> None:
    async with running() as federation:
        (north,) = await federation.begun("north", rounds=1)
        await north.put(1, north.update(1.0))
        assert (await north.personalised(1)).status_code == 200
        text = (await federation.http.get("/metrics")).text
        assert 'lpsfed_aggregator_uploads_total{outcome="accepted"} 1.0' in text
        assert 'lpsfed_aggregator_rounds_total{outcome="aggregated"} 1.0' in text
        assert 'lpsfed_aggregator_phase{phase="finished"} 1.0' in text
        assert 'route="/v1/runs/{run}/rounds/{number}/clients/{client}/update"' in text
        assert "north" not in text


async def test_the_log_has_the_route_template_and_the_client_but_no_query_and_no_secret(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "aggregator_service")
    async with running() as federation:
        (north,) = await federation.begun("north")
        await north.get("/v1/runs/current", after=12345)
        await north.put(1, north.update(1.0))
        await federation.http.get("/nowhere/to/be/seen")
    lines = [json.loads(line) for line in caplog.messages if line.startswith("{")]
    requests = [(one["route"], one["client"], one["status"]) for one in lines if one["event"] == "request"]
    assert ("/v1/runs/current", "north", 200) in requests
    assert ("/v1/runs/{run}/rounds/{number}/clients/{client}/update", "north", 201) in requests
    assert ("(unmatched)", None, 404) in requests
    assert not any(word in caplog.text for word in ("12345", "ssssssss", "nowhere", "operator-token"))


async def test_the_documentation_shows_what_an_update_is(running: Running) -> None:
    async with running() as federation:
        paths = (await federation.http.get("/openapi.json")).json()["paths"]
        update = paths["/v1/runs/{run}/rounds/{number}/clients/{client}/update"]["put"]
        assert MEDIA_TYPE in update["requestBody"]["content"]
        assert update["responses"].keys() >= {"200", "201", "401", "404", "409", "413", "415"}
        assert (await federation.http.get("/docs")).status_code == 200


async def test_the_operator_sees_until_when_the_run_waits(running: Running) -> None:
    async with running() as federation:
        waiting = (await federation.start_run(rounds=1, clients=1, deadline_seconds=60)).json()
        assert datetime.fromisoformat(waiting["deadline_at"]) - datetime.fromisoformat(
            waiting["started_at"]
        ) == timedelta(seconds=60)
        (north,) = await federation.joined("north")
        opened = await federation.history()
        assert opened["phase"] == "open" and opened["deadline_at"] > waiting["deadline_at"]
        await north.put(1, north.update(1.0))
        assert (await north.personalised(1)).status_code == 200
        assert (await federation.history())["deadline_at"] is None


async def test_the_operator_reads_what_clients_may_send(running: Running) -> None:
    async with running() as federation:
        answer = await federation.operate("GET", "/v1/declaration")
        assert answer.json() == federation.settings.declaration().model_dump(mode="json")
        (north,) = await federation.joined("north")
        assert (await north.get("/v1/declaration")).status_code == 403


async def test_the_operator_lists_runs(running: Running) -> None:
    async with running() as federation:
        await federation.begun("north")
        (listed,) = (await federation.operate("GET", "/v1/runs")).json()
        assert (listed["run"], listed["phase"], listed["request"]["rounds"]) == ("run-1", "open", 2)


async def test_the_uploads_of_others_wake_nobody_who_waits_for_the_round(
    running: Running, endless: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    settled = Uploads._is_settled

    def looked(self: Uploads, address: Address, resent: Run | None) -> bool:
        looks.append(address.client)
        return settled(self, address, resent)

    monkeypatch.setattr(Uploads, "_is_settled", looked)
    async with running() as federation:
        clients = await federation.begun("north", "south", "east", "west")
        north, *others = clients
        await north.put(1, north.update(1.0))
        answers: list[int] = []

        async def wait() -> None:
            answers.append((await north.personalised(1, wait=endless)).status_code)

        with anyio.fail_after(LONGEST_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                while not looks:
                    await anyio.sleep(0.01)
                for client in others[:-1]:
                    await client.put(1, client.update(1.0))
                assert looks == ["north"]
                await others[-1].put(1, others[-1].update(1.0))
        assert answers == [200]


@pytest.mark.parametrize("clients", [1, 4])
async def test_a_cancelled_run_ends_at_once_and_frees_the_federation(running: Running, clients: int) -> None:
    """In its first round, and while it waits for clients that never come."""
    async with running() as federation:
        (north,) = await federation.joined("north")
        await federation.start_run(rounds=2, clients=clients)
        await north.put(1, north.update(1.0))
        for _ in range(2):  # an answer that was lost is asked for again
            answer = await federation.operate("DELETE", "/v1/runs/run-1")
            assert answer.status_code == 200, answer.text
            assert (answer.json()["phase"], answer.json()["reason"]) == ("cancelled", "the operator has cancelled it")
        assert (await north.get("/v1/runs/current")).json()["phase"] == "cancelled"
        assert (await north.put(1, north.update(2.0))).status_code == 409
        assert (await federation.start_run(rounds=1, clients=1)).status_code == 201
        assert (await federation.history())["phase"] == "cancelled"  # run-1; run-2 goes on
        assert (await federation.operate("DELETE", "/v1/runs/run-2")).status_code == 200


async def test_whoever_waits_is_woken_by_a_cancellation(running: Running, endless: int) -> None:
    async with running() as federation:
        north, _ = await federation.begun("north", "south")
        await north.put(1, north.update(1.0))
        answers: list[int] = []

        async def wait() -> None:
            answers.append((await north.personalised(1, wait=endless)).status_code)

        with anyio.fail_after(LONGEST_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await anyio.sleep(0.05)
                await federation.operate("DELETE", "/v1/runs/run-1")
        assert answers == [409]


async def test_what_has_ended_otherwise_is_not_cancelled_and_no_client_cancels(running: Running) -> None:
    async with running() as federation:
        (north,) = await federation.begun("north", rounds=1)
        assert (await north.http.request("DELETE", "/v1/runs/run-1", auth=north.auth)).status_code == 403
        await north.put(1, north.update(1.0))
        assert (await north.personalised(1, wait=5)).status_code == 200
        answer = await federation.operate("DELETE", "/v1/runs/run-1")
        assert (answer.status_code, answer.json()["detail"]) == (
            409,
            "run-1 has ended before (finished); nothing was changed",
        )
        assert (await federation.operate("DELETE", "/v1/runs/run-9")).status_code == 404
