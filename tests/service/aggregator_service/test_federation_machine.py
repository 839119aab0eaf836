"""The same through the app, with its database and files and a clock of the test's: clients that come, go and return,
restarts in between, and after every step the operator's history says what the model says."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from safetensors.numpy import load

from aggregator_service.app import create_app
from shared.errors import ConflictError, NotFoundError, RoundClosedError
from shared.protocol.schemas import RoundOut, RunHistoryOut
from tests.support.aggregator import METHOD, Federation
from tests.support.clock import LeapingClock
from tests.support.federation import run_app
from tests.support.model_of_rounds import DEADLINE_SECONDS, NAMES, Model
from tests.support.questions import LONGEST_SECONDS
from tests.support.small import small_aggregator

FEW, MANY, STEPS = 3, 60, 25
CLIENTS = st.sampled_from(NAMES)
RHOS = st.sampled_from((None, 0.0, 0.25, 0.25, 1.0))
CODES = {NotFoundError: (404, "not-found"), ConflictError: (409, "conflict"), RoundClosedError: (409, "round-closed")}


class Aggregator(RuleBasedStateMachine):
    """One run of an aggregator that is started again and again in the same directory."""

    model: Model

    def __init__(self) -> None:
        super().__init__()
        self.folder, self.clock, self.runner = tempfile.TemporaryDirectory(), LeapingClock(), asyncio.Runner()
        self.values: dict[str, float] = {}  # of each client's last accepted update
        self.mean = 0.0
        self.closed: dict[int, tuple[RoundOut, dict[str, float]]] = {}
        self.runner.run(self._open())

    def teardown(self) -> None:
        self.runner.run(self.stack.aclose())
        self.runner.close()
        self.folder.cleanup()

    async def _open(self) -> None:
        state = Path(self.folder.name) / "state"
        chosen = small_aggregator(state, method=METHOD, retention_rounds=1, quarantine_refusals=0)
        self.stack, self.app = AsyncExitStack(), create_app(chosen, clock=self.clock)
        http = await self.stack.enter_async_context(run_app(self.app, "http://aggregator"))
        self.federation = Federation(self.app, http, chosen, self.clock)
        self.clients = {name: self.federation.client(name) for name in NAMES}

    @initialize(
        rounds=st.integers(1, 3),
        clients=st.integers(1, 3),
        quorum=st.none() | st.integers(1, 3),
        joined=st.sets(CLIENTS, min_size=1),
    )
    def begin(self, rounds: int, clients: int, quorum: int | None, joined: set[str]) -> None:
        quorum = None if quorum is None else min(quorum, clients)
        self.model = Model(rounds, clients, quorum or clients, set())
        request = {"rounds": rounds, "clients": clients, "quorum": quorum, "deadline_seconds": DEADLINE_SECONDS}
        assert self.runner.run(self.federation.start_run(**request)).status_code == 201
        for name in sorted(joined):
            self.join(name)

    @rule(client=CLIENTS)
    def join(self, client: str) -> None:
        assert self.runner.run(self.clients[client].join()).status_code == 200
        if self.model.phase not in ("finished", "failed"):
            self.model.enrolled.add(client)
        self.settle()

    @rule(share=st.sampled_from((0.3, 1.1)))
    def time_passes(self, share: float) -> None:
        self.clock.ahead += share * DEADLINE_SECONDS
        self.model.now += share * DEADLINE_SECONDS
        self.settle()

    @rule()
    def restart(self) -> None:
        """It ends and starts again; what a client then asks is answered as before."""
        self.runner.run(self.stack.aclose())
        self.runner.run(self._open())

    @rule(client=CLIENTS, behind=st.sampled_from((0, 0, 0, 0, 1, -1)), letter=st.sampled_from("aab"), rho=RHOS)
    def upload(self, client: str, behind: int, letter: str, rho: float | None) -> None:
        number, known = max(1, self.model.round - behind), client in self.federation_members
        value = float(10 * NAMES.index(client) + number + (0.5 if letter == "b" else 0.0))
        body = self.clients[client].update(value, margin=0.5, **({} if rho is None else {"rho": rho}))
        digest = hashlib.sha256(body).hexdigest()
        refusal = self.model.refusal(client, number, digest)
        again = client in self.model.sent.get(number, {})
        answer = self.runner.run(self.clients[client].put(number, body))
        if not known:
            assert (answer.status_code, answer.json()["code"]) == (401, "authentication")
        elif refusal is not None:
            assert (answer.status_code, answer.json()["code"]) == CODES[refusal]
        else:
            assert answer.status_code == (200 if again else 201)
            assert answer.json()["digest"] == digest
        if known and refusal is None and not again:
            self.model.here[client], self.values[client] = (digest, rho), value
            self.settle()

    @property
    def federation_members(self) -> tuple[str, ...]:
        members: tuple[str, ...] = self.app.state.coordinator.client_names
        return members

    @precondition(lambda self: self.closed)
    @rule(client=CLIENTS)
    def fetch(self, client: str) -> None:
        """Eq. 14 with the latest of everybody: also for one that was away, and for one that never sent."""
        if self.model.phase == "failed" or client not in self.model.enrolled:
            return
        last = max(self.closed)
        answer = self.runner.run(self.clients[client].personalised(last, wait=0.0))
        near = self.closed[last][1].get(client, 1.0)
        expected = near * self.mean + (1 - near) * self.values.get(client, 0.0)
        assert answer.status_code == 200, answer.text
        assert all(np.allclose(array, expected, rtol=1e-5) for array in load(answer.content).values())

    @precondition(lambda self: self.model.phase in ("waiting", "open"))
    @rule()
    def fail(self) -> None:
        self.runner.run(self._round_loop.fail_run("run-1", "the disk has lost what it was made of"))
        self.model.phase = "failed"

    @property
    def _round_loop(self) -> Any:
        return self.app.state.coordinator._federation.round_loop

    def settle(self) -> None:
        """Let model and service do what is due."""
        self.model.settle()
        if self.model.phase == "aggregated":
            here = self.model.here
            self.mean = float(np.mean([self.values[client] for client in here]))
            number = self.model.round
            self.model.close()
            self.runner.run(self._settled())
            self.closed[number] = self.history().rounds[number - 1], self.model.near()
        else:
            self.runner.run(self._settled())

    async def _settled(self) -> None:
        """A deadline that passes wakes nobody by itself: somebody has to look at the clock."""
        round_loop = self._round_loop
        round_loop.changes.announce_change()
        async with asyncio.timeout(LONGEST_SECONDS):
            while (round_loop.run.phase, round_loop.run.round) != (self.model.phase, self.model.round):
                await asyncio.sleep(0.001)

    def history(self) -> RunHistoryOut:
        return RunHistoryOut.model_validate(self.runner.run(self.federation.history()))

    @invariant()
    def history_says_what_the_model_says(self) -> None:
        history = self.history()
        assert (history.phase, len(history.rounds)) == (self.model.phase, self.model.round)
        assert (history.reason is not None) == (history.phase == "failed")
        for one in history.rounds:
            held = {part.client: (part.digest, part.rho) for part in one.participants if part.received}
            assert held == self.model.sent.get(one.number, {})
        for number, (closed, near) in self.closed.items():
            assert history.rounds[number - 1] == closed
            told = {part.client: part.rhobar for part in closed.participants if part.rhobar is not None}
            known = any(part.rho is not None for part in closed.participants)
            assert not known or told == pytest.approx({name: near[name] for name in told})

    @invariant()
    def nothing_half_written_stays(self) -> None:
        assert list((Path(self.folder.name) / "state" / "blobs").glob("*.part")) == []


@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_the_service_does_what_the_model_does(examples: int) -> None:
    run_state_machine_as_test(
        Aggregator,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
