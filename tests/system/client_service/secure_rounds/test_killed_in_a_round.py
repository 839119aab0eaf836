"""A client that ends at any moment of a secure round starts again and sends the same, or the others do without it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_service.boundary.aggregator_api import Aggregator
from client_service.secure_rounds.masking import ROUND_FILE
from simulation.experiments.experiment import Experiment
from tests.support.clock import LeapingClock
from tests.support.federation import Federation, run_federation
from tests.support.given import Silos
from tests.support.mortal import Killer, on_the_line
from tests.support.questions import wait_until

pytestmark = pytest.mark.anyio
OWN = "/v1/runs/run-1/rounds/1/clients/client-1"
QUICK = [("GET roster", False), ("PUT update", True)]
CALLS = (
    "PUT keys",
    "GET roster",
    "PUT shares",
    "GET delivery",
    "PUT checks",
    "GET sharers",
    "PUT update",
    "GET request",
    "PUT consents",
    "GET signatures",
    "PUT answers",
)


WITH_PUT = {"GET roster", "GET delivery", "GET sharers", "GET signatures"}  # unless their phase takes long


def answer_puts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes clients ask for the result of each phase by a call of its own, as where it is not there yet."""
    send: Callable[..., Any] = Aggregator.exchange_message
    monkeypatch.setattr(Aggregator, "exchange_message", lambda *given: send(*given[:-1], 0.0))


@pytest.fixture
def described(silos: Silos, small: Any, tmp_path: Path) -> Experiment:
    method = small.model_copy(update={"start": "random", "mlp_learning_rate": 0.01})
    one = Experiment(silos(4), tmp_path / "run", method, rounds=1, seed=5, device="cpu")
    return replace(one, secure=True)


Entered = Callable[..., AbstractAsyncContextManager[Federation]]


@pytest.fixture
def entered(described: Experiment, impatient: None, clock: LeapingClock) -> Entered:
    """`async with entered(quorum=3) as running`: an aggregator, a run, and clients 2 to 4 in it."""
    del impatient

    @asynccontextmanager
    async def enter(**request: Any) -> AsyncIterator[Federation]:
        clients = [
            described.make_client_settings(shard, aggregator_url="http://127.0.0.1") for shard in described.shards
        ]
        async with run_federation(described.make_aggregator_settings(), clients, clock) as running:
            await running.enter(*clients[1:])
            await running.start(**described.run_request().model_dump(mode="json") | request)
            yield running

    return enter


async def ended(running: Federation) -> dict[str, Any]:
    await wait_until(running.finished)
    return await running.history()


@pytest.mark.parametrize(
    ("call", "answered"),
    [
        pytest.param(call, answered, marks=() if (call, answered) in QUICK else pytest.mark.slow)
        for call in CALLS
        for answered in (False, True)
    ],
)
async def test_a_client_that_was_killed_goes_on_in_the_same_round(
    entered: Entered, monkeypatch: pytest.MonkeyPatch, call: str, answered: bool
) -> None:
    if call in WITH_PUT:
        answer_puts_at_once(monkeypatch)
    async with entered() as running:
        method, name = call.split()
        plan = on_the_line(f"{method} {OWN}/{name}", answered=answered)
        again = await Killer(monkeypatch).kill(running, running.clients[0], plan)
        kept = again.state_directory / ROUND_FILE
        assert re.search('"phase":"(begun|sharing|checked|ready)"', kept.read_text())
        await running.enter(again)
        history = await ended(running)
        assert (history["phase"], history["rounds"][0]["missing"]) == ("finished", [])
        assert not kept.exists()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("PUT keys", marks=pytest.mark.slow),
        pytest.param("PUT shares", marks=pytest.mark.slow),
        pytest.param("PUT checks", marks=pytest.mark.slow),
        "PUT update",
        pytest.param("PUT consents", marks=pytest.mark.slow),
        pytest.param("PUT answers", marks=pytest.mark.slow),
    ],
)
async def test_the_others_do_without_a_client_that_stays_away(
    described: Experiment, entered: Entered, clock: LeapingClock, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    async with entered(quorum=3) as running:
        method, name = call.split()
        await Killer(monkeypatch).kill(running, running.clients[0], on_the_line(f"{method} {OWN}/{name}"))
        step = "masked" if name == "update" else name

        async def alone() -> bool:
            history = await running.history()
            if call == "PUT answers" and history["phase"] == "finished":
                return True  # three answers are enough
            [one] = history["rounds"]
            return bool(one["secure"] and (one["secure"]["step"], one["secure"]["waiting_for"]) == (step, ["client-1"]))

        await wait_until(alone)
        clock.ahead += described.run_request().deadline_seconds
        history = await ended(running)
        missing = [] if call in ("PUT consents", "PUT answers") else ["client-1"]
        assert (history["phase"], history["rounds"][0]["missing"]) == ("finished", missing)
